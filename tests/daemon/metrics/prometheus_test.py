"""Metrics, alerts and dashboard against a real Prometheus that scrapes both daemons."""

import os
import re
import resource
import shutil
import subprocess
import tempfile
import time
import unittest

import yaml

from eventually import DEADLINE, eventually
from ports import reserved_address
from prometheus import PROMTOOL, Prometheus, get
from shipped import (RULES, families, filled_in, metrics_in, panel_expressions, read, rules,
                     series_names)

AGENT = os.path.abspath("agent/failback-agent")
CTL = os.path.abspath("agent/failbackctl")
REGISTRY = os.path.abspath("registry/failback-registry")

# There only where they apply: over etcd, with a policy or tokens, with TLS.
CONDITIONAL = {
    "failback_etcd_calls_total",
    "failback_etcd_call_duration_seconds",
    "failback_etcd_tokens_total",
    "failback_etcd_watched_services",
    "failback_server_denied_total",
    "failback_server_revoked_streams_total",
    "failback_server_certificate_not_after_timestamp_seconds",
} | (MUTUAL := {  # only where clients show certificates
    "failback_agent_certificate_not_after_timestamp_seconds",
    "failback_server_client_certificates",
    "failback_server_client_certificates_ending",
    "failback_server_client_certificate_not_after_timestamp_seconds",
})


class Daemon:
    """A daemon that has told where it serves."""

    def __init__(self, program, *args):
        self.args = [program, "--admin", reserved_address(), *args]
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.args, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, bufsize=1)
        line = self.process.stdout.readline()
        said = re.search(r"listening on (\S+?), admin http://(\S+?), ", line)
        if said is None:
            raise AssertionError(f"{self.args}: {line!r} {self.process.stderr.read()}")
        self.address, self.admin = said.groups()

    def kill(self):
        self.process.kill()
        if not self.process.stdout.closed:
            self.process.communicate()

    def limit_file_size(self, size):
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def metrics(self):
        page, headers = get(f"http://{self.admin}/metrics")
        assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8", headers
        return page

    def ctl(self, *args):
        result = subprocess.run([CTL, "--target", self.address, "--timeout", "30s", *args], capture_output=True,
                                text=True, timeout=DEADLINE)
        assert result.returncode == 0, (args, result.stdout, result.stderr)
        return result.stdout

    def register(self, instance, wait="accepted"):
        self.ctl("register", "orders", "--id", instance, "--address", "10.0.0.7", "--port", "8080",
                 "--wait", wait)


