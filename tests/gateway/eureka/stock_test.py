"""Stock clients of Eureka against real daemons, and through a restart of the registry."""

import json
import os
import subprocess
import unittest

from doors import Doors
from ports import reserved_address


class NpmEurekaTest(Doors):
    """The npm package `eureka-js-client`."""

    def client(self, door, instance_id, *more):
        client = self.run_node("eureka", "tests/gateway/eureka/client.js", self.eureka[door], instance_id, *more)
        client.tell("start")
        client.expect("done start")
        return client

    def test_registers_renews_sees_and_goes(self):
        # An id for each: what one door has unregistered is fenced against older incarnations for a while.
        for door, name in ("registry", "r1"), ("agent", "a1"):
            client = self.client(door, name)
            client.expect("heartbeat")
            client.expect("heartbeat")
            self.until(self.ids, [name])
            record = self.listed()[name]["instance"]
            self.assertEqual((record["address"], record["port"], record["zone"], record["weight"]),
                             ("10.0.0.7", 8080, "eu-1", 7))
            self.until(lambda c=client: c.newest.get("sees"), "[%s]" % name)
            client.tell("metadata")
            self.assertEqual(json.loads(client.expect("done metadata")[len("done metadata "):]),
                             {"version": "2", "weight": "7", "zone": "eu-1"})
            self.ctl("register", "orders", "--id", "x", "--address", "10.0.0.8", "--port", "1")
            self.until(lambda c=client: c.newest.get("sees"), "[%s,x]" % name)
            self.ctl("unregister", "orders", "--id", "x")
            self.until(lambda c=client: c.newest.get("sees"), "[%s]" % name)
            client.tell("stop")
            client.expect("done stop")
            self.until(self.ids, [])

    def test_a_client_that_is_not_known_registers_again(self):
        client = self.client("registry", "o1")
        client.expect("heartbeat")
        self.kill_daemon(self.registry)
        os.remove(os.path.join(self.folder, "registry.db"))
        self.start_registry()
        client.expect("Re-registering")
        client.expect("registered")
        self.until(self.ids, ["o1"])

    def test_a_restart_of_the_registry_behind_an_agent(self):
        client = self.client("agent", "o1")
        self.until(lambda c=client: c.newest.get("sees"), "[o1]")
        self.kill_daemon(self.registry)
        other = self.client("agent", "o2")
        client.expect("heartbeat")
        self.start_registry()
        self.until(self.ids, ["o1", "o2"])
        self.until(lambda c=client: c.newest.get("sees"), "[o1,o2]")
        other.tell("stop")
        other.expect("done stop")
        self.until(lambda c=client: c.newest.get("sees"), "[o1]")

    def test_deltas(self):
        client = self.client("registry", "o1", "delta")
        self.until(lambda c=client: c.newest.get("sees"), "[o1]")
        self.ctl("register", "orders", "--id", "o2", "--address", "10.0.0.8", "--port", "1")
        self.until(lambda c=client: c.newest.get("sees"), "[o1,o2]")

    def test_status_override(self):
        client = self.client("registry", "o1")
        self.until(lambda c=client: c.newest.get("sees"), "[o1]")
        path = "/eureka/apps/ORDERS/o1/status?value=OUT_OF_SERVICE"
        self.assertEqual(self.http(self.eureka["registry"], path, "PUT")[0], 200)
        self.until(lambda c=client: c.newest.get("sees"), "[]")
        self.assertEqual(self.http(self.eureka["registry"], path, "DELETE")[0], 200)
        self.until(lambda c=client: c.newest.get("sees"), "[o1]")


class PrometheusTest(Doors):
    """Debian's Prometheus, `eureka_sd`."""

    def start_prometheus(self):
        config = os.path.join(self.folder, "prometheus.yaml")
        with open(config, "w", encoding="utf-8") as out:
            out.write("scrape_configs:\n" + "".join(
                "- job_name: %s\n  eureka_sd_configs:\n  - server: http://%s/eureka\n    refresh_interval: 1s\n" %
                (door, address) for door, address in sorted(self.eureka.items())))
        self.prometheus = reserved_address()
        log = open(os.path.join(self.folder, "prometheus.log"), "w", encoding="utf-8")
        self.addCleanup(log.close)
        process = subprocess.Popen(
            ["prometheus", "--config.file", config, "--storage.tsdb.path", os.path.join(self.folder, "tsdb"),
             "--web.listen-address", self.prometheus], stdout=log, stderr=log)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)

    def found(self):
        """{job: [(address, id, status)]}."""
        try:
            status, text = self.http(self.prometheus, "/api/v1/targets?state=active")
        except OSError:
            return None
        if status != 200:
            return None
        found = {"agent": [], "registry": []}
        for target in json.loads(text)["data"]["activeTargets"]:
            labels = target["discoveredLabels"]
            found[labels["job"]].append((labels["__address__"], labels["__meta_eureka_app_instance_id"],
                                         labels["__meta_eureka_app_instance_status"]))
        return {job: sorted(targets) for job, targets in found.items()}

    def test_it_finds_what_is_registered_through_a_restart(self):
        self.ctl("register", "orders", "--id", "o1", "--address", "10.0.0.8", "--port", "81")
        self.start_prometheus()
        one = [("10.0.0.8:81", "o1", "UP")]
        self.until(self.found, {"agent": one, "registry": one})
        self.kill_daemon(self.registry)
        self.start_registry()
        self.ctl("register", "orders", "--id", "o2", "--address", "10.0.0.9", "--port", "82")
        two = one + [("10.0.0.9:82", "o2", "UP")]
        self.until(self.found, {"agent": two, "registry": two})


if __name__ == "__main__":
    unittest.main()
