"""How the clients send what is wanted, with sidecars that are killed, paused, slow and busy: each key ends with its last
intent, whichever caller waits for it; in both languages alike."""

import random
import sys
import unittest

import grpc

import node_modules
from failback.registry.v1 import registry_pb2 as pb
from fake_sidecar import OK, FakeSidecar, busy, refusal
from sidecar import PATIENCE, Processes, Sidecar, Story


class InPython:
    def start_story(self):
        return Story(self, sys.executable, "tests/clients/python_story.py")


class InNode:
    def start_story(self):
        return Story(self, "node", "--preserve-symlinks", node_modules.lay_program(self.folder, "node_story.js"))


class Outages:
    """With real daemons."""

    def settle(self, story, expected):
        """What the registry has in the end: after one more intent, and when the process has ended."""
        story.tell("register last 1")
        story.expect("registered last 1")
        self.until(self.listed, {**expected, "last": 1})
        story.process.kill()
        self.until(self.listed, {})

    def test_many_intents_of_an_outage_end_with_the_last(self):
        story = self.start_story()
        story.tell("register first 1")
        story.expect("registered first 1")
        self.kill_daemon(self.agent)
        ids = ["carts-%d" % number for number in range(20)]
        story.tell(*["register %s 8080" % id for id in ids], *["unregister %s" % id for id in ids])
        story.expect("asked unregister carts-19")
        self.start_agent()
        story.expect(*["registered %s 8080" % id for id in ids], *["unregistered %s" % id for id in ids])
        self.settle(story, {"first": 1})

    def test_a_wait_that_ended_leaves_the_intent_in_force(self):
        story = self.start_story()
        story.tell("register first 1")
        story.expect("registered first 1")
        self.pause_agent()
        story.tell("register carts-1 8080 200")
        story.expect("late register carts-1 8080")
        story.tell("register carts-1 8081 200", "unregister first 200", "register carts-2 8082 1")
        story.expect("late register carts-1 8081", "late unregister first", "late register carts-2")
        self.resume_agent()
        self.until(self.listed, {"carts-1": 8081, "carts-2": 8082})
        self.settle(story, {"carts-1": 8081, "carts-2": 8082})

    def test_random_intents_through_outages(self):
        story, chance, wanted = self.start_story(), random.Random(7), {}
        for round in range(6):
            if round % 2:
                self.pause_agent()
            else:
                self.kill_daemon(self.agent)
            for number in range(20):
                id, port = "carts-%d" % chance.randint(1, 5), 1000 * (round + 1) + number
                limit = chance.choice(["", " 1", " 20"])
                if chance.random() < 0.3:
                    wanted.pop(id, None)
                    story.tell("unregister %s%s" % (id, limit))
                else:
                    wanted[id] = port
                    story.tell("register %s %d%s" % (id, port, limit))
                if number == 10:  # some while it is unavailable, some while it comes back
                    story.expect("asked")
                    self.resume_agent() if round % 2 else self.start_agent()
        self.settle(story, wanted)


