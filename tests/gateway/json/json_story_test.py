"""The JSON door of real daemons, with curl: register, renew, follow, errors, through an outage."""

import json
import os
import re
import signal
import subprocess
import tempfile
import unittest

from eventually import DEADLINE, eventually
from ports import reserved_address

AGENT = os.path.abspath("agent/failback-agent")
REGISTRY = os.path.abspath("registry/failback-registry")


class Daemon:
    def __init__(self, program, *args):
        self.args = [program, *args]
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.args, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        said = re.search(r"http (127\S+)$", line.strip())
        if said is None:
            raise AssertionError(f"{self.args}: {line!r}")
        self.http = said.group(1)

    def kill(self):
        self.process.kill()
        self.process.communicate()

    def stop(self):
        self.process.terminate()
        self.process.communicate(timeout=DEADLINE)


def curl(address, path, *args, body=None):
    """The status, the body (JSON, if it is) and the headers."""
    command = ["curl", "-sS", "--max-time", str(DEADLINE), "-D", "/dev/stderr", *args, f"http://{address}{path}"]
    if body is not None:
        command += ["-d", body if isinstance(body, str) else json.dumps(body)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    status = re.findall(r"HTTP/1.1 (\d+)", result.stderr)
    if not status:
        raise AssertionError(f"{command}: {result.stderr}")
    headers = {name.lower(): value for name, value in re.findall(r"(?m)^([\w-]+): (.*?)\r?$", result.stderr)}
    is_json = "json" in headers.get("content-type", "")
    return int(status[-1]), json.loads(result.stdout) if is_json and result.stdout else result.stdout, headers


class Stream:
    """`curl -N` of an event stream."""

    def __init__(self, address, path, *args):
        self.process = subprocess.Popen(["curl", "-sN", "-H", "Accept: text/event-stream", *args,
                                         f"http://{address}{path}"], stdout=subprocess.PIPE, text=True)

    def event(self):
        """The next event: its name, id and data; comments are left out."""
        name = number = None
        for line in self.process.stdout:
            line = line.rstrip("\n")
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("id: "):
                number = line[4:]
            elif line.startswith("data: "):
                return name, number, json.loads(line[6:])
        raise AssertionError("the stream has ended")

    def close(self):
        self.process.kill()
        self.process.communicate()


def ids(service):
    return sorted(instance["key"]["instanceId"] for instance in service["instances"])


class JsonStoryTest(unittest.TestCase):
    def setUp(self):
        signal.alarm(280)
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.grpc = reserved_address()
        self.registry = Daemon(REGISTRY, "--listen", self.grpc, "--store", f"sqlite://{self.folder.name}/store.db",
                               "--admin", "", "--http", reserved_address())
        self.addCleanup(lambda: self.registry.kill())
        self.agent = Daemon(AGENT, "--listen", reserved_address(), "--admin", "", "--registry", f"grpc://{self.grpc}",
                            "--http", reserved_address())
        self.addCleanup(lambda: self.agent.kill())

    def test_register_read_remove(self):
        for daemon in (self.registry, self.agent):
            with self.subTest(daemon.args[0]):
                path = "/v1/services/team%2Forders/instances/a"
                status, put, _ = curl(daemon.http, path, "-X", "PUT", body={"address": "10.0.0.7", "port": 8080})
                self.assertEqual(status, 200, put)
                self.assertTrue(put["persistent"])
                self.assertEqual(put["key"], {"namespace": "default", "service": "team/orders", "instanceId": "a"})
                service = eventually(lambda: (lambda got: got if ids(got) == ["a"] else None)(
                    curl(daemon.http, "/v1/services/team%2Forders")[1]), "it is there")
                self.assertEqual(service["instances"][0]["address"], "10.0.0.7")
                listed = curl(daemon.http, "/v1/services")[1]
                self.assertIn({"service": "team/orders", "instances": "1"}, listed["services"])
                status, gone, _ = curl(daemon.http, path, "-X", "DELETE")
                self.assertEqual((status, gone["persistent"]), (200, False))
                eventually(lambda: ids(curl(daemon.http, "/v1/services/team%2Forders")[1]) == [], "it is gone")

    def test_what_is_put_at_one_door_is_seen_at_the_other(self):
        curl(self.agent.http, "/v1/services/orders/instances/1", "-X", "PUT", body={"address": "10.0.0.7", "port": 1})
        eventually(lambda: ids(curl(self.registry.http, "/v1/services/orders")[1]) == ["1"], "it arrived")

    def test_a_ttl(self):
        for name, daemon in (("orders", self.registry), ("payments", self.agent)):
            path = f"/v1/services/{name}/instances/1"
            status, put, _ = curl(daemon.http, path + "?ttl=2s", "-X", "PUT", body={"address": "h", "port": 1})
            self.assertEqual((status, put["persistent"], put["ttl"]), (200, False, "2s"), put)
            self.assertEqual(curl(daemon.http, path + "/renew", "-X", "POST")[0], 200)
            eventually(lambda: ids(curl(self.registry.http, f"/v1/services/{name}")[1]) == ["1"], "it is there")
            curl(daemon.http, path + "?ttl=2s", "-X", "PUT", body={"address": "h", "port": 1})
            eventually(lambda: ids(curl(daemon.http, f"/v1/services/{name}")[1]) == [], "it has expired")
            status, problem, headers = curl(daemon.http, path + "/renew", "-X", "POST")
            self.assertEqual((status, problem["reason"]), (404, "NOT_FOUND"))
            self.assertEqual(headers["content-type"], "application/problem+json")

    def test_a_stream_goes_on_through_a_restart_of_the_registry(self):
        path = "/v1/services/orders/instances/"
        curl(self.registry.http, path + "1", "-X", "PUT", body={"address": "h", "port": 1})
        stream = Stream(self.registry.http, "/v1/services/orders")
        self.addCleanup(stream.close)
        name, first, data = stream.event()
        self.assertEqual((name, ids(data)), ("snapshot", ["1"]))
        curl(self.registry.http, path + "2", "-X", "PUT", body={"address": "h", "port": 2})
        name, second, data = stream.event()
        self.assertEqual((name, data["upserts"][0]["key"]["instanceId"]), ("delta", "2"))
        self.assertEqual(data["baseRevision"], first.split(".")[1])
        curl(self.registry.http, path + "1", "-X", "DELETE")
        name, third, data = stream.event()
        self.assertEqual((name, data["removals"][0]["instanceId"]), ("delta", "1"))
        self.registry.kill()
        self.registry.start()
        # From where it was: nothing is repeated.
        again = Stream(self.registry.http, "/v1/services/orders", "-H", f"Last-Event-ID: {third}")
        self.addCleanup(again.close)
        eventually(lambda: curl(self.registry.http, path + "3", "-X", "PUT", body={"address": "h", "port": 3})[0] == 200,
                   "it serves again")
        name, _, data = again.event()
        present = ids(data) if name == "snapshot" else [one["key"]["instanceId"] for one in data["upserts"]]
        self.assertIn("3", present)
        # From an older place: the whole.
        old = Stream(self.registry.http, "/v1/services/orders", "-H", f"Last-Event-ID: {second}")
        self.addCleanup(old.close)
        name, _, data = old.event()
        self.assertEqual((name, ids(data)), ("snapshot", ["2", "3"]))

    def test_an_agent_in_an_outage(self):
        curl(self.agent.http, "/v1/services/orders/instances/1", "-X", "PUT", body={"address": "h", "port": 1})
        eventually(lambda: ids(curl(self.agent.http, "/v1/services/orders")[1]) == ["1"], "it is there")
        self.registry.kill()
        eventually(lambda: curl(self.agent.http, "/v1/services/orders")[1]["stale"], "it is stale")
        status, put, _ = curl(self.agent.http, "/v1/services/orders/instances/2", "-X", "PUT",
                              body={"address": "h", "port": 2})
        self.assertEqual((status, put["state"]), (200, "INTENT_STATE_ACCEPTED"))
        pending = curl(self.agent.http, "/v1/pending")[1]["operations"]
        self.assertIn("register default/orders/2", [row["id"] for row in pending])
        self.registry.start()
        status, _, _ = curl(self.agent.http, "/v1/pending/retry", "-X", "POST")
        self.assertEqual(status, 200)
        eventually(lambda: ids(curl(self.registry.http, "/v1/services/orders")[1]) == ["1", "2"], "both arrived")
        self.assertEqual(curl(self.registry.http, "/v1/pending")[0], 501)

    def test_a_long_poll(self):
        path = "/v1/services/orders"
        curl(self.registry.http, path + "/instances/1", "-X", "PUT", body={"address": "h", "port": 1})
        now = curl(self.registry.http, path)[1]
        place = f"?epoch={now['epoch']}&revision={now['revision']}"
        unchanged = curl(self.registry.http, path + place + "&wait=1s")[1]
        self.assertEqual(unchanged, now)
        waiting = subprocess.Popen(["curl", "-s", f"http://{self.registry.http}{path}{place}&wait=60s"],
                                   stdout=subprocess.PIPE, text=True)
        curl(self.registry.http, path + "/instances/2", "-X", "PUT", body={"address": "h", "port": 2})
        self.assertEqual(ids(json.loads(waiting.communicate(timeout=DEADLINE)[0])), ["1", "2"])

    def test_bad_input(self):
        good = {"address": "h", "port": 1}
        path = "/v1/services/orders/instances/1"
        for method, target, body, status, reason, words in (
                ("PUT", path, "", 400, "INVALID_FIELD", "body: is empty"),
                ("PUT", path, "{", 400, "INVALID_FIELD", "body: "),
                ("PUT", path, "[" * 5000, 400, "INVALID_FIELD", "body: "),
                ("PUT", path, {"address": "h", "port": "eighty"}, 400, "INVALID_FIELD", "port"),
                ("PUT", path, {"address": "h", "prot": 1}, 400, "INVALID_FIELD", "prot"),
                ("PUT", path, {"address": "h", "port": 70000}, 400, "INVALID_FIELD", "port: 70000 is not in 1..65535"),
                ("PUT", path, {**good, "persistent": "yes"}, 400, "INVALID_FIELD", "true, false"),
                ("PUT", path, {**good, "key": {"service": "other"}}, 400, "INVALID_FIELD", "key.service: "),
                ("PUT", path + "?ttl=soon", good, 400, "INVALID_FIELD", "ttl: \"soon\""),
                ("PUT", path + "?ttl=100h", good, 400, "INVALID_FIELD", "24h"),
                ("PUT", path + "?tll=3s", good, 400, "INVALID_FIELD", "tll"),
                ("PUT", path + "?ttl=2s&ttl=1h", good, 400, "INVALID_FIELD", "\"ttl\" is there twice"),
                ("PUT", path, '{"address": "h", "port": 1, "metadata": {"a": "1", "a": "2"}}', 400, "INVALID_FIELD",
                 "metadata[\"a\"]: is there twice"),
                ("POST", "/v1/tickets?for=1", {"path": "/v1/services/a"}, 400, "INVALID_FIELD", "no parameter is taken"),
                ("PUT", path + "?namespace=-", good, 400, "INVALID_FIELD", "namespace"),
                ("PUT", "/v1/services/%00/instances/1", good, 400, "INVALID_FIELD", "service"),
                ("PUT", "/v1/services/%zz/instances/1", good, 400, "INVALID_FIELD", "path"),
                ("PUT", path, "{\"address\": \"" + "x" * 70000 + "\"}", 413, "TOO_LARGE", "65536"),
                ("GET", "/v1/services/orders?epoch=1", None, 400, "INVALID_FIELD", "revision: is missing"),
                ("GET", "/v1/services/orders?epoch=1&revision=x", None, 400, "INVALID_FIELD", "revision: "),
                ("GET", "/v1/services/-", None, 400, "INVALID_FIELD", "service"),
                ("GET", "/v2", None, 404, "NOT_FOUND", "GET /v1/services"),
                ("DELETE", "/v1/services", None, 405, "UNSUPPORTED", "takes GET")):
            with self.subTest(method + " " + target[:60] + " " + str(body)[:30]):
                got, problem, headers = curl(self.registry.http, target, "-X", method, body=body)
                self.assertEqual((got, problem["reason"]), (status, reason), problem)
                self.assertEqual(problem["status"], status)
                self.assertIn(words, problem["detail"])
                self.assertLess(len(problem["detail"]), 1000)
                self.assertEqual(headers["content-type"], "application/problem+json")
        self.assertEqual(curl(self.registry.http, "/v1/services")[1]["services"], [])

    def test_pages_of_other_sites_change_nothing(self):
        body = {"address": "h", "port": 1}
        path = "/v1/services/orders/instances/1"
        for headers in (["-H", "Origin: http://evil.example"], ["-H", "Host: evil.example"],
                        ["-H", "Sec-Fetch-Site: cross-site"]):
            status, problem, _ = curl(self.registry.http, path, "-X", "PUT", *headers, body=body)
            self.assertEqual((status, problem["reason"]), (403, "ACCESS_DENIED"))
        _, _, headers = curl(self.registry.http, "/v1/services", "-H", "Origin: http://evil.example")
        self.assertNotIn("access-control-allow-origin", headers)

    def test_prometheus_and_openapi(self):
        curl(self.registry.http, "/v1/services/orders/instances/1", "-X", "PUT",
             body={"address": "::1", "port": 1, "zone": "eu", "metadata": {"a-b": "c"}})
        (target,) = curl(self.registry.http, "/v1/prometheus")[1]
        self.assertEqual(target["targets"], ["[::1]:1"])
        self.assertEqual(target["labels"]["__meta_failback_service"], "orders")
        self.assertEqual(target["labels"]["__meta_failback_metadata_a_b"], "c")
        document = curl(self.registry.http, "/openapi.json")[1]
        self.assertEqual(document["openapi"], "3.0.3")
        put = document["paths"]["/v1/services/{service}/instances/{id}"]["put"]
        self.assertIn("ServiceInstance", json.dumps(put["requestBody"]))
        for reference in re.findall(r'"\$ref": "#/components/schemas/([^"]+)"', json.dumps(document)):
            self.assertIn(reference, document["components"]["schemas"])


if __name__ == "__main__":
    unittest.main()
