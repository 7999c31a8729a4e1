"""The sidecar's story, told by a service in Node: registered, found, through an outage of the registry,
and gone when the process dies."""

import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
import unittest

from ports import reserved_address

PATIENCE = 30.0


class Program:
    """A process whose lines are waited for."""

    def __init__(self, *argv):
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True)
        self.lines = queue.Queue()
        self.seen = []
        self.unmatched = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))

    def expect(self, text):
        """The first line with `text` that no earlier call took. Lines may come in any order: what a program
        is told by its subscription and what it is answered have none between them."""
        deadline = time.monotonic() + PATIENCE
        while True:
            for line in self.unmatched:
                if text in line:
                    self.unmatched.remove(line)
                    return line
            try:
                line = self.lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError("%r did not come; there was:\n%s" % (text, "\n".join(self.seen)))
            self.seen.append(line)
            self.unmatched.append(line)

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def kill(self):
        self.process.kill()
        self.process.wait()


class NodeClient(unittest.TestCase):
    def start(self, *argv):
        program = Program(*argv)
        self.addCleanup(program.kill)
        return program

    def start_registry(self):
        self.registry = self.start("registry/failback-registry", "--listen", self.address, "--admin", "",
                                   "--store", "sqlite://" + os.path.join(self.folder, "registry.db"))
        self.registry.expect("listening on ")

    def test_a_service_in_node_keeps_itself_registered(self):
        folder = tempfile.TemporaryDirectory(prefix="fb-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.address = reserved_address()
        self.start_registry()
        socket = "unix:" + os.path.join(self.folder, "agent.sock")
        agent = self.start("agent/failback-agent", "--registry", "grpc://" + self.address, "--listen",
                           socket, "--admin", "")
        agent.expect("listening on ")
        script = "tests/gateway/xds/node/sidecar_client.js"
        carts = self.start("node", script, socket, os.path.abspath("proto"))
        carts.expect("session open")
        carts.expect("sees [] current")
        carts.tell("register c1")
        carts.expect("registered c1 INTENT_STATE_ACCEPTED")
        carts.expect("sees [c1] current")

        # The registry dies; what the service says meanwhile is taken at once.
        self.registry.kill()
        carts.tell("register c2")
        carts.expect("registered c2 INTENT_STATE_ACCEPTED")
        carts.tell("unregister c1")
        carts.expect("unregistered c1 INTENT_STATE_ACCEPTED")
        carts.expect("stale")
        carts.tell("pending")
        carts.expect("register default/carts/c2")

        # It comes back, and everything arrives.
        self.start_registry()
        carts.expect("sees [c2] current")

        # Another service sees this one until it is killed: its stream breaks, and its instance goes.
        other = self.start("node", script, socket, os.path.abspath("proto"))
        other.expect("sees [c2] current")
        carts.process.send_signal(signal.SIGKILL)
        other.expect("sees [] current")
        other.tell("close")
        other.expect("closed")
        self.assertEqual(other.process.wait(PATIENCE), 0)


if __name__ == "__main__":
    unittest.main()
