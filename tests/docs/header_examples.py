"""header_examples.py OUT HEADER…: the examples in the opening comments of headers, as one C++ source.

An example is the indented code that follows a comment line `// Example:` or `// Example: what it shows.`
Each becomes a member function of a class derived from its header's surroundings (header_examples.h),
`struct Around_<stem of the header>`, which declares what the example takes as given. `…` stands for code
that the example leaves out. A header without an example is an error."""

import os
import re
import sys


def examples(text):
    """(number of the line above the code, lines of code) of each example in the opening comment."""
    comment = []
    for line in text.splitlines():
        if not line.startswith("//"):
            break
        comment.append(line)
    code, started = None, 0
    for number, line in enumerate(comment + ["// end"], 1):
        if code is not None:
            if line == "//" or line.startswith("//   "):
                code.append(line[5:])
                continue
            yield started, code
            code = None
        if re.match(r"// Example\b", line):
            code, started = [], number


def main():
    out, headers = sys.argv[1], sys.argv[2:]
    failures = []
    if len(headers) < 10:
        failures.append("%d headers, 10 expected" % len(headers))
    source = ['#include "%s"' % header for header in headers]
    source += ['#include "tests/docs/header_examples.h"', "", "namespace failback {"]
    for header in headers:
        with open(header, encoding="utf-8") as file:
            found = [(line, code) for line, code in examples(file.read()) if any(code)]
        if not found:
            failures.append(header + ": no example in the opening comment")
        stem = os.path.basename(header)[: -len(".h")]
        for number, (line, code) in enumerate(found):
            source += ["", "struct Example%d_%s : Around_%s {" % (number, stem, stem), "absl::Status Run() {",
                       '#line %d "%s"' % (line + 1, header)]
            source += [text.replace("…", "/* … */") for text in code]
            source += ["return absl::OkStatus();", "}", "};"]
    source += ["", "}  // namespace failback", "", "int main() { return 0; }"]
    for failure in failures:
        print(failure)
    if not failures:
        with open(out, "w", encoding="utf-8") as file:
            file.write("\n".join(source) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
