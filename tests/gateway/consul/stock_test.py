"""Stock clients of Consul against real daemons, and through a restart of the registry."""

import json
import unittest

import consul

from doors import Doors


class PythonConsulTest(Doors):
    """Debian's python3-consul."""

    def setUp(self):
        super().setUp()
        host, port = self.consul["agent"].split(":")
        self.client = consul.Consul(host=host, port=int(port))
        host, port = self.consul["registry"].split(":")
        self.reader = consul.Consul(host=host, port=int(port))

    def passing(self, client):
        return [entry["Service"]["ID"] for entry in client.health.service("orders", passing=True)[1]]

    def register(self, name="orders", service_id="o1"):
        return self.client.agent.service.register(
            name, service_id=service_id, address="10.0.0.7", port=8080, tags=["a", "b"], check=consul.Check.ttl("20s"))

    def test_registers_reports_and_deregisters(self):
        self.assertTrue(self.register())
        self.until(self.ids, ["o1"])
        self.assertFalse(self.healthy("o1"), "critical until it says more")
        self.assertTrue(self.client.agent.check.ttl_pass("service:o1", "fine"))
        self.until(lambda: self.healthy("o1"), True)
        self.until(lambda: self.passing(self.reader), ["o1"])
        self.until(lambda: self.passing(self.client), ["o1"])
        self.assertTrue(self.client.agent.check.ttl_warn("service:o1"))
        self.until(lambda: self.passing(self.reader), [])
        self.assertTrue(self.healthy("o1"), "a warning is for clients of Consul")
        self.assertTrue(self.client.agent.check.ttl_fail("service:o1"))
        self.until(lambda: self.healthy("o1"), False)
        self.assertTrue(self.client.agent.service.maintenance("o1", "false"))
        self.assertEqual(list(self.client.agent.services()), ["o1"])
        self.assertEqual(self.client.agent.checks()["service:o1"]["Status"], "critical")
        self.assertTrue(self.client.agent.service.deregister("o1"))
        self.until(self.ids, [])
        self.assertFalse(self.client.agent.check.ttl_pass("service:o1"), "404: it is to register again")

    def test_blocking_queries_return_with_the_change(self):
        index, entries = self.reader.health.service("orders")
        self.assertEqual(entries, [])
        self.register()
        index, entries = self.reader.health.service("orders", index=index, wait="60s")
        self.assertEqual([entry["Service"]["ID"] for entry in entries], ["o1"])
        self.assertEqual(entries[0]["Service"]["Tags"], ["a", "b"])
        again, entries = self.reader.health.service("orders", index=index, wait="1s")
        self.assertEqual(again, index, "nothing has changed")
        index, services = self.reader.catalog.services()
        self.assertEqual(services, {"orders": ["a", "b"]})
        self.register("users", "u1")
        index, services = self.reader.catalog.services(index=index, wait="60s")
        self.assertEqual(sorted(services), ["orders", "users"])

    def test_each_read_is_answered_at_both(self):
        self.register()
        for client in self.client, self.reader:
            self.until(lambda c=client: [x["ServiceID"] for x in c.catalog.service("orders")[1]], ["o1"])
            self.assertEqual([x["Node"] for x in client.catalog.nodes()[1]], ["10.0.0.7"])
            self.assertEqual(list(client.catalog.node("10.0.0.7")[1]["Services"]), ["o1"])
            self.assertIsNone(client.catalog.node("10.9.9.9")[1])
            self.assertEqual([x["Status"] for x in client.health.checks("orders")[1]], ["critical"])
            self.assertEqual(len(client.health.node("10.0.0.7")[1]), 1)
            self.assertEqual(client.health.state("passing")[1], [])
            self.assertEqual(client.catalog.datacenters(), ["default"])
            self.assertEqual(client.agent.self()["Config"]["Datacenter"], "default")
            self.assertIn("127.0.0.1:", client.status.leader())

    def test_what_is_not_here_is_refused(self):
        with self.assertRaisesRegex(consul.ConsulException, "501 /v1/kv is not part of this door"):
            self.client.kv.get("a/b")
        with self.assertRaisesRegex(consul.ConsulException, "501 /v1/session"):
            self.client.session.create()
        with self.assertRaisesRegex(consul.ConsulException, "501 this is a registry.*failback-agent"):
            self.reader.agent.service.register("orders", address="10.0.0.7", port=1)
        with self.assertRaisesRegex(consul.base.BadRequest, "Port: is required"):
            self.client.agent.service.register("orders")
        with self.assertRaisesRegex(consul.base.BadRequest, "one of TTL, HTTP, TCP, GRPC"):
            self.client.agent.service.register("orders", port=1, check=consul.Check.script("ls", "1s"))

    def test_the_agents_probes_run_its_checks(self):
        host, port = self.address.split(":")
        self.client.agent.service.register("orders", service_id="o1", address="10.0.0.7", port=8080,
                                           check=consul.Check.tcp(host, int(port), "200ms"))
        self.until(lambda: self.healthy("o1"), True)
        self.assertTrue(self.client.agent.check.deregister("service:o1"))
        self.client.agent.check.register("tcp", check=consul.Check.tcp("127.0.0.1", 1, "200ms"), service_id="o1")
        self.until(lambda: self.healthy("o1"), False)

    def test_one_truth_through_all_doors(self):
        self.register()
        self.client.agent.check.ttl_pass("service:o1")
        self.ctl("register", "orders", "--id", "o2", "--address", "10.0.0.8", "--port", "8080", "--wait",
                 "acknowledged", target=self.agent_address)
        status, _ = self.http(self.eureka["agent"], "/eureka/apps/ORDERS", "POST", json.dumps(
            {"instance": {"instanceId": "o3", "hostName": "h", "ipAddr": "10.0.0.9", "port": {"$": 8080}}}))
        self.assertEqual(status, 204)
        for client in self.client, self.reader:
            self.until(lambda c=client: self.passing(c), ["o1", "o2", "o3"])
        status, apps = self.http(self.eureka["registry"], "/eureka/apps/orders", headers={"Accept": "application/json"})
        self.assertEqual(status, 200)
        self.assertEqual([x["instanceId"] for x in json.loads(apps)["application"]["instance"]], ["o1", "o2", "o3"])
        self.assertEqual(self.ids(), ["o1", "o2", "o3"])

    def test_a_registry_that_restarts_loses_nothing(self):
        self.register()
        self.client.agent.check.ttl_pass("service:o1")
        self.until(lambda: self.passing(self.client), ["o1"])
        self.kill_daemon(self.registry)
        self.assertEqual(self.passing(self.client), ["o1"], "the last that is known")
        self.assertTrue(self.register(service_id="o2"), "accepted, and carried later")
        self.assertTrue(self.client.agent.check.ttl_pass("service:o2"))
        self.assertTrue(self.client.agent.check.ttl_pass("service:o1"))
        self.start_registry()
        self.until(self.ids, ["o1", "o2"])
        self.until(lambda: self.passing(self.reader), ["o1", "o2"])
        self.until(lambda: self.passing(self.client), ["o1", "o2"])


