"""`failbackctl subscribe`, as scripts use it: a command for each change, and a target that goes away."""

import json
import os
import subprocess
import tempfile
import unittest

import daemons
from daemons import CTL, Terminal, ctl, wait_for


class FollowTest(unittest.TestCase):
    def setUp(self):
        self.registry = daemons.registry()
        self.addCleanup(self.registry.kill)
        folder = tempfile.TemporaryDirectory(prefix="fb-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def start(self, *args):
        process = subprocess.Popen([CTL, "-t", self.registry.address, "subscribe", *args],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def file(self, name):
        return os.path.join(self.folder, name)

    def lines(self, name):
        try:
            with open(self.file(name), encoding="utf-8") as file:
                return file.read().splitlines()
        except FileNotFoundError:
            return []

    def test_a_command_runs_for_each_change(self):
        daemons.register(self.registry.address, "orders", "orders-1")
        command = ('printf "%s|" "$FAILBACK_EVENT" "$FAILBACK_EVENT_NAMESPACE" '
                   '"$FAILBACK_EVENT_SERVICE" "$FAILBACK_EVENT_COUNT" "$FAILBACK_EVENT_STALE" '
                   '"$FAILBACK_EVENT_UPSERTS" "$FAILBACK_EVENT_REMOVALS" "$FAILBACK_TARGET"; echo; cat')
        follower = self.start("orders", "--exec", command, "--count", "3")
        change = lambda: (follower.stdout.readline(), json.loads(follower.stdout.readline()))
        variables, event = change()
        self.assertEqual(variables, "snapshot|default|orders|1|false|orders-1||%s|\n" %
                         self.registry.address)
        self.assertEqual(event["snapshot"]["instances"][0]["port"], 8080)
        daemons.register(self.registry.address, "orders", "orders-2")
        variables, event = change()
        self.assertEqual(variables.split("|")[:7],
                         ["delta", "default", "orders", "2", "false", "orders-2", ""])
        self.assertEqual(event["delta"]["upserts"][0]["key"]["instanceId"], "orders-2")
        ctl(self.registry.address, "unregister", "orders", "--id", "orders-1")
        self.assertEqual(change()[0].split("|")[3:7], ["1", "false", "", "orders-1"])
        self.assertEqual(follower.wait(daemons.TIMEOUT), 0)
        self.assertEqual(follower.stderr.read(), "")

    def test_a_command_that_fails_is_told_and_runs_again(self):
        follower = self.start("orders", "--exec", "echo ran; exit 3")
        self.assertEqual(follower.stdout.readline(), "ran\n")
        self.assertRegex(follower.stderr.readline(),
                         r"^failbackctl: subscribe: --exec, at revision \d+: the command ended with "
                         "exit status 3\n$")
        daemons.register(self.registry.address, "orders", "orders-1")
        self.assertEqual(follower.stdout.readline(), "ran\n")
        killed = self.start("orders", "--exec", "kill -9 $$")
        self.assertIn("the command was ended by signal 9", killed.stderr.readline())

    def test_commands_never_run_two_at_once_and_none_misses_the_last_state(self):
        # Each holds a folder of its own making; a second one at the same time could not make it.
        command = ('mkdir {0} || echo overlap >> {1}; while [ -e {2} ]; do sleep 0.02; done; rmdir {0}; '
                   'echo "$FAILBACK_EVENT_COUNT" >> {1}').format(
                       self.file("running"), self.file("log"), self.file("hold"))
        with open(self.file("hold"), "w", encoding="utf-8"):
            pass
        self.start("orders", "--exec", command)
        wait_for(lambda: os.path.isdir(self.file("running")))
        for i in range(20):
            daemons.register(self.registry.address, "orders", "orders-%d" % i)
        os.unlink(self.file("hold"))
        wait_for(lambda: self.lines("log")[-1:] == ["20"], lambda: self.lines("log"))
        self.assertNotIn("overlap", self.lines("log"))
        self.assertEqual(self.lines("log")[0], "0")

    def test_a_watch_stays_when_the_target_goes_and_tells_what_is_new_when_it_is_back(self):
        daemons.register(self.registry.address, "orders", "orders-1")
        follower = self.start("orders", "--exec", "echo $FAILBACK_EVENT_COUNT")
        self.assertEqual(follower.stdout.readline(), "1\n")
        self.registry.kill()
        self.assertIn("; trying again\n", follower.stderr.readline())
        self.registry = daemons.registry(listen=self.registry.address)
        self.addCleanup(self.registry.kill)
        self.assertEqual(follower.stdout.readline(), "0\n")  # another store, and empty
        daemons.register(self.registry.address, "orders", "orders-2")
        self.assertEqual(follower.stdout.readline(), "1\n")

    def test_what_is_silent_is_told_once(self):
        agent = daemons.agent(self.registry)
        self.addCleanup(agent.kill)
        self.registry.kill()
        follower = subprocess.Popen([CTL, "-t", agent.address, "subscribe", "orders", "--count", "1"],
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(follower.kill)
        first = follower.stderr.readline()
        self.assertTrue(first.startswith("failbackctl: subscribe: nothing yet from %s: " % agent.address), first)
        self.registry = daemons.registry(listen=self.registry.address)
        self.addCleanup(self.registry.kill)
        out, err = follower.communicate(timeout=daemons.TIMEOUT)
        self.assertIn("nothing there", out)
        self.assertEqual((follower.returncode, err), (0, ""))

    def test_without_watch_the_end_of_the_target_is_the_end(self):
        follower = self.start("orders")
        self.assertIn("nothing there", follower.stdout.readline())
        self.registry.kill()
        self.assertIn(follower.wait(daemons.TIMEOUT), (1, 3))
        self.assertIn("failbackctl: subscribe: UNAVAILABLE", follower.stderr.read())

    def test_a_refusal_ends_a_watch(self):
        status, _, err = ctl(self.registry.address, "subscribe", "--watch", "--zone", "z")
        self.assertEqual(status, 1)
        self.assertIn("selector.zones", err)

    def test_at_a_terminal_a_watch_is_the_list_itself(self):
        daemons.register(self.registry.address, "orders", "orders-1", "--meta", "b=2", "--meta", "a=1")
        watch = Terminal([CTL, "-t", self.registry.address, "subscribe", "orders", "--watch"],
                         env={"NO_COLOR": "1"})
        self.addCleanup(watch.close)
        seen = watch.wait_for("default/orders  1 instances, revision 1, ")
        watch.wait_for("orders-1  10.0.0.7:8080  healthy  100     -     a=1,b=2")
        daemons.register(self.registry.address, "orders", "orders-2")
        seen = watch.wait_for("default/orders  2 instances, revision 2, ", seen)
        self.registry.kill()
        watch.wait_for("the target is unavailable; trying again", seen)
        services = Terminal([CTL, "-t", self.registry.address, "subscribe", "--watch"])
        self.addCleanup(services.close)
        self.assertEqual(services.wait(), 3)


if __name__ == "__main__":
    unittest.main()
