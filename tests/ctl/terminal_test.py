"""failbackctl at a terminal and away from it: colours, screens drawn again, bars, lines."""

import json
import signal
import subprocess
import unittest

import daemons
from daemons import CTL, Terminal, ctl, wait_for

GREEN, RED, BOLD = "\x1b[32m", "\x1b[31m", "\x1b[1m"


def instances(count):
    return json.dumps([{"key": {"service": "many", "instanceId": "i-%d" % i},
                        "address": "10.0.0.1", "port": 80} for i in range(count)])


class TerminalTest(unittest.TestCase):
    def setUp(self):
        self.registry = daemons.registry()
        self.addCleanup(self.registry.kill)
        self.agent = daemons.agent(self.registry)
        self.addCleanup(self.agent.kill)

    def at_terminal(self, *args, **options):
        terminal = Terminal([CTL, "--target", self.agent.address, *args], **options)
        self.addCleanup(terminal.close)
        return terminal

    def test_colours_are_for_terminals_that_want_them(self):
        daemons.register(self.agent.address, "orders", "orders-1")
        plain = ctl(self.agent.address, "list")[1]
        self.assertIn("orders-1  10.0.0.7:8080  healthy", plain)
        self.assertNotIn("\x1b", plain)
        coloured = self.at_terminal("list")
        self.assertEqual(coloured.wait(), 0)
        self.assertIn(GREEN + "healthy", coloured.output)
        self.assertIn(BOLD + "SERVICE", coloured.output)
        for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
            uncoloured = self.at_terminal("list", env=env)
            self.assertEqual(uncoloured.wait(), 0)
            self.assertEqual(uncoloured.output.replace("\r", "").split()[:9], plain.split()[:9])
            self.assertNotIn("\x1b", uncoloured.output)
        # An empty NO_COLOR asks for nothing; JSON is for programs at a terminal too.
        self.assertIn(GREEN, self._output("list", env={"NO_COLOR": ""}))
        self.assertNotIn("\x1b", self._output("list", "-o", "json"))

    def _output(self, *args, **options):
        terminal = self.at_terminal(*args, **options)
        self.assertEqual(terminal.wait(), 0)
        return terminal.output

    def test_status_watch_draws_the_screen_anew(self):
        daemons.register(self.agent.address, "orders", "orders-1")
        watch = self.at_terminal("status", "--watch", "--interval", "100ms", columns=200)
        seen = watch.wait_for(GREEN + "ready")
        self.assertTrue(watch.output.startswith("\x1b[2J\x1b[H"))
        watch.wait_for("nothing pending")
        self.registry.kill()
        status, _, err = ctl(self.agent.address, "register", "orders", "--id", "orders-2",
                             "--address", "10.0.0.8", "--port", "80")
        self.assertEqual(status, 0, err)
        watch.wait_for("register default/orders/orders-2", seen)
        self.assertEqual(watch.output.count("\x1b[2J"), 1)  # drawn over, not cleared
        self.agent.kill()
        watch.wait_for(RED + "away")
        watch.type("\x03")
        self.assertEqual(watch.wait(), -signal.SIGINT)

    def test_a_screen_is_cut_to_the_terminal(self):
        status, out, err = ctl(self.agent.address, "register", "-f", "-", stdin=instances(50))
        self.assertEqual((status, out), (0, "registered 50 of 50 instances\n"), err)
        watch = self.at_terminal("subscribe", "many", "--watch", rows=10, columns=40)
        watch.wait_for("… 45 more lines")
        frame = watch.output.split("\x1b[H")[1]
        self.assertEqual(frame.count("\r\n"), 9)

    def test_status_watch_elsewhere_is_a_line_for_each_change(self):
        watch = subprocess.Popen([CTL, "-t", self.agent.address, "status", "--watch", "--interval",
                                  "50ms"], stdout=subprocess.PIPE, text=True)
        self.addCleanup(watch.stdout.close)
        self.addCleanup(watch.wait)
        self.addCleanup(watch.kill)
        self.assertRegex(watch.stdout.readline(), r"^\d\d:\d\d:\d\d\.\d{3}  grpc://.*0 desired")
        daemons.register(self.agent.address, "orders", "orders-1")
        lines = []
        while not lines or "1 desired, 1 acknowledged, 0 pending" not in lines[-1]:
            lines.append(watch.stdout.readline())
        self.assertLess(len(lines), 5, lines)  # and not one for each look
        self.assertNotIn("\x1b", "".join(lines))
        as_json = subprocess.Popen([CTL, "-t", self.agent.address, "-o", "json", "status",
                                    "--watch"], stdout=subprocess.PIPE, text=True)
        self.addCleanup(as_json.stdout.close)
        self.addCleanup(as_json.wait)
        self.addCleanup(as_json.kill)
        self.assertEqual(json.loads(as_json.stdout.readline())["upstreams"][0]["desired"], "1")

    def test_where_nobody_answers_a_watch_does_not_begin(self):
        self.agent.kill()
        status, out, err = ctl(self.agent.address, "status", "--watch")
        self.assertEqual((status, out), (3, ""))
        self.assertIn("no answer from", err)

    def test_a_bar_is_drawn_on_stderr_at_a_terminal_and_wiped_away(self):
        path = self.enterContext(open(self._file(instances(2000)), encoding="utf-8")).name
        bar = self.at_terminal("register", "-f", path)
        self.assertEqual(bar.wait(), 0)
        self.assertRegex(bar.output, r"registering  \[#+ +\]  [\d,]+ of 2,000\x1b\[K")
        self.assertTrue(bar.output.endswith("\r\x1b[Kregistered 2000 of 2000 instances\r\n"),
                        bar.output[-200:])
        status, out, err = ctl(self.agent.address, "unregister", "-f", path)
        self.assertEqual((status, out, err), (0, "unregistered 2000 of 2000 instances\n", ""))
        wait_for(lambda: daemons.listed(self.registry.address, "many") == [])

    def test_a_drain_has_a_bar_too(self):
        daemons.register(self.agent.address, "orders", "orders-1")
        self.registry.signal(signal.SIGSTOP)
        drain = self.at_terminal("drain", "--deadline", "3s")
        drain.wait_for("draining  [")
        self.assertEqual(drain.wait(), 1)
        after = drain.output.split("\r\x1b[K")[-1].split("\r\n")
        self.assertEqual(after[0], "unregistered 0, remaining 1")
        self.assertRegex(after[2], r"^default/orders/orders-1 +not answered yet +grpc://")
        self.assertTrue(after[3].startswith(
            "failbackctl: drain: the registry has not acknowledged within 3s"), after)

    def _file(self, text):
        folder = self.enterContext(daemons.tempfile.TemporaryDirectory(prefix="fb-"))
        path = folder + "/instances.json"
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def test_what_is_refused_of_a_file_is_told_and_the_rest_is_done(self):
        items = json.loads(instances(3))
        items[1]["port"] = 0
        status, out, err = ctl(self.agent.address, "register", "-f", "-", "--wait", "acknowledged",
                               stdin=json.dumps(items))
        self.assertEqual((status, out), (1, "registered 2 of 3 instances\n"))
        self.assertRegex(err, "^failbackctl: register: default/many/i-1: INVALID_ARGUMENT: .*port: 0 "
                              "is not in 1..65535\n$")
        self.assertEqual(daemons.listed(self.registry.address, "many"), ["i-0", "i-2"])
        for text, problem in (
                ("{}", "standard input: expected a list of instances"),
                ("- key: {service: a, id: b}", "standard input:1: key.id: unknown key; allowed: "),
                ("- key: {service: a}\n", "standard input:1: key.instance_id: is required"),
                ("- [", "standard input:1: not YAML: ")):
            status, out, err = ctl(self.agent.address, "register", "-f", "-", stdin=text)
            self.assertEqual((status, out), (2, ""), text)
            self.assertIn("failbackctl: register: " + problem, err)

    def test_a_listing_is_a_file_for_register(self):
        daemons.register(self.agent.address, "orders", "orders-1", "--meta", "version=1.10",
                         "--weight", "7", "--zone", "z")
        other = daemons.registry()
        self.addCleanup(other.kill)
        for output in ("json", "yaml"):
            text = ctl(self.agent.address, "-o", output, "list")[1]
            status, _, err = ctl(other.address, "register", "-f", "-", stdin=text)
            self.assertEqual(status, 0, err)
            copy, original = (json.loads(ctl(target, "-o", "json", "list")[1])[0]["instance"]
                              for target in (other.address, self.registry.address))
            self.assertEqual(copy, original)
            self.assertEqual(ctl(other.address, "unregister", "-f", "-", stdin=text)[0], 0)


if __name__ == "__main__":
    unittest.main()
