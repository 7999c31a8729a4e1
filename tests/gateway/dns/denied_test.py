"""What a reader may not read, with real daemons and a policy that changes while DNS follows a service."""

import hashlib
import os
import signal
import subprocess
import tempfile
import unittest

from eventually import eventually
from stock import AGENT_ADDRESS, CTL, REGISTRY_ADDRESS, run, start_agent, start_registry

NAME = "orders.service.failback"


def dig(name, port):
    """The status of an answer, and its addresses."""
    text = run("dig", "-p", str(port), "@127.0.0.1", "+noall", "+comments", "+answer", name)
    status = text.split("status: ")[1].split(",")[0]
    return status, sorted(line.split()[4] for line in text.split("\n") if line.startswith(name))


class Denied(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        digests = "".join(f"- {{name: {name}, sha256: {hashlib.sha256(name.encode()).hexdigest()}}}\n"
                          for name in ("agent", "operator"))
        self.write("tokens.yaml", "tokens:\n" + digests)
        for name in ("agent", "operator"):
            self.write(name, name)
        self.allow("orders, payments")
        self.registry = start_registry("--dns", "127.0.0.1:7073", "--dns-read-as", "dns",
                                       "--known-tokens-file", self.path("tokens.yaml"), "--policy-file",
                                       self.path("policy.yaml"))
        self.addCleanup(self.registry.stop)
        agent = start_agent("--dns", "127.0.0.1:7063", "--token-file", self.path("agent"))
        self.addCleanup(agent.stop)

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(text)

    def allow(self, services):
        """What the agent and the registry's own DNS may read."""
        rule = f"allow: [read], namespaces: [default], services: [{services}]"
        self.write("policy.yaml", f"""rules:
- {{name: agent, tokens: [agent], {rule}}}
- {{name: dns, certificates: [dns], {rule}}}
- {{name: operator, tokens: [operator], allow: [register, read, administer], namespaces: "*", services: "*"}}
""")

    def change(self, services):
        self.allow(services)
        self.registry.process.send_signal(signal.SIGHUP)

    def operate(self, verb, name, *args):
        run(CTL, "-t", REGISTRY_ADDRESS, "--token-file", self.path("operator"), verb, "orders", "--id", name, *args)

    def explain(self, name, target):
        """What failbackctl says; the operator's own rights do not matter."""
        token = ["--token-file", self.path("operator")] if target == REGISTRY_ADDRESS else []
        return run(CTL, "-t", target, *token, "dns", name)

    def pending(self):
        return run(CTL, "-t", AGENT_ADDRESS, "pending")

    def test_what_is_refused_meanwhile_is_not_served_and_comes_back(self):
        self.operate("register", "o1", "--address", "10.0.0.1", "--port", "80")
        for port in (7063, 7073):
            self.assertEqual(dig(NAME, port), ("NOERROR", ["10.0.0.1"]))
        for target in (REGISTRY_ADDRESS, AGENT_ADDRESS):
            self.assertRegex(self.explain(NAME, target), r"(?s)^NOERROR: .*\nA +10.0.0.1\n")
        # Without the right to administer nothing is said.
        refused = subprocess.run([CTL, "-t", REGISTRY_ADDRESS, "--token-file", self.path("agent"), "dns", NAME],
                                 capture_output=True, text=True, check=False)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("PERMISSION_DENIED", refused.stderr)
        self.change("payments")
        for port in (7063, 7073):
            eventually(lambda port=port: dig(NAME, port) == ("REFUSED", []), "orders is refused")
        # The operator may read it; the reader of DNS may not.
        self.operate("describe", "o1")
        for target in (REGISTRY_ADDRESS, AGENT_ADDRESS):
            said = self.explain(NAME, target)
            self.assertIn("REFUSED: service orders of namespace default: the server's reader may not read it", said)
            self.assertNotIn("10.0.0.1", said)
        self.operate("unregister", "o1")
        self.operate("register", "o2", "--address", "10.0.0.2", "--port", "80")
        self.assertNotIn("parked", self.pending())
        self.change("orders, payments")
        for port in (7063, 7073):
            eventually(lambda port=port: dig(NAME, port) == ("NOERROR", ["10.0.0.2"]), "orders may be read again")

    def test_an_operator_is_told_what_the_registry_does_not_have(self):
        here = ["-t", AGENT_ADDRESS, "register", "orders", "--address", "10.0.0.9", "--port", "80", "--id"]
        # The agent may read, and register nothing.
        run(CTL, *here, "refused")
        eventually(lambda: "parked" in self.pending(), "the registry refuses it")
        self.assertRegex(self.explain(NAME, AGENT_ADDRESS),
                         r"(?s)^NXDOMAIN.*\nrefused +10.0.0.9:80 +parked: the registry refuses it: PERMISSION_DENIED")
        self.operate("register", "o1", "--address", "10.0.0.1", "--port", "80")
        eventually(lambda: dig(NAME, 7063)[1] == ["10.0.0.1"], "another is there")
        self.registry.kill()
        eventually(lambda: "the registry is unavailable" in self.explain(NAME, AGENT_ADDRESS), "an outage")
        run(CTL, *here, "late")
        said = self.explain(NAME, AGENT_ADDRESS)
        self.assertRegex(said, r"(?s)^NOERROR.*\nA +10.0.0.1\n.*\nlate +10.0.0.9:80 +accepted by the agent, not by the "
                         r"registry yet")
        self.assertRegex(said, r"\nrefused +10.0.0.9:80 +parked")

    def test_a_name_that_was_never_allowed_is_refused_and_no_intent(self):
        for port in (7063, 7073):
            self.assertEqual(dig("typo.service.failback", port)[0], "REFUSED")
        self.assertNotIn("typo", self.pending())


if __name__ == "__main__":
    unittest.main()
