"""page.py PAGE PART: prints a part of docs/library.md as a build takes it.

`cmake` is a CMakeLists.txt around the page's lines, `commands` what follows each `$ `, and `program` the page's
C++ in a main() that tells what came of it."""

import re
import sys

CMAKE = """cmake_minimum_required(VERSION 3.16)
project(orders CXX)
add_executable(orders orders.cc)
%s"""

PROGRAM = """#include <iostream>
#include "absl/time/clock.h"
#include "agent/agent.h"
#include "agent/discovery_channel.h"
#include "grpcpp/grpcpp.h"
struct Orders {  // stands for a generated service
  static void NewStub(const std::shared_ptr<grpc::Channel>& channel) {}
};
int main(int argc, char** argv) {
%s
std::cout << "registered " << registration->instance().key().instance_id() << ", pending "
          << (*agent)->Pending().size() << ", channel " << channel.status() << "\\n";
}
"""


def main():
    page_path, part = sys.argv[1:]
    with open(page_path, encoding="utf-8") as file:
        page = file.read()

    def blocks(language):
        fenced = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.S | re.M)
        found = [body for name, body in fenced if name == language]
        assert found, "the page has no block of " + (language or "commands")
        return found

    if part == "cmake":
        print(CMAKE % "".join(blocks("cmake")))
    elif part == "commands":
        lines = "".join(blocks("")).splitlines()
        print("\n".join(line[2:] for line in lines if line.startswith("$ ")))
    else:
        # Where a registry is is the only thing that the test knows better.
        program = PROGRAM % "".join(blocks("cpp"))
        print(re.sub(r'options\.registry = "[^"]*"', "options.registry = argv[1]", program))


if __name__ == "__main__":
    main()
