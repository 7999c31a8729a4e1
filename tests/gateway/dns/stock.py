"""Daemons, and programs that discover by DNS, as docs/dns.md configures them.

All run in a network of their own (stock_test.sh), so that they have the ports that the page names, port 53 too."""

import http.client
import http.server
import json
import os
import re
import socketserver
import subprocess
import tempfile
import threading
import time

from eventually import DEADLINE, eventually

AGENT = os.path.abspath("agent/failback-agent")
CTL = os.path.abspath("agent/failbackctl")
REGISTRY = os.path.abspath("registry/failback-registry")
REGISTRY_ADDRESS = "127.0.0.1:7070"
AGENT_ADDRESS = "127.0.0.1:7060"


def run(*args, **kwargs):
    result = subprocess.run(args, capture_output=True, text=True, timeout=DEADLINE, **kwargs)
    if result.returncode != 0:
        raise AssertionError(f"{args}: {result.returncode} {result.stdout} {result.stderr}")
    return result.stdout


def file_of_the_page(name):
    """The block of docs/dns.md that is called `name`."""
    with open("docs/dns.md") as page:
        (text,) = re.findall(r"(?ms)^```%s\n(.*?)^```" % re.escape(name), page.read())
    return text


class Program:
    """A process that writes to a log; ended with the test."""

    def __init__(self, *args, **kwargs):
        self.log = tempfile.TemporaryFile("w+")
        self.args = args
        self.process = subprocess.Popen(args, stdout=self.log, stderr=subprocess.STDOUT,
                                        stdin=subprocess.DEVNULL, **kwargs)

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def check_alive(self):
        if self.process.poll() is not None:
            raise AssertionError(f"{self.args} has ended: {self.said()}")

    def await_line(self, pattern):
        def found():
            match = re.search(pattern, self.said())
            if match is None:
                self.check_alive()
            return match
        return eventually(found, f"{self.args[0]} says {pattern}")

    def stop(self):
        self.process.terminate()
        self.process.wait(DEADLINE)
        self.log.close()

    def kill(self):
        self.process.kill()
        self.process.wait(DEADLINE)
        self.log.close()


def start_registry(*args):
    registry = Program(REGISTRY, "--listen", REGISTRY_ADDRESS, "--store", "memory:", "--admin", "", *args)
    registry.await_line("listening on")
    return registry


def start_agent(*args, before=()):
    agent = Program(*before, AGENT, "--listen", AGENT_ADDRESS, "--registry", f"grpc://{REGISTRY_ADDRESS}",
                    "--admin", "", *args)
    agent.await_line("listening on")
    return agent


def instance(name, port, address="127.0.0.1", service="orders", **more):
    return {"key": {"service": service, "instance_id": name}, "address": address, "port": port, **more}


def register(instances, verb="register"):
    run(CTL, "-t", AGENT_ADDRESS, verb, "-f", "-", *(["--wait", "acknowledged"] if verb == "register" else []),
        input=json.dumps(instances))


def unregister(instances):
    register(instances, "unregister")


def place(port):
    """Where the server of a port is: two of them share an address."""
    return f"127.0.1.{1 + port % 20}"


class Backends:
    """HTTP servers on many ports, at their places; each answers with its port."""

    class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
        daemon_threads = True
        request_queue_size = 128

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):  # pylint: disable=invalid-name
            body = (f"up{{}} 1\n" if self.path == "/metrics" else str(self.server.server_port)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):  # pylint: disable=arguments-differ
            pass

    def __init__(self, ports):
        self.servers = {}
        for port in ports:
            server = self.Server((place(port), port), self.Handler)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            self.servers[port] = server

    def stop(self, ports=None):
        for port in list(self.servers if ports is None else ports):
            server = self.servers.pop(port)
            server.shutdown()
            server.server_close()


def get(port, path="/"):
    """The body of an HTTP answer by 127.0.0.1; raises for another status than 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read().decode()
        if response.status != 200:
            raise AssertionError(f"{port}{path}: {response.status} {body}")
        return body
    finally:
        connection.close()


class Load:
    """Callers that ask a proxy all the time, and count what fails."""

    def __init__(self, port, callers=4):
        self.port = port
        self.stopping = False
        self.calls = 0
        self.failures = []
        self.seen = set()
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.call) for _ in range(callers)]
        for thread in self.threads:
            thread.start()

    def call(self):
        while not self.stopping:
            try:
                body = get(self.port)
                with self.lock:
                    self.calls += 1
                    self.seen.add(body)
            except (AssertionError, OSError, http.client.HTTPException) as error:
                with self.lock:
                    self.failures.append(str(error))
            time.sleep(0.002)

    def take_seen(self):
        with self.lock:
            seen, self.seen = self.seen, set()
            return seen

    def stop(self):
        self.stopping = True
        for thread in self.threads:
            thread.join(DEADLINE)
