"""A real registry and a real sidecar, for the stories of clients."""

import json
import os
import subprocess
import tempfile
import time
import unittest

from ports import reserved_address

PATIENCE = 60.0  # reached only when something is broken


class Sidecar(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="fb-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.address = reserved_address()
        self.target = "unix:" + os.path.join(self.folder, "agent.sock")
        self.start_registry()
        self.start_agent()

    def start(self, *argv):
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.kill, process)
        return process

    def start_daemon(self, *argv):
        process = self.start(*argv, "--admin", "", "--log-level", "error")
        self.assertIn(" listening on ", process.stdout.readline())
        return process

    @staticmethod
    def kill_daemon(process):
        process.kill()
        process.wait()

    def kill(self, process):
        self.kill_daemon(process)
        process.stdin.close()
        process.stdout.close()

    def start_registry(self):
        self.registry = self.start_daemon("registry/failback-registry", "--listen", self.address, "--store",
                                          "sqlite://" + os.path.join(self.folder, "registry.db"))

    def start_agent(self):
        self.agent = self.start_daemon("agent/failback-agent", "--listen", self.target, "--registry",
                                       "grpc://" + self.address)

    def listed(self, service="carts"):
        """{id: port} that the registry has of the service."""
        done = subprocess.run(["agent/failbackctl", "--target", self.address, "list", service, "-o", "json"],
                              capture_output=True, text=True, check=False)
        records = json.loads(done.stdout) if done.returncode == 0 else []
        return {r["instance"]["key"]["instanceId"]: r["instance"]["port"] for r in records}

    def until(self, value, expected):
        deadline = time.monotonic() + PATIENCE
        while (found := value()) != expected:
            self.assertLess(time.monotonic(), deadline, "%s, not %s" % (found, expected))
            time.sleep(0.05)
