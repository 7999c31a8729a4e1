"""The story of clients/node, packed as people get it, with a real registry and a real sidecar: registered, found,
through outages of the registry and of the sidecar, and gone when the process ends."""

import queue
import shutil
import threading
import unittest

import node_modules
from sidecar import PATIENCE, Sidecar

class NodeClient(Sidecar):
    def start_story(self):
        """The package beside what it needs, and a program that uses it."""
        node_modules.lay(self.folder)
        shutil.copy("tests/clients/node_story.js", self.folder)
        self.story = self.start("node", "--preserve-symlinks", self.folder + "/node_story.js", self.target)
        self.lines = queue.Queue()
        self.reader = threading.Thread(target=self.read)
        self.reader.start()
        self.addCleanup(self.reader.join)
        self.addCleanup(self.story.kill)

    def read(self):
        for line in self.story.stdout:
            self.lines.put(line.rstrip("\n"))

    def tell(self, line):
        self.story.stdin.write(line + "\n")
        self.story.stdin.flush()

    def expect(self, *texts):
        """Lines with the texts, in any order."""
        texts = list(texts)
        while texts:
            line = self.lines.get(timeout=PATIENCE)
            texts = [text for text in texts if text not in line]

    def test_a_service_stays_registered_through_outages(self):
        self.start_story()
        self.tell("follow")
        self.tell("register carts-1 8080")
        self.expect("registered carts-1 8080", "sees [carts-1:8080/7/v] current")
        self.until(self.listed, {"carts-1": 8080})
        # The registry is unavailable: intents are accepted, and arrive when it is back.
        self.kill_daemon(self.registry)
        self.tell("register carts-2 8081")
        self.tell("unregister carts-1")
        self.expect("registered carts-2 8081", "unregistered carts-1", " stale")
        self.start_registry()
        self.until(self.listed, {"carts-2": 8081})
        self.expect("sees [carts-2:8081/7/v] current")
        # The sidecar is killed, and has no state: it is given everything again.
        self.kill_daemon(self.agent)
        self.tell("register carts-2 8082")
        self.start_agent()
        self.expect("registered carts-2 8082")
        self.until(self.listed, {"carts-2": 8082})
        # Refused for good: the caller gets the error, and what was there stays.
        self.tell("register carts-2 70000")
        self.expect("refused")
        self.tell("close")
        self.expect("closed", "follow ended")
        self.until(self.listed, {})

    def test_the_end_of_the_process_unregisters(self):
        self.start_story()
        self.tell("register carts-9 1")
        self.expect("registered carts-9 1")
        self.until(self.listed, {"carts-9": 1})
        self.story.kill()
        self.until(self.listed, {})

    def test_edges(self):
        node_modules.lay(self.folder)
        shutil.copy("tests/clients/node_edges.js", self.folder)
        edges = self.start("node", "--preserve-symlinks", self.folder + "/node_edges.js", self.target)
        out, _ = edges.communicate(timeout=PATIENCE)
        self.assertEqual((edges.returncode, out), (0, """\
closed at once: Error: the agent is closed
sidecar away: TimeoutError, 1 warning
session refused: Refused 3: ttl: is negative
too much: Refused 3: registrations[0].instance.metadata["x"]: the value is 6000000 bytes long, at most 1024 are allowed
follow ends with its signal
follow ends with the agent
follow ends with break
follow of a sidecar that is unavailable ends with the agent
"""))


if __name__ == "__main__":
    unittest.main()
