"""The real daemons and failbackctl for tests in Python, and a terminal to run it at."""

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import tempfile
import termios
import time

from ports import reserved_address

TIMEOUT = 60  # reached only when something is broken
CTL = os.path.abspath("agent/failbackctl")


class Daemon:
    """A daemon that serves. Its log goes to a file; `address` is where."""

    def __init__(self, name, *args):
        self._log = tempfile.NamedTemporaryFile("w+", prefix="fb-", suffix=".log")
        binary = os.path.abspath(("registry/" if name == "failback-registry" else "agent/") + name)
        self._process = subprocess.Popen([binary, *args], stdout=self._log, stderr=self._log)
        marker = name + " listening on "
        line = wait_for(lambda: next((l for l in self.log().splitlines() if marker in l), None),
                        self.log)
        self.address = line.split(marker)[1].split(", ")[0].split(" and ")[0]

    def log(self):
        with open(self._log.name, encoding="utf-8") as log:
            return log.read()

    def signal(self, number):
        self._process.send_signal(number)

    def kill(self):
        self._process.kill()
        self._process.wait()


def registry(*args, listen=None):
    return Daemon("failback-registry", "--store", "memory:", "--listen", listen or reserved_address(),
                  "--admin", "", *args)


def agent(upstream, *args):
    return Daemon("failback-agent", "--registry", "grpc://" + upstream.address, "--listen",
                  reserved_address(), "--admin", "", *args)


def wait_for(condition, describe=lambda: ""):
    """What `condition` returns once it is true; fails after TIMEOUT."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError("waited in vain; %s" % describe())
        time.sleep(0.02)


def ctl(target, *args, stdin=None, env=None):
    """(exit status, stdout, stderr)"""
    done = subprocess.run([CTL, "--target", target, "--timeout", "30s", *args], input=stdin, capture_output=True,
                          text=True, timeout=TIMEOUT, env=dict(os.environ, **(env or {})),
                          check=False)
    return done.returncode, done.stdout, done.stderr


def register(target, service, instance_id, *args):
    status, _, err = ctl(target, "register", service, "--id", instance_id, "--address", "10.0.0.7",
                         "--port", "8080", "--wait", "acknowledged", *args)
    assert status == 0, err


def listed(target, service):
    return sorted(record["instance"]["key"]["instanceId"]
                  for record in json.loads(ctl(target, "list", service, "-o", "json")[1]))


class Terminal:
    """A program at a terminal: what it draws, keys for it, its exit status."""

    def __init__(self, argv, rows=24, columns=100, env=None):
        self.output = ""
        self._status = None
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.environ.pop("NO_COLOR", None)
            os.environ.update({"TERM": "xterm", **(env or {})})
            os.execvp(argv[0], argv)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _read(self, timeout):
        if not select.select([self._fd], [], [], timeout)[0]:
            return False
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # the other end is closed
            data = b""
        self.output += data.decode("utf-8", "replace")
        return bool(data)

    def wait_for(self, text, after=0):
        """Waits until `text` was written past the first `after` characters; where it ends."""
        deadline = time.monotonic() + TIMEOUT
        while text not in self.output[after:]:
            if time.monotonic() > deadline or (not self._read(0.2) and self._ended()):
                raise AssertionError("%r was not written in:\n%s" % (text, self.output))
        return self.output.index(text, after) + len(text)

    def _ended(self):
        if self._status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid != 0:
                self._status = status
        return self._status is not None

    def type(self, keys):
        os.write(self._fd, keys.encode())

    def wait(self):
        """The exit status, or minus the signal that ended it."""
        deadline = time.monotonic() + TIMEOUT
        while not self._ended():
            assert time.monotonic() < deadline, self.output
            self._read(0.05)
        while self._read(0):
            pass
        return os.waitstatus_to_exitcode(self._status)

    def close(self):
        if not self._ended():
            os.kill(self._pid, signal.SIGKILL)
            self.wait()
        os.close(self._fd)