class Scraped(unittest.TestCase):
    """Both daemons, and a Prometheus that watches them."""

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.registry = self.start(REGISTRY, "--listen", reserved_address(), "--store",
                                   f"sqlite://{self.folder}/registry.db", "--limits-max-instances", "3",
                                   "--dns", reserved_address(), "--http", reserved_address(),
                                   "--consul", reserved_address(), "--eureka", reserved_address())
        self.config = os.path.join(self.folder, "agent.yaml")
        self.write_config("8080")
        self.agent = self.start(AGENT, "--config", self.config)
        # One that has never found a registry.
        self.lost = self.start(AGENT, "--listen", f"unix:{self.folder}/lost.sock", "--registry",
                               f"main=grpc://{reserved_address()}")
        self.agent.register("orders-1")
        self.lost.register("orders-lost")
        self.prometheus = Prometheus(
            self.folder,
            {"failback-registry": [self.registry.admin],
             "failback-agent": [self.agent.admin, self.lost.admin]},
            read(RULES))
        self.addCleanup(self.prometheus.stop)
        eventually(lambda: self.prometheus.value("sum(up)") == 3, "all targets are scraped")

    def start(self, *args):
        daemon = Daemon(*args)
        self.addCleanup(daemon.kill)
        return daemon

    def write_config(self, port):
        with open(self.config + ".new", "w") as file:
            yaml.safe_dump({
                "listen": f"unix:{self.folder}/agent.sock",
                "registry": f"main=grpc://{self.registry.address}",
                "state_dir": f"{self.folder}/state",
                "services": [{"name": "web", "address": "10.0.0.7", "port": port,
                              "checks": [{"name": "own", "ttl": {"ttl": "1h"}}]}],
            }, file)
        os.rename(self.config + ".new", self.config)

    def test_what_is_asked_for_is_there_and_faults_are_noticed(self):
        with self.subTest("pages"):
            self.check_pages()
        with self.subTest("expressions"):
            self.check_expressions()
        with self.subTest("page for who is paged"):
            self.check_commands_of_the_page()
        with self.subTest("faults"):
            self.check_faults()

    def check_pages(self):
        pages = {"agent": self.agent.metrics(), "registry": self.registry.metrics()}
        found = {}
        for name, page in pages.items():
            lint = subprocess.run([PROMTOOL, "check", "metrics"], input=page, capture_output=True,
                                  text=True, timeout=DEADLINE)
            self.assertEqual((lint.returncode, lint.stdout + lint.stderr), (0, ""), name)
            found.update(families(page))
        documented = dict(re.findall(r"(?m)^\| `(\w+)` \| (\w+) \|", read("docs/metrics.md")))
        self.assertLessEqual(CONDITIONAL, set(documented))
        for name in CONDITIONAL:
            del documented[name]
        self.assertEqual(documented, found)

    def check_expressions(self):
        exported = series_names(self.agent.metrics()) | series_names(self.registry.metrics())
        exported |= CONDITIONAL | {name + "_bucket" for name in CONDITIONAL}
        recorded = {rule["record"] for rule in rules() if "record" in rule}
        asked = [(rule.get("alert") or rule["record"], rule["expr"]) for rule in rules()]
        asked += panel_expressions()
        self.assertGreater(len(asked), 80)
        used = set()
        for name, expression in asked:
            with self.subTest(name, expression=expression):
                self.prometheus.query(filled_in(expression))
                self.assertLessEqual(metrics_in(expression), exported)
                used |= metrics_in(expression)
                for record in re.findall(r"\b\w+:\w+:\w+\b", expression):
                    self.assertIn(record, recorded)
        self.assertGreater(len(used), 50)
        # A rule that fails at run time says so.
        for group in self.prometheus.api("rules")["groups"]:
            for rule in group["rules"]:
                self.assertEqual(rule["health"], "ok", rule)
        eventually(lambda: self.prometheus.value(
            'failback_agent_registrations_acknowledged{upstream="main"} > 0') == 1, "it is registered")

    def check_commands_of_the_page(self):
        """What docs/operations.md tells who is paged to type."""
        page = read("docs/operations.md").split("## I am paged")[1].split("\n## ")[0]
        block = re.findall(r"(?m)^\$ failbackctl (.*?)(?: +#.*)?$", page)
        self.assertEqual(len(block), 4)
        for command in block:
            words = command.replace("127.0.0.1:7070", self.registry.address).replace(
                "127.0.0.1:7060", self.agent.address).split()
            result = subprocess.run([CTL, *words], capture_output=True, text=True, timeout=DEADLINE)
            self.assertEqual((result.returncode, result.stderr), (0, ""), command)
        # Commands named in the text are commands.
        for verb in sorted(set(re.findall(r"`failbackctl (?:--target \w+ )?([a-z-]+)", page))):
            result = subprocess.run([CTL, verb, "--help"], capture_output=True, text=True,
                                    timeout=DEADLINE)
            self.assertEqual(result.returncode, 0, verb)
        result = subprocess.run([AGENT, "--config", self.config, "--validate-config"],
                                capture_output=True, text=True, timeout=DEADLINE)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        result = subprocess.run([REGISTRY, "check", "--store", f"sqlite://{self.folder}/registry.db"],
                                capture_output=True, text=True, timeout=DEADLINE)
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    def await_unregisters(self, count):
        """Until so many are owed."""
        expression = 'sum(failback_agent_operations_pending{operation="unregister"})'
        eventually(lambda: self.prometheus.value(expression) == count, f"{count} are pending")

    def check_faults(self):
        prometheus = self.prometheus
        # An agent that reaches no registry, half of all.
        prometheus.await_firing("FailbackUpstreamDown", "FailbackNothingAcknowledged")
        # (The other may not have been acknowledged when it was first scraped.)
        eventually(lambda: [alert["labels"]["instance"] for alert in
                            prometheus.firing().get("FailbackNothingAcknowledged", [])] ==
                   [self.lost.admin], "only the lost one has nothing acknowledged")
        self.assertNotIn("FailbackOperationsParked", prometheus.firing())

        # The registry refuses what is over its limit: parked.
        self.agent.register("orders-2", wait="acknowledged")
        self.agent.register("orders-3", wait="acknowledged")
        self.agent.register("orders-4")
        (alert,) = eventually(lambda: prometheus.firing().get("FailbackOperationsParked"), "parked")
        self.assertEqual(alert["labels"]["operation"], "register")
        self.assertIn("1 register intents", alert["annotations"]["summary"])
        self.agent.ctl("unregister", "orders", "--id", "orders-2", "--wait", "acknowledged")
        self.agent.ctl("retry", "register default/orders/orders-4")
        prometheus.await_quiet("FailbackOperationsParked")

        # The disk is full, for a while.
        self.registry.limit_file_size(1)
        self.agent.ctl("unregister", "orders", "--id", "orders-3")
        prometheus.await_firing("FailbackStoreNotWritable")
        self.await_unregisters(1)
        self.registry.limit_file_size(resource.RLIM_INFINITY)
        prometheus.await_quiet("FailbackStoreNotWritable")

        # A configuration that is no good.
        self.write_config("no port")
        prometheus.await_firing("FailbackConfigRefused")

        # The registry dies, with something on its way, and comes back.
        self.registry.kill()
        self.agent.ctl("unregister", "orders", "--id", "orders-4")
        prometheus.await_firing("FailbackRegistryAbsent", "FailbackTargetDown",
                                "FailbackUpstreamDownForMany")
        eventually(lambda: len(prometheus.firing().get("FailbackUpstreamDown", [])) == 2,
                   "both are down")
        self.await_unregisters(1)
        self.registry.start()
        prometheus.await_quiet("FailbackRegistryAbsent", "FailbackTargetDown",
                               "FailbackUpstreamDownForMany")
        self.await_unregisters(0)
        eventually(lambda: prometheus.value("sum(failback_agent_recovery_seconds_count)") >= 2,
                   "recoveries are counted")


