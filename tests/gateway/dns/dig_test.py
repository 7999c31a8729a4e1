"""dig and kdig, with every flag that reaches the server, against both daemons."""

import json
import re
import subprocess
import unittest

from eventually import eventually
from stock import (AGENT, AGENT_ADDRESS, CTL, REGISTRY_ADDRESS, Program, instance, register, run, start_agent,
                   start_registry, unregister)

SERVERS = {"agent": ("127.0.0.1", 7063), "registry": ("127.0.0.1", 7073), "ipv6": ("::1", 7063)}


def dig(name, kind="A", *flags, server="agent", program="dig"):
    host, port = SERVERS[server]
    return run(program, "-p", str(port), f"@{host}", *flags, name, kind)


def status(text):
    return re.search(r"status: (\w+)", text).group(1)


def flags_of(text):
    return re.search(r"(?i)flags: ([^;]*);", text).group(1).split()


def answers(text):
    """The data of the records in the answer section."""
    match = re.search(r"(?s);; ANSWER SECTION:\n(.*?)\n\n", text)
    return [] if match is None else sorted(line.split(None, 4)[4] for line in match.group(1).split("\n"))


class Dig(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.programs = [start_registry("--dns", "127.0.0.1:7073"),
                        start_agent("--dns", "127.0.0.1:7063", "--dns", "[::1]:7063", "--zone", "eu-1")]
        cls.orders = [
            instance("o1", 8080, "10.0.0.1", zone="eu-1", metadata={"tags": "canary,eu", "version": "2"}),
            instance("o2", 8081, "10.0.0.2", weight=7),
            instance("o3", 8082, "2001:db8::1"),
            instance("o4", 8083, "10.0.0.4", status="HEALTH_STATUS_UNHEALTHY"),
        ]
        many = [instance(f"m{i}", 9000 + i, f"10.1.0.{i}", service="many") for i in range(100)]
        register(cls.orders + many + [instance("v", 80, "10.2.0.1", service="v2/Orders.EU")])
        # An agent lists what its registry has.
        run(CTL, "-t", AGENT_ADDRESS, "list")

    @classmethod
    def tearDownClass(cls):
        for program in reversed(cls.programs):
            program.stop()

    def test_addresses(self):
        for server in SERVERS:
            for program in ("dig", "kdig"):
                text = dig("orders.service.failback", server=server, program=program)
                self.assertEqual(status(text), "NOERROR")
                self.assertIn("aa", flags_of(text))
                self.assertNotIn("ra", flags_of(text))
                self.assertEqual(answers(text), ["10.0.0.1", "10.0.0.2"])
                self.assertEqual(answers(dig("orders.service.failback", "AAAA", server=server,
                                             program=program)), ["2001:db8::1"])

    def test_srv_with_weights_priorities_and_glue(self):
        for name in ("orders.service.failback", "_orders._tcp.service.failback"):
            for program in ("dig", "kdig"):
                text = dig(name, "SRV", program=program)
                self.assertEqual(answers(text), sorted([
                    "0 100 8080 0a000001.addr.failback.", "1 7 8081 0a000002.addr.failback.",
                    "1 100 8082 20010db8000000000000000000000001.addr.failback."]))
                self.assertRegex(text, r"0a000001.addr.failback.\s+1\s+IN\s+A\s+10.0.0.1")
        # A registry has no zone.
        self.assertEqual({line.split()[0] for line in
                          answers(dig("orders.service.failback", "SRV", server="registry"))}, {"0"})

    def test_names(self):
        self.assertEqual(answers(dig("canary.orders.service.failback")), ["10.0.0.1"])
        self.assertEqual(answers(dig("ORDERS.service.FAILBACK")), ["10.0.0.1", "10.0.0.2"])
        self.assertIn("ORDERS.service.FAILBACK.", dig("ORDERS.service.FAILBACK"))
        self.assertEqual(answers(dig("v2--2f--4frders--2e--45--55.service.failback")), ["10.2.0.1"])
        self.assertEqual(answers(dig("0a000001.addr.failback")), ["10.0.0.1"])
        self.assertEqual(answers(dig("orders.service.default.failback")), ["10.0.0.1", "10.0.0.2"])
        self.assertIn('"id=o1" "tags=canary,eu" "version=2"', dig("orders.service.failback", "TXT"))

    def test_the_apex(self):
        self.assertEqual(answers(dig("failback", "NS")), ["ns.failback."])
        self.assertRegex(dig("failback", "SOA"), r"SOA\s+ns.failback. hostmaster.failback. \d+ 3600 600 86400 1\n")
        self.assertEqual(answers(dig("ns.failback")), ["127.0.0.1"])
        self.assertEqual(answers(dig("ns.failback", "AAAA")), ["::1"])

    def test_negative_answers(self):
        absent = dig("nobody.service.failback")
        self.assertEqual(status(absent), "NXDOMAIN")
        self.assertRegex(absent, r"AUTHORITY SECTION:\nfailback.\s+1\s+IN\s+SOA")
        for name, kind in (("orders.service.failback", "MX"), ("service.failback", "A"),
                           ("other.orders.service.failback", "A")):
            empty = dig(name, kind)
            self.assertEqual(status(empty), "NOERROR")
            self.assertEqual(answers(empty), [])
            self.assertRegex(empty, r"AUTHORITY SECTION:\nfailback.\s+1\s+IN\s+SOA")
        for name, kind, *flags in (("example.com", "A"), ("orders.service.failback", "TXT", "-c", "CH"),
                                   ("1.0.0.10.in-addr.arpa", "PTR")):
            self.assertEqual(status(dig(name, kind, *flags)), "REFUSED")
        self.assertIn("Transfer failed", dig("failback", "AXFR"))

    def test_a_service_that_loses_its_last_instance_is_known(self):
        only = [instance("only", 80, "10.3.0.1", service="shortlived")]
        register(only)
        self.assertEqual(answers(dig("shortlived.service.failback")), ["10.3.0.1"])
        unregister(only)
        while answers(empty := dig("shortlived.service.failback")):
            pass
        self.assertEqual(status(empty), "NOERROR")

    def test_any_is_small(self):
        text = dig("many.service.failback", "ANY", "+notcp")
        self.assertEqual(answers(text), ['"RFC8482" ""'])

    def test_truncation_and_tcp(self):
        cut = dig("many.service.failback", "A", "+ignore", "+noedns")
        self.assertIn("tc", flags_of(cut))
        self.assertLess(len(answers(cut)), 32)
        for program in ("dig", "kdig"):
            self.assertEqual(len(answers(dig("many.service.failback", "A", program=program))), 100)
            self.assertEqual(len(answers(dig("many.service.failback", "SRV", "+tcp", program=program))), 100)
        wide = dig("many.service.failback", "A", "+ignore", "+bufsize=4096")
        self.assertIn("tc", flags_of(wide))
        self.assertGreater(len(answers(wide)), 60)

    def test_flags_of_the_query(self):
        for flags in (["+noedns"], ["+nocookie"], ["+cookie"], ["+edns=0", "+bufsize=512"], ["+dnssec"],
                      ["+cdflag"], ["+adflag"], ["+norecurse"], ["+nsid"], ["+subnet=192.0.2.0/24"],
                      ["+padding=128"], ["+keepalive"], ["+tcp", "+keepalive"], ["+tcp", "+keepopen"],
                      ["+ednsopt=65001:abcd"], ["+zflag"], ["+expire"], ["+qr"], ["+noall", "+answer", "+comments"]):
            text = dig("orders.service.failback", "A", *flags)
            self.assertEqual(status(text), "NOERROR", flags)
            self.assertEqual(answers(text + "\n\n"), ["10.0.0.1", "10.0.0.2"], flags)
        self.assertIn("cd", flags_of(dig("orders.service.failback", "A", "+cdflag")))
        self.assertRegex(dig("orders.service.failback", "A", "+dnssec"), r"EDNS: version: 0, flags: do;")
        self.assertRegex(dig("orders.service.failback", "A", "+cookie"), r"COOKIE: [0-9a-f]{48} \(good\)")
        self.assertEqual(status(dig("orders.service.failback", "A", "+edns=1", "+noednsnegotiation")), "BADVERS")
        self.assertEqual(status(dig("orders.service.failback", "A", "+opcode=NOTIFY")), "NOTIMP")
        self.assertEqual(status(dig("orders.service.failback", "A", "+header-only", "+nocookie")), "FORMERR")
        for flags in (["+edns"], ["+noedns"], ["+cookie"], ["+nocookie"], ["+bufsize=512"], ["+padding"],
                      ["+alignment"], ["+nsid"], ["+subnet=192.0.2.0/24"], ["+dnssec"], ["+cdflag"],
                      ["+tcp"], ["+tcp", "+keepopen"], ["+tcp", "+fastopen"]):
            text = dig("orders.service.failback", "A", *flags, program="kdig")
            self.assertEqual(answers(text + "\n\n"), ["10.0.0.1", "10.0.0.2"], flags)

    def test_a_cookie_without_a_question(self):
        given = dig("orders.service.failback", "A", "+header-only", "+cookie")
        self.assertEqual(status(given), "NOERROR")
        (cookie,) = re.findall(r"COOKIE: ([0-9a-f]{48}) \(good\)", given)
        again = dig("orders.service.failback", "A", "+header-only", "+cookie=" + cookie, "+nobadcookie")
        self.assertEqual(status(again), "NOERROR")
        wrong = cookie[:-1] + ("0" if cookie[-1] != "0" else "1")
        refused = dig("orders.service.failback", "A", "+header-only", "+cookie=" + wrong, "+nobadcookie")
        self.assertEqual(status(refused), "BADCOOKIE")

    def test_failbackctl_says_what_the_daemon_at_hand_answers(self):
        def explain(name, target=AGENT_ADDRESS):
            return json.loads(run(CTL, "-t", target, "-o", "json", "dns", name))

        self.maxDiff = None
        said = explain("orders.service.failback")
        self.assertEqual(said["rcode"], "NOERROR")
        self.assertEqual(said["reason"],
                         "service orders of namespace default; zone eu-1 first, 2 of other zones with priority 1")
        for kind in ("A", "AAAA", "SRV"):
            self.assertEqual(sorted(record["data"] for record in said["records"] if record["type"] == kind),
                             answers(dig("orders.service.failback", kind)))
        self.assertEqual([(left["instanceId"], left["endpoint"], left["reason"]) for left in said["leftOut"]],
                         [("o4", "10.0.0.4:8083", "unhealthy")])
        # The registry's own server has no zone.
        self.assertEqual(explain("orders.service.failback", REGISTRY_ADDRESS)["reason"],
                         "service orders of namespace default")
        many = {answer["type"]: answer for answer in explain("many.service.failback")["answers"]}
        for flags, column in ((["+noedns"], "plainUdp"), (["+bufsize=4096", "+nocookie"], "udp"), (["+tcp"], "tcp")):
            got = answers(dig("many.service.failback", "A", "+ignore", *flags))
            self.assertEqual(len(got), many["A"][column], column)
        for name, rcode in (("nobody.service.failback", "NXDOMAIN"), ("other.orders.service.failback", "NODATA"),
                            ("example.com", "REFUSED"), ("failback", "NOERROR")):
            self.assertEqual(explain(name)["rcode"], rcode)
        table = run(CTL, "-t", AGENT_ADDRESS, "dns", "nobody.service.failback")
        self.assertIn("NXDOMAIN (there is no such name): service nobody of namespace default: it has no instance", table)

    def test_failbackctl_says_that_another_has_the_key(self):
        later = Program(AGENT, "--listen", "127.0.0.1:7065", "--registry", f"grpc://{REGISTRY_ADDRESS}", "--admin", "")
        self.addCleanup(later.stop)
        later.await_line("listening on")
        for target, address in ((AGENT_ADDRESS, "10.3.0.1"), ("127.0.0.1:7065", "10.3.0.2")):
            run(CTL, "-t", target, "register", "taken", "--id", "t", "--address", address, "--port", "80", "--wait",
                "acknowledged")

        def left_out(reason):
            said = json.loads(run(CTL, "-t", AGENT_ADDRESS, "-o", "json", "dns", "taken.service.failback"))
            given = [record["data"] for record in said["records"] if record["type"] == "A"]
            return given == ["10.3.0.2"] and [left["endpoint"] for left in said.get("leftOut", [])
                                              if left["reason"].startswith(reason)]

        # Until the agent compares it does not know.
        self.assertEqual(eventually(lambda: left_out("acknowledged, and the registry tells no such instance"),
                                    "what is lost is named"), ["10.3.0.1:80"])
        # An update meets the other.
        run(CTL, "-t", AGENT_ADDRESS, "register", "taken", "--id", "t", "--address", "10.3.0.1", "--port", "81")
        self.assertEqual(eventually(lambda: left_out("superseded: another holds its key"), "what is superseded is named"),
                         ["10.3.0.1:81"])

    def test_failbackctl_where_no_dns_is_served(self):
        agent = Program(AGENT, "--listen", "127.0.0.1:7064", "--registry", f"grpc://{REGISTRY_ADDRESS}", "--admin", "")
        self.addCleanup(agent.stop)
        agent.await_line("listening on")
        refused = subprocess.run([CTL, "-t", "127.0.0.1:7064", "dns", "orders.service.failback"],
                                 capture_output=True, text=True, check=False)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("this daemon serves no DNS; --dns ADDRESS makes it", refused.stderr)

    def test_several_queries_on_one_connection(self):
        host, port = SERVERS["agent"]
        query = ["orders.service.failback", "A", "+tcp", "+keepopen"]
        for program in ("dig", "kdig"):
            text = run(program, "-p", str(port), f"@{host}", *query, *query, *query)
            self.assertEqual(text.count("status: NOERROR"), 3, text)


if __name__ == "__main__":
    unittest.main()
