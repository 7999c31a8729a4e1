"""The story of clients/node, packed as people get it, with a real registry and a real sidecar: registered, found,
through outages of the registry and of the sidecar, and gone when the process ends."""

import os
import subprocess
import unittest
import unittest.mock

import node_modules
from sidecar import PATIENCE, Sidecar, Story


class NodeClient(Sidecar):
    def start_story(self):
        return Story(self, "node", "--preserve-symlinks", node_modules.lay_program(self.folder, "node_story.js"))

    def test_a_service_stays_registered_through_outages(self):
        story = self.start_story()
        story.tell("follow")
        story.tell("register carts-1 8080")
        story.expect("registered carts-1 8080", "sees [carts-1:8080/7/v] current")
        self.until(self.listed, {"carts-1": 8080})
        # The registry is unavailable: intents are accepted, and arrive when it is back.
        self.kill_daemon(self.registry)
        story.tell("register carts-2 8081")
        story.tell("unregister carts-1")
        story.expect("registered carts-2 8081", "unregistered carts-1", " stale")
        self.start_registry()
        self.until(self.listed, {"carts-2": 8081})
        story.expect("sees [carts-2:8081/7/v] current")
        # The sidecar is killed, and has no state: it is given everything again.
        self.kill_daemon(self.agent)
        story.tell("register carts-2 8082")
        self.start_agent()
        story.expect("registered carts-2 8082")
        self.until(self.listed, {"carts-2": 8082})
        # Refused for good: the caller gets the error, and what was there stays.
        story.tell("register carts-2 8083 60000 " + "v" * 2000)
        story.expect("refused metadata")
        story.tell("close")
        story.expect("closed", "follow ended")
        self.until(self.listed, {})

    def test_a_sidecar_that_hangs_is_reported_and_its_lists_are_stale(self):
        with unittest.mock.patch.dict(os.environ, STORY_TTL="1"):
            story = self.start_story()
        story.tell("register carts-1 8080", "follow")
        story.expect("registered carts-1 8080", "sees [carts-1:8080/7/v] current")
        self.pause_agent()
        story.expect("does not answer", "sees [carts-1:8080/7/v] stale")
        story.tell("register carts-2 8081 100")
        story.expect("late register carts-2 8081")
        self.resume_agent()
        story.expect("sees [carts-1:8080/7/v carts-2:8081/7/v] current")
        self.until(self.listed, {"carts-1": 8080, "carts-2": 8081})
        story.tell("close")
        story.expect("closed", "follow ended")

    def test_a_drained_sidecar_has_unregistered_and_takes_nothing_new(self):
        story = self.start_story()
        story.tell("register carts-1 8080")
        self.until(self.listed, {"carts-1": 8080})
        subprocess.run(["agent/failbackctl", "--target", self.target, "drain"], stdout=subprocess.DEVNULL, check=True)
        story.tell("unregister carts-1", "register carts-2 8081 1500")
        story.expect("unregistered carts-1", "the agent is draining and takes no new intents", "late register carts-2 8081")
        self.kill_daemon(self.agent)
        self.start_agent()
        self.until(self.listed, {"carts-2": 8081})
        story.tell("close")
        story.expect("closed")

    def test_a_list_that_does_not_come_is_reported(self):
        self.kill_daemon(self.registry)
        self.kill_daemon(self.agent)
        self.start_agent()
        story = self.start_story()
        story.tell("follow")
        story.expect("has no list of carts yet")
        story.tell("close")
        story.expect("closed", "follow ended")

    def test_the_end_of_the_process_unregisters(self):
        story = self.start_story()
        story.tell("register carts-9 1")
        story.expect("registered carts-9 1")
        self.until(self.listed, {"carts-9": 1})
        story.process.kill()
        self.until(self.listed, {})

    def test_edges(self):
        edges = self.start("node", "--preserve-symlinks", node_modules.lay_program(self.folder, "node_edges.js"), self.target)
        self.assertEqual(edges.stdout.readline(), "pause\n")
        self.pause_agent()
        edges.stdin.write("paused\n")
        edges.stdin.flush()
        self.assertEqual([edges.stdout.readline() for _ in range(3)],
                         ["paused: ended, ended, ended, ended, ended before\n", "closed: soon\n", "resume\n"])
        self.resume_agent()
        out = edges.stdout.read()
        self.assertEqual((edges.wait(PATIENCE), out), (0, """\
closed at once: Error: the agent is closed
sidecar away: TimeoutError, 1 warning
session refused: Refused 3: ttl: is negative
too much: Refused 3: metadata["x"]: the value is 6000000 bytes long, at most 1024 are allowed
TypeError: ttl: '10s' is not a number of seconds
TypeError: ttl: null is not a number of seconds
RangeError: ttl: NaN is not from -315576000000 to 315576000000 seconds
TypeError: name: 7 is not a string
TypeError: target: 7 is not a string
TypeError: target: null is not a string
RangeError: target: '' is not unix:PATH or HOST:PORT
RangeError: target: '/run/failback/agent.sock' is not unix:PATH or HOST:PORT
RangeError: target: 'grpc://127.0.0.1:7060' is not unix:PATH or HOST:PORT
TypeError: options: '127.0.0.1:7060' is not an object of target, name, ttl
TypeError: options: 5 is not an object of target, name, ttl
TypeError: options: [] is not an object of target, name, ttl
TypeError: options: null is not an object of target, name, ttl
TypeError: options: 'tartget' is not one of target, name, ttl
TypeError: options: 'signal' is not one of target, name, ttl
TypeError: metadata: 'zone=a' is not an object of strings
TypeError: metadata: null is not an object of strings
TypeError: metadata: Map(1) { 'zone' => 'a' } is not an object of strings
TypeError: metadata['zone']: 1 is not a string
TypeError: metadata['zone']: '\\ud800' is not a string of Unicode characters
TypeError: metadata: '\\udc00' is not a string of Unicode characters
TypeError: port: '8080' is not an integer from 1 to 65535
TypeError: port: 8080.5 is not an integer from 1 to 65535
RangeError: port: 0 is not an integer from 1 to 65535
RangeError: port: -1 is not an integer from 1 to 65535
RangeError: port: 65536 is not an integer from 1 to 65535
RangeError: weight: -1 is not an integer from 0 to 65535
TypeError: address: undefined is not a string
TypeError: id: 7 is not a string
RangeError: service: '' is not the name of a service
TypeError: instance: undefined is not an object of service, id, address, port, namespace, weight, zone, metadata
TypeError: instance: 'wieght' is not one of service, id, address, port, namespace, weight, zone, metadata
TypeError: instance: 'namespcae' is not one of service, id, address, port, namespace, weight, zone, metadata
TypeError: signal: AbortController [Object] is not an AbortSignal
TypeError: signal: AbortController [Object] is not an AbortSignal
TypeError: signal: 5 is not an AbortSignal
TypeError: signal: 5 is not an AbortSignal
TypeError: signal: null is not an AbortSignal
TypeError: options: 'singal' is not one of signal
TypeError: options: 5 is not an object of signal
TypeError: options: null is not an object of signal
TypeError: namespace: 7 is not a string
TypeError: signal: 5 is not an AbortSignal
RangeError: service: '' is not the name of a service
registered: last
Error: the agent is closed
follow ends with its signal
follow ends with the agent
follow ends with break
follow of a sidecar that is unavailable ends with the agent
"""))


if __name__ == "__main__":
    unittest.main()