class NpmConsulTest(Doors):
    """The npm package `consul`."""

    def client(self, reader="registry"):
        return self.run_node("consul", "tests/gateway/consul/client.js", self.consul["agent"], self.consul[reader])

    def tell(self, client, line, result="done"):
        client.tell(line)
        return client.expect("%s %s" % (result, line))

    def shows(self, client, passing):
        """Its watch has this set now; it may have come before the answer to the call that made it."""
        self.until(lambda: client.newest.get("passing"), passing)

    def test_every_call(self):
        client = self.client()
        self.shows(client, "[]")
        self.tell(client, "register service/o%1")
        self.tell(client, "pass service/o%1")
        self.shows(client, '["service/o%1"]')
        self.tell(client, "register o2")
        for line, expected in [("services", "o2,service/o%1"), ("checks", "service:o2,service:service/o%1"),
                               ("self", "default"), ("members", "1"), ("leader", self.consul["registry"]),
                               ("peers", "1"), ("datacenters", "default"), ("nodes", "10.0.0.7"),
                               ("node", "o2,service/o%1"), ("tagged", "2"), ("state", "2"),
                               ("catalog", '{"orders":["a,b","npm"]}'),
                               ("instances", '[["a,b","npm"],["a,b","npm"]]')]:
            # The registry has it soon after the agent has accepted it.
            self.until(lambda l=line: self.tell(client, l), "done %s %s" % (line, expected))
        self.tell(client, "warn service/o%1")
        self.shows(client, "[]")
        self.tell(client, "pass service/o%1")
        self.shows(client, '["service/o%1"]')
        self.tell(client, "maintenance service/o%1 true")
        self.shows(client, "[]")
        self.tell(client, "maintenance service/o%1 false")
        self.shows(client, '["service/o%1"]')
        self.tell(client, "fail service/o%1")
        self.shows(client, "[]")
        self.tell(client, "deregister service/o%1")
        self.tell(client, "deregister o2")
        self.until(self.ids, [])
        self.assertIn(" 501 ", self.tell(client, "kv", "refused"))
        self.assertIn(" 400 ", self.tell(client, "filter", "refused"))
        self.assertIn(" 404 ", self.tell(client, "pass o2", "refused"))

    def test_a_watch_goes_on_through_a_restart_of_the_registry(self):
        client = self.client("agent")
        self.shows(client, "[]")
        self.tell(client, "register o1")
        self.tell(client, "pass o1")
        self.shows(client, '["o1"]')
        self.kill_daemon(self.registry)
        self.start_registry()
        self.tell(client, "register o2")
        self.tell(client, "pass o2")
        self.shows(client, '["o1","o2"]')

    def test_a_watch_at_the_registry_finds_it_again(self):
        client = self.client()
        self.shows(client, "[]")
        self.tell(client, "register o1")
        self.tell(client, "pass o1")
        self.shows(client, '["o1"]')
        self.kill_daemon(self.registry)
        client.expect("error ")
        self.start_registry()
        self.tell(client, "register o2")
        self.tell(client, "pass o2")
        self.shows(client, '["o1","o2"]')


if __name__ == "__main__":
    unittest.main()
