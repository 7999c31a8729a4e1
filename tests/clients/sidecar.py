"""A real registry and a real sidecar, for the stories of clients."""

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
import unittest

from ports import reserved_address

PATIENCE = 60.0  # reached only when something is broken


class Processes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="fb-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.target = "unix:" + os.path.join(self.folder, "agent.sock")

    def start(self, *argv):
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.kill, process)
        return process

    @staticmethod
    def kill_daemon(process):
        process.kill()
        process.wait()

    def kill(self, process):
        self.kill_daemon(process)
        process.stdin.close()
        process.stdout.close()

    def until(self, value, expected):
        deadline = time.monotonic() + PATIENCE
        while (found := value()) != expected:
            self.assertLess(time.monotonic(), deadline, "%s, not %s" % (found, expected))
            time.sleep(0.05)


class Sidecar(Processes):
    def setUp(self):
        super().setUp()
        self.address = reserved_address()
        self.start_registry()
        self.start_agent()

    def start_daemon(self, *argv):
        process = self.start(*argv, "--admin", "", "--log-level", "error")
        self.assertIn(" listening on ", process.stdout.readline())
        return process

    def start_registry(self):
        self.registry = self.start_daemon("registry/failback-registry", "--listen", self.address, "--store",
                                          "sqlite://" + os.path.join(self.folder, "registry.db"))

    def start_agent(self):
        self.agent = self.start_daemon("agent/failback-agent", "--listen", self.target, "--registry",
                                       "grpc://" + self.address)

    def pause_agent(self):
        self.agent.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.agent.pid, os.WSTOPPED | os.WNOWAIT)

    def resume_agent(self):
        self.agent.send_signal(signal.SIGCONT)

    def listed(self, service="carts"):
        """{id: port} that the registry has of the service."""
        done = subprocess.run(["agent/failbackctl", "--target", self.address, "list", service, "-o", "json"],
                              capture_output=True, text=True, check=False)
        records = json.loads(done.stdout) if done.returncode == 0 else []
        return {r["instance"]["key"]["instanceId"]: r["instance"]["port"] for r in records}


class Story:
    """A program that uses a client: a line on stdin is a call, lines on stdout say what has come true."""

    def __init__(self, test, *argv):
        self.process = test.start(*argv, test.target)
        self.lines = queue.Queue()
        self.past = []  # lines that have been expected
        self.reader = threading.Thread(target=self.read)
        self.reader.start()
        test.addCleanup(self.reader.join)
        test.addCleanup(self.process.kill)

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))

    def tell(self, *lines):
        self.process.stdin.write("".join(line + "\n" for line in lines))
        self.process.stdin.flush()

    def expect(self, *texts):
        """Lines with the texts, in any order."""
        texts = list(texts)
        while texts:
            line = self.lines.get(timeout=PATIENCE)
            self.past.append(line)
            texts = [text for text in texts if text not in line]
