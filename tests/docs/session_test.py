"""Runs the `$` commands of a page, in order and in one shell, and compares what they print with what the page
says. `…` in the page stands for anything. Places are replaced: /run/failback, and ports."""

import http.server
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time

from ports import reserved_address


def wait_until_open(address):
    """Until somebody listens at the address; for 30 s at most."""
    host, port = address.split(":")
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def commands(page):
    """(command, expected output) of each command in blocks without a language."""
    for block in re.findall(r"^```\n(.*?)^```", page, re.S | re.M):
        command, expected, ends = None, "", None
        for line in block.splitlines():
            if ends is not None:
                command += "\n" + line
                if line == ends:
                    ends = None
            elif line.startswith("$ "):
                if command is not None:
                    yield command, expected
                command, expected = line[2:], ""
                here = re.search(r"<<'(\w+)'", line)
                ends = here.group(1) if here else None
            else:
                expected += line + "\n"
        if command is not None:
            yield command, expected


class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):  # pylint: disable=invalid-name
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args):
        pass


def matches(expected, actual):
    pattern = ".*".join(re.escape(part) for part in expected.split("…"))
    return re.fullmatch(pattern, actual) is not None


def main():
    page = open(sys.argv[1], encoding="utf-8").read()
    app = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Healthy)
    threading.Thread(target=app.serve_forever, daemon=True).start()
    bin_folders = [os.path.abspath("agent"), os.path.abspath("registry")]
    failures = 0
    with tempfile.TemporaryDirectory(prefix="fb-") as folder:
        registry = reserved_address()
        places = {"/run/failback": folder, "127.0.0.1:7070": registry,
                  "port: 8080": "port: %d" % app.server_address[1]}

        def here(text):
            for old, new in places.items():
                text = text.replace(old, new)
            return text

        environment = dict(os.environ, PATH=":".join(bin_folders + [os.environ["PATH"]]))
        daemon = subprocess.Popen(
            ["failback-registry", "--listen", registry, "--store", "memory:", "--admin", ""], env=environment,
            executable=os.path.abspath("registry/failback-registry"), stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        wait_until_open(registry)
        # One shell for all: variables and background jobs live on.
        shell = subprocess.Popen(["/bin/bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, env=environment, cwd=folder, text=True)
        count = 0
        try:
            for command, expected in commands(page):
                count += 1
                background = command.endswith("&")
                line = here(command)
                if background:
                    line = ": >daemon.log\n" + line[:-1] + ">>daemon.log 2>&1 &"
                    line += "\njobs_started=\"$jobs_started $!\""
                    line += "\nfor i in $(seq 300); do grep -q 'listening on' daemon.log && break; sleep 0.1; done"
                shell.stdin.write(line + "\necho \"--- end\"\n")
                shell.stdin.flush()
                actual = ""
                while not actual.endswith("--- end\n"):
                    read = shell.stdout.readline()
                    if not read:
                        raise SystemExit("the shell ended after: " + command)
                    actual += read
                actual = actual[: -len("--- end\n")]
                if not matches(here(expected), actual):
                    failures += 1
                    print("$ %s\nexpected:\n%sfound:\n%s" % (command, expected, actual))
        finally:
            shell.stdin.write("kill $jobs_started; wait $jobs_started\n")
            shell.stdin.close()
            shell.wait(60)
            daemon.kill()
            daemon.wait()
    if count == 0:
        print("no commands found")
    print("%d commands, %d failed" % (count, failures))
    return 1 if failures or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
