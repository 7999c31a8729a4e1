"""The log of a real agent through an outage: JSON, few lines, and the trace of the call that stated an intent."""

import json
import os
import tempfile
import unittest

import grpc

import daemons
from daemons import ctl, wait_for

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def field(number, content):
    """A length-delimited field of a protobuf message."""
    return bytes([number << 3 | 2, len(content)]) + content


def register_request(service, instance_id):
    """RegisterRequest.registrations[0].instance, with key, address and port."""
    key = field(2, service.encode()) + field(3, instance_id.encode())
    return field(2, field(1, field(1, key) + field(2, b"10.0.0.7") + bytes([3 << 3, 80])))


class AgentLogTest(unittest.TestCase):
    def setUp(self):
        self.registry = daemons.registry()
        self.addCleanup(lambda: self.registry.kill())
        self.agent = daemons.agent(self.registry, "--log-format", "json")
        self.addCleanup(self.agent.kill)

    def events(self, name):
        """Every line is an object, but for the one that tells where the agent serves."""
        lines = [json.loads(line) for line in self.agent.log().splitlines()
                 if " listening on " not in line]
        return [line for line in lines if line["event"] == name]

    def counted(self, name):
        return len(self.events(name)) + sum(int(line["count"]) for line in self.events("left out")
                                            if line["of"] == name)

    def test_an_outage_is_few_lines_and_none_is_lost(self):
        wait_for(lambda: self.events("session open"), self.agent.log)
        self.registry.kill()
        wait_for(lambda: self.events("registry away"), self.agent.log)
        items = [{"key": {"service": "many", "instanceId": "i-%d" % i}, "address": "10.0.0.1",
                  "port": 80} for i in range(150)]
        status, _, err = ctl(self.agent.address, "register", "-f", "-", stdin=json.dumps(items))
        self.assertEqual(status, 0, err)
        wait_for(lambda: self.counted("retrying") == 150, self.agent.log)
        self.assertEqual(len(self.events("retrying")), 100)
        (first,) = [line for line in self.events("retrying") if line["instance"] == "i-0"]
        self.assertEqual((first["operation"], first["namespace"], first["service"], first["times"],
                          first["code"]), ("register", "default", "many", "1", "UNAVAILABLE"))
        self.registry = daemons.registry(listen=self.registry.address)
        wait_for(lambda: self.counted("acknowledged") == 150, self.agent.log)
        self.assertEqual(len(self.events("registry away")), 1)
        self.assertEqual(len(self.events("registry back")), 1)

    def test_a_trace_is_in_the_log(self):
        with grpc.insecure_channel(self.agent.address) as channel:
            call = channel.unary_unary("/failback.registry.v1.RegistryService/Register")
            call(register_request("orders", "traced"), metadata=(("traceparent", TRACE),),
                 timeout=daemons.TIMEOUT, wait_for_ready=True)
            call(register_request("orders", "plain"), timeout=daemons.TIMEOUT)
        wait_for(lambda: len(self.events("acknowledged")) == 2, self.agent.log)
        self.assertEqual({line["instance"]: line.get("traceparent")
                          for line in self.events("acknowledged")}, {"traced": TRACE, "plain": None})


class HealthLogTest(unittest.TestCase):
    """A static service whose check turns is told of once at each turn."""

    def test_a_change_of_health_says_which_check_made_it(self):
        with tempfile.TemporaryDirectory() as folder:
            mark = os.path.join(folder, "ill")
            config = os.path.join(folder, "agent.yaml")
            # A busy machine takes its time to start a shell.
            check = {"name": "probe", "interval": "2s", "timeout": "2s", "rise": 1, "fall": 1,
                     "command": {"argv": ["/bin/sh", "-c", "test ! -e %s" % mark]}}
            with open(config, "w", encoding="utf-8") as file:
                json.dump({"services": [{"name": "orders", "id": "orders-1", "address": "10.0.0.1",
                                         "port": 80, "checks": [check]}]}, file)
            registry = daemons.registry()
            self.addCleanup(registry.kill)
            agent = daemons.agent(registry, "--log-format", "json", "--config", config)
            self.addCleanup(agent.kill)
            wait_for(lambda: "passing" in ctl(agent.address, "status")[1], agent.log)
            self.assertNotIn('"health"', agent.log())
            for ill in (True, False):
                if ill:
                    with open(mark, "w", encoding="utf-8"):
                        pass
                else:
                    os.remove(mark)
                lines = wait_for(lambda: self.health(agent, 1 if ill else 2), agent.log)
            self.assertEqual([(line["level"], line["service"], line["instance"], line["was"], line["is"],
                               line.get("check")) for line in lines],
                             [("warning", "orders", "orders-1", "passing", "critical", "probe"),
                              ("info", "orders", "orders-1", "critical", "passing", None)])
            self.assertIn("exit", lines[0]["why"])

    @staticmethod
    def health(agent, number):
        lines = [json.loads(line) for line in agent.log().splitlines() if '"health"' in line]
        return lines if len(lines) == number else None


if __name__ == "__main__":
    unittest.main()
