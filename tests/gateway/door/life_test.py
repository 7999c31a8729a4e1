"""Instances that live through the doors of real daemons: restarts, outages, expiry, and the end of a daemon."""

import json
import os
import re
import signal
import unittest

from doors import Doors
from ports import reserved_address

JSON_PATH = "/v1/services/orders/instances/"


class LifeTest(Doors):
    def start_daemon(self, program, *argv):
        process = self.start(program, *argv, "--admin", self.admin[program], "--log-level", "error")
        self.assertIn(", http 127.0.0.1:", process.stdout.readline())
        return process

    def start_registry(self):
        if not hasattr(self, "json"):
            self.json = {"agent": reserved_address(), "registry": reserved_address()}
            self.admin = {program: reserved_address() for program in (
                "agent/failback-agent", "registry/failback-registry")}
            self.state = os.path.join(self.folder, "state")
            os.mkdir(self.state)
        self.registry = self.start_daemon(
            "registry/failback-registry", "--listen", self.address, "--consul", self.consul["registry"], "--eureka",
            self.eureka["registry"], "--http", self.json["registry"], "--store",
            "sqlite://" + os.path.join(self.folder, "registry.db"))

    def start_agent(self):
        self.agent = self.start_daemon(
            "agent/failback-agent", "--listen", self.agent_address, "--registry", "grpc://" + self.address, "--consul",
            self.consul["agent"], "--eureka", self.eureka["agent"], "--http", self.json["agent"], "--state-dir", self.state)

    def consul_call(self, path, body=None, method="PUT"):
        return self.http(self.consul["agent"], path, method, None if body is None else json.dumps(body))

    def register(self, instance_id, check=None):
        body = {"Name": "orders", "ID": instance_id, "Address": "10.0.0.7", "Port": 8080}
        if check is not None:
            body["Check"] = check
        self.assertEqual(self.consul_call("/v1/agent/service/register", body), (200, ""))

    def put_json(self, instance_id, query="", door="agent"):
        status, text = self.http(self.json[door], JSON_PATH + instance_id + query, "PUT",
                                 json.dumps({"address": "10.0.0.8", "port": 1}))
        self.assertEqual(status, 200, text)

    def post_eureka(self, instance_id, lease):
        status, text = self.http(self.eureka["agent"], "/eureka/apps/ORDERS", "POST", json.dumps(
            {"instance": {"instanceId": instance_id, "hostName": "h", "ipAddr": "10.0.0.9", "port": {"$": 8080},
                          "leaseInfo": {"durationInSecs": lease}}}))
        self.assertEqual(status, 204, text)

    def checks(self):
        """{id: status}, as the agent has them."""
        status, text = self.consul_call("/v1/agent/checks", method="GET")
        self.assertEqual(status, 200)
        return {check_id: check["Status"] for check_id, check in json.loads(text).items()}

    def test_an_agent_goes_on_with_what_clients_of_consul_have_registered(self):
        target = reserved_address()
        probed = self.start("registry/failback-registry", "--listen", target, "--admin", "", "--store", "memory:",
                            "--log-level", "error")
        self.assertIn(" listening on ", probed.stdout.readline())
        self.register("ttl", {"TTL": "60s"})
        self.register("probed", {"TCP": target, "Interval": "100ms", "Timeout": "1s"})
        self.register("plain")
        self.assertEqual(self.consul_call("/v1/agent/check/pass/service:ttl")[0], 200)
        self.assertEqual(self.consul_call("/v1/agent/service/maintenance/plain?enable=1&reason=disk")[0], 200)
        self.until(lambda: self.checks().get("service:probed"), "passing")
        before = self.checks()
        self.until(lambda: len(os.listdir(os.path.join(self.state, "consul"))), 3)
        self.until(self.ids, ["plain", "probed", "ttl"])
        self.kill_daemon(self.agent)
        self.start_agent()
        self.assertEqual(self.checks(), before)
        self.assertEqual(self.consul_call("/v1/agent/check/pass/service:ttl")[0], 200)
        self.until(self.ids, ["plain", "probed", "ttl"])
        # The probes run.
        self.kill_daemon(probed)
        self.until(lambda: self.checks().get("service:probed"), "critical")
        self.until(lambda: self.healthy("probed"), False)
        self.assertEqual(self.consul_call("/v1/agent/service/maintenance/plain?enable=0")[0], 200)
        self.until(lambda: self.healthy("plain"), True)
        for instance_id in "plain", "probed", "ttl":
            self.assertEqual(self.consul_call("/v1/agent/service/deregister/" + instance_id)[0], 200)
        self.until(self.ids, [])
        self.until(lambda: os.listdir(os.path.join(self.state, "consul")), [])
        self.kill_daemon(self.agent)
        self.start_agent()
        self.assertEqual(self.checks(), {})

    def test_what_is_owed_in_an_outage_is_shown_arrives_and_expires(self):
        self.kill_daemon(self.registry)
        self.register("consul", {"TTL": "3s"})
        self.put_json("json", "?ttl=3s")
        self.post_eureka("eureka", 3)
        self.put_json("stays")

        def pending():
            operations = json.loads(self.ctl("pending", "-o", "json", target=self.agent_address))
            operations = operations.get("operations", []) if isinstance(operations, dict) else operations
            return sorted(one["id"].rpartition("/")[2] for one in operations if one["id"].startswith("register "))

        def renewed():
            # Else they are over before the registry has them.
            self.consul_call("/v1/agent/check/pass/service:consul")
            self.put_json("json", "?ttl=3s")
            self.post_eureka("eureka", 3)
        renewed()
        self.assertEqual(pending(), ["consul", "eureka", "json", "stays"])
        self.start_registry()

        def arrived():
            renewed()
            return self.ids()
        self.until(arrived, ["consul", "eureka", "json", "stays"])

        # Each door shows all of them.
        def healthy():
            renewed()
            entries = json.loads(self.consul_call("/v1/health/service/orders?passing=1", method="GET")[1])
            return [entry["Service"]["ID"] for entry in entries]
        self.until(healthy, ["consul", "eureka", "json", "stays"])
        # And without renewals they go, but the one that needs none.
        self.until(self.ids, ["stays"])
        self.until(pending, [])

        def through(address, path):
            return self.http(address, path, headers={"Accept": "application/json"})
        for door in "agent", "registry":
            self.until(lambda d=door: [x["key"]["instanceId"] for x in json.loads(
                through(self.json[d], "/v1/services/orders")[1])["instances"]], ["stays"])
            self.until(lambda d=door: [x["ServiceID"] for x in json.loads(
                through(self.consul[d], "/v1/catalog/service/orders")[1])], ["stays"])
            self.until(lambda d=door: [x["instanceId"] for x in json.loads(
                through(self.eureka[d], "/eureka/apps/ORDERS")[1])["application"]["instance"]], ["stays"])
        # Whose client comes back is told so, or is registered again.
        self.assertEqual(self.http(self.eureka["agent"], "/eureka/apps/ORDERS/eureka", "PUT")[0], 404)
        self.assertEqual(self.http(self.json["agent"], JSON_PATH + "json/renew", "POST")[0], 404)
        self.assertEqual(self.consul_call("/v1/agent/check/pass/service:consul")[0], 200)
        self.until(self.ids, ["consul", "stays"])

    def test_a_long_poll_that_knows_a_stale_state_waits_for_the_next(self):
        self.put_json("one")
        path = "/v1/services/orders"
        self.until(lambda: len(json.loads(self.http(self.json["agent"], path)[1])["instances"]), 1)
        self.kill_daemon(self.registry)
        self.until(lambda: json.loads(self.http(self.json["agent"], path)[1])["stale"], True)
        state = json.loads(self.http(self.json["agent"], path)[1])
        place = "?epoch=%s&revision=%s&wait=" % (state["epoch"], state["revision"])
        self.assertEqual(json.loads(self.http(self.json["agent"], path + place + "1s")[1]), state)
        waits = self.start("curl", "-s", "http://%s%s%s60s" % (self.json["agent"], path, place))
        self.start_registry()
        text = waits.stdout.read()
        self.assertNotEqual(json.loads(text), state, "it was answered with what it knew")

    def test_who_waits_is_answered_when_a_daemon_ends(self):
        self.put_json("one", door="registry")
        self.until(lambda: len(json.loads(self.http(self.json["agent"], "/v1/services/orders")[1])["instances"]), 1)
        for door, process in ("agent", self.agent), ("registry", self.registry):
            state = json.loads(self.http(self.json[door], "/v1/services/orders")[1])
            place = "?epoch=%s&revision=%s&wait=300s" % (state["epoch"], state["revision"])
            polls = [self.start("curl", "-s", "-w", "\n%{http_code}", "http://%s/v1/services/orders%s" %
                                (self.json[door], place))]
            index = self.start("curl", "-s", "-D", "-", "-o", "/dev/null", "http://%s/v1/health/service/orders" %
                               self.consul[door]).stdout.read()
            (index,) = [line.split(": ")[1].strip() for line in index.splitlines() if line.startswith("X-Consul-Index")]
            polls.append(self.start("curl", "-s", "-w", "\n%{http_code}",
                                    "http://%s/v1/health/service/orders?index=%s&wait=300s" %
                                    (self.consul[door], index)))
            stream = self.start("curl", "-sN", "-w", "%{exitcode}", "-H", "Accept: text/event-stream",
                                "http://%s/v1/services/orders" % self.json[door])
            while stream.stdout.readline() != "event: snapshot\n":
                pass
            program = "%s/failback-%s" % (door, door)
            self.until(lambda p=program: self.parked(p), {"http": 2, "consul": 1, "eureka": 0})
            process.send_signal(signal.SIGTERM)
            for poll in polls:
                text, _, status = poll.stdout.read().rpartition("\n")
                self.assertEqual(status, "503", text)
                self.assertIn("the server is stopping", text)
            self.assertTrue(stream.stdout.read().endswith("\n\n0"), "the stream has an end")
            self.assertEqual(process.wait(timeout=60), 0)

    def parked(self, program):
        """Requests that wait, by listener, as the daemon's metrics have it."""
        text = self.http(self.admin[program], "/metrics")[1]
        return {listener: int(count) for listener, count in
                re.findall(r'(?m)^failback_http_parked\{listener="(\w+)"\} (\d+)$', text)}


if __name__ == "__main__":
    unittest.main()