class Guarded(unittest.TestCase):
    """A registry with a certificate and a policy has metrics of both."""

    def test_certificate_and_policy(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(
                ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
                 "/CN=localhost", "-keyout", folder + "/key.pem", "-out", folder + "/cert.pem"],
                check=True, capture_output=True, timeout=DEADLINE)
            self.write(folder + "/policy.yaml", {"rules": [
                {"name": "some", "anonymous": True, "allow": ["register"], "namespaces": "*",
                 "services": "*"}]})
            registry = Daemon(REGISTRY, "--listen", "127.0.0.1:0", "--store", "memory:", "--tls-cert",
                              folder + "/cert.pem", "--tls-key", folder + "/key.pem", "--policy-file",
                              folder + "/policy.yaml", "--reload-interval", "100ms")
            self.addCleanup(registry.kill)
            page = registry.metrics()
            self.assertLessEqual({name for name in CONDITIONAL - MUTUAL if "_etcd_" not in name},
                                 set(families(page)))
            (end,) = re.findall(
                r"(?m)^failback_server_certificate_not_after_timestamp_seconds (\d+)$", page)
            self.assertAlmostEqual(int(end), time.time() + 2 * 24 * 3600, delta=3600)
            self.assertIn('failback_config_refused_total{source="security"} 0\n', page)
            self.write(folder + "/policy.yaml", {"rules": 7})
            eventually(lambda: 'failback_config_refused_total{source="security"} 1\n'
                       in registry.metrics(), "the policy is refused")
            registry.process.terminate()
            registry.process.communicate(timeout=DEADLINE)
            self.assertEqual(registry.process.returncode, 0)

    @staticmethod
    def write(path, content):
        with open(path + ".new", "w") as file:
            yaml.safe_dump(content, file)
        os.rename(path + ".new", path)


if __name__ == "__main__":
    unittest.main()