class Answers:
    """With a sidecar that answers as the test says."""

    def setUp(self):
        super().setUp()
        self.fake = FakeSidecar(self.target, ttl=0.3)
        self.addCleanup(self.fake.stop)
        self.story = self.start_story()

    def ask(self, line):
        self.story.tell(line)
        self.story.expect("asked " + line)

    def test_a_retry_sends_the_newest_intent(self):
        self.ask("register carts-1 8080")
        call = self.fake.next_call({"carts-1": 8080})
        self.ask("register carts-1 8081")
        call.fail(grpc.StatusCode.UNAVAILABLE)
        self.fake.next_call({"carts-1": 8081}).answer()
        self.story.expect("registered carts-1 8080", "registered carts-1 8081")
        self.ask("unregister carts-1")
        self.fake.next_call({"carts-1": None}).answer()
        self.story.expect("unregistered carts-1")

    def test_one_call_at_a_time(self):
        self.ask("register carts-1 8080")
        call = self.fake.next_call({"carts-1": 8080})
        self.ask("register carts-1 8081 1")
        self.story.expect("late")
        self.ask("register carts-1 8082")
        for _ in range(10):  # sessions go on
            self.fake.renewals.get(timeout=PATIENCE)
        self.assertTrue(self.fake.calls.empty())
        call.answer()
        self.fake.next_call({"carts-1": 8082}).answer()
        self.story.expect("registered carts-1 8080", "registered carts-1 8082")

    def test_no_call_without_a_session(self):
        self.ask("register carts-1 8080")
        call = self.fake.next_call({"carts-1": 8080})
        self.ask("register carts-2 8080")
        self.ask("unregister carts-3")
        self.fake.openings.get(timeout=PATIENCE)
        self.fake.opens.clear()
        self.fake.end_session()
        self.fake.openings.get(timeout=PATIENCE)  # it has no session, and has asked for one
        call.answer()
        self.story.expect("registered carts-1 8080")
        self.fake.opens.set()
        items = {}
        while set(items) != {"carts-1", "carts-2", "carts-3"}:
            call = self.fake.next_call()
            self.assertEqual(call.session, "session-2")
            items.update(call.items)
            call.answer()
        self.story.expect("registered carts-2 8080", "unregistered carts-3")

    def test_a_refusal_does_not_undo_a_newer_intent(self):
        self.ask("register carts-1 8080")
        call = self.fake.next_call({"carts-1": 8080})
        self.ask("register carts-1 8081")
        call.answer(refusal("registrations[0].instance.port: no"))
        self.story.expect("refused port: no")
        self.fake.next_call({"carts-1": 8081}).answer()
        self.story.expect("registered carts-1 8081")
        self.fake.end_session()
        self.fake.next_call({"carts-1": 8081}).answer()

    def register(self, *ids):
        for id in ids:
            self.ask("register %s 1" % id)
            self.fake.next_call({id: 1}).answer()
            self.story.expect("registered %s 1" % id)

    def test_a_session_is_renewed_and_used_while_one_item_is_not_taken_again(self):
        self.register("a", "b", "c", "d")
        self.fake.end_session()
        call = self.fake.next_call({"a": 1, "b": 1, "c": 1})  # as many as it says that it takes
        for _ in range(5):
            while self.fake.renewals.get(timeout=PATIENCE) != "session-2":
                pass
        call.answer(OK, busy(), OK)
        self.fake.next_call({"d": 1}).answer()
        self.ask("register e 1")
        sent = []
        for _ in range(2):
            call = self.fake.next_call()
            sent.append(call.items)
            call.answer()
        self.assertCountEqual(sent, [{"b": 1}, {"e": 1}])
        self.story.expect("registered e 1")

    def test_a_call_that_is_refused_as_a_whole_is_sent_in_its_parts(self):
        self.register("a", "b")
        self.fake.end_session()
        self.fake.next_call({"a": 1, "b": 1}).fail(grpc.StatusCode.RESOURCE_EXHAUSTED)
        self.fake.next_call({"a": 1}).fail(grpc.StatusCode.RESOURCE_EXHAUSTED)
        self.fake.next_call({"b": 1}).answer()

    def test_a_follower_learns_once_of_each_outage(self):
        def current(*instances):
            return pb.SubscribeResponse(snapshot=pb.Snapshot(instances=[
                pb.ServiceInstance(key=pb.InstanceKey(service="carts", instance_id=id), port=1, weight=7,
                                   metadata={"k": "v"}) for id in instances]))

        for messages in [[], [], [current()], [], [], [current("a")], [], [], [current(), pb.SubscribeResponse(stale=True)],
                         [], [current("b")]]:
            self.fake.following.put(messages)
        self.story.tell("follow")
        self.story.expect("[b:1/7/v] current")
        self.assertEqual([line for line in self.story.past if line.startswith("sees")], [
            "sees [] stale", "sees [] current", "sees [] stale", "sees [a:1/7/v] current", "sees [a:1/7/v] stale",
            "sees [] current", "sees [] stale", "sees [b:1/7/v] current"])


class PythonOutages(InPython, Outages, Sidecar):
    pass


class NodeOutages(InNode, Outages, Sidecar):
    pass


class PythonAnswers(InPython, Answers, Processes):
    pass


class NodeAnswers(InNode, Answers, Processes):
    pass


if __name__ == "__main__":
    unittest.main()
