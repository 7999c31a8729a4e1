"""A real registry and a real sidecar with doors for Consul and Eureka, for stock clients."""

import json
import os
import queue
import subprocess
import threading
import urllib.error
import urllib.request

from ports import reserved_address
from sidecar import PATIENCE, Processes


class Doors(Processes):
    """`self.agent` and `self.registry` run; the addresses of their doors are `self.consul["agent"]` and so on."""

    def setUp(self):
        super().setUp()
        self.address = reserved_address()
        self.agent_address = reserved_address()
        self.consul = {"agent": reserved_address(), "registry": reserved_address()}
        self.eureka = {"agent": reserved_address(), "registry": reserved_address()}
        self.start_registry()
        self.start_agent()

    def start_daemon(self, *argv):
        process = self.start(*argv, "--admin", "", "--log-level", "error")
        line = process.stdout.readline()
        self.assertIn(" listening on ", line)
        self.assertIn(", consul 127.0.0.1:", line)
        self.assertIn(", eureka 127.0.0.1:", line)
        return process

    def start_registry(self):
        self.registry = self.start_daemon(
            "registry/failback-registry", "--listen", self.address, "--consul", self.consul["registry"], "--eureka",
            self.eureka["registry"], "--store", "sqlite://" + os.path.join(self.folder, "registry.db"))

    def start_agent(self):
        self.agent = self.start_daemon(
            "agent/failback-agent", "--listen", self.agent_address, "--registry", "grpc://" + self.address, "--consul",
            self.consul["agent"], "--eureka", self.eureka["agent"])

    def ctl(self, *argv, target=None):
        done = subprocess.run(["agent/failbackctl", "--target", target or self.address, *argv], capture_output=True,
                              text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def listed(self, service="orders"):
        """{id: record} that the registry has of the service; nothing while it cannot be asked."""
        done = subprocess.run(["agent/failbackctl", "--target", self.address, "list", service, "-o", "json"],
                              capture_output=True, text=True, check=False)
        records = json.loads(done.stdout) if done.returncode == 0 else []
        return {record["instance"]["key"]["instanceId"]: record for record in records}

    def ids(self, service="orders"):
        return sorted(self.listed(service))

    def healthy(self, instance_id, service="orders"):
        record = self.listed(service).get(instance_id)
        return record is not None and record["instance"].get("status") in (None, "HEALTH_STATUS_HEALTHY")

    def http(self, address, path, method="GET", body=None, headers=None):
        """(status, text)."""
        request = urllib.request.Request("http://%s%s" % (address, path), method=method, headers=headers or {},
                                         data=None if body is None else body.encode())
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def run_node(self, folder, program, *argv):
        """The lines that a program prints, as they come; it has the modules of tests/gateway/FOLDER/node."""
        modules = os.path.join(os.path.dirname(os.path.realpath("tests/gateway/%s/node/package.json" % folder)),
                               "node_modules")
        process = subprocess.Popen(["node", os.path.realpath(program), *argv], stdout=subprocess.PIPE,
                                   stdin=subprocess.PIPE, text=True, env=dict(os.environ, NODE_PATH=modules))
        self.addCleanup(self.kill, process)
        return Lines(self, process)


class Lines:
    """What a program says, line by line."""

    def __init__(self, test, process):
        self.process = process
        self.lines = queue.Queue()
        self.past = []
        self.newest = {}
        reader = threading.Thread(target=self.read, daemon=True)
        reader.start()
        test.addCleanup(reader.join)
        test.addCleanup(process.kill)

    def read(self):
        for line in self.process.stdout:
            word, _, rest = line.rstrip("\n").partition(" ")
            self.newest[word] = rest
            self.lines.put(line.rstrip("\n"))

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def expect(self, text):
        """Waits for a line with the text, and returns it."""
        while True:
            try:
                line = self.lines.get(timeout=PATIENCE)
            except queue.Empty:
                raise AssertionError("no %r after %r" % (text, self.past)) from None
            self.past.append(line)
            if text in line:
                return line
