"""The clients' tables of what is wanted, without I/O: the cases of intents_cases.txt, and random ones, in which both
languages must do the same, and a sidecar that fails in every way must end with each key's last intent."""

import os
import random
import subprocess
import unittest

from failback.intents import Intents

CASES = "tests/clients/intents_cases.txt"


class Trace:
    """Carries out commands on the table of clients/python; returns each with its result."""

    def __init__(self):
        self.table = Intents()
        self.sent = {}

    def put(self, key, value, waiter):
        self.table.put(key, None if value == "-" else Value(value), waiter)

    def leave(self, key, waiter):
        self.table.leave(key, waiter)

    def open(self):
        self.table.session_opened()

    def batch(self, limit):
        batch = self.table.batch(int(limit))
        self.sent.update((intent.key, intent) for intent in batch)
        return ["%s=%s" % (i.key, i.instance) if i.instance else i.key + "-" for i in batch]

    def accepted(self, key):
        return self.table.accepted(self.sent[key])

    def refused(self, key):
        return self.table.refused(self.sent[key])

    def apart(self, *keys):
        self.table.apart([self.sent[key] for key in keys])

    def later(self, key):
        self.table.later(self.sent[key])

    def retry(self):
        self.table.retry()

    def refused_all(self):
        return self.table.refused_all()

    def run(self, line):
        command, *words = line.split(" ->")[0].split(" ")
        result = getattr(self, command)(*words)
        return line if result is None else " ".join([line.split(" ->")[0] + " ->", *result])


class Value(str):
    """As messages are, two that are equal are two."""


def in_python(text):
    lines, trace = [], Trace()
    for line in text.splitlines():
        if line.startswith("#"):
            trace = Trace()
        lines.append(trace.run(line) if line and not line.startswith("#") else line)
    return "\n".join(lines) + "\n"


def in_node(text):
    done = subprocess.run(["node", "tests/clients/intents_trace.js", os.environ["PACKED"] + "/package/intents.js"],
                          input=text, capture_output=True, text=True, check=True)
    return done.stdout


class Story:
    """A sender and a sidecar, at random; what happens is in `lines`."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.trace = Trace()
        self.lines = ["# %d" % seed]
        self.wanted, self.held, self.waiting = {}, {}, set()
        self.waiters = 0

    def run(self, *words):
        line = self.trace.run(" ".join(str(word) for word in words))
        self.lines.append(line)
        return line.split(" ->")[-1].split() if " ->" in line else []

    def settled(self, waiters):
        assert self.waiting.issuperset(waiters), (waiters, self.lines)
        self.waiting.difference_update(waiters)

    def put(self):
        for _ in range(self.random.randint(0, 3)):
            key, self.waiters = self.random.choice("abcde"), self.waiters + 1
            value = self.random.choice(["-", self.waiters, self.waiters])
            self.run("put", key, value, "w%d" % self.waiters)
            self.wanted[key] = value
            self.waiting.add("w%d" % self.waiters)
            if self.random.random() < 0.2:
                self.run("leave", key, "w%d" % self.waiters)
                self.waiting.discard("w%d" % self.waiters)

    def send(self, fails):
        batch = self.run("batch", self.random.randint(1, 4))
        if fails and self.random.random() < 0.5:
            self.put()  # while the call is under way
        if fails and len(batch) > 1 and self.random.random() < 0.2:
            self.run("apart", *[item[0] for item in batch])
            return True
        for item in batch:
            if fails and self.random.random() < 0.5:
                self.run("later", item[0])
                continue
            self.held[item[0]] = item[2:] or "-"
            self.settled(self.run("accepted", item[0]))
        return bool(batch)

    def tell(self):
        for _ in range(40):
            self.put()
            self.send(fails=True)
            if self.random.random() < 0.1:
                self.held = {}
                self.run("open")
            if self.random.random() < 0.3:
                self.run("retry")
        while self.run("retry") or self.send(fails=False):
            pass


class Tables(unittest.TestCase):
    def test_cases(self):
        with open(CASES, encoding="utf-8") as file:
            cases = file.read()
        self.assertEqual(in_python(cases), cases)
        self.assertEqual(in_node(cases), cases)

    def test_the_last_intent_wins_whatever_fails(self):
        lines = []
        for seed in range(300):
            story = Story(seed)
            story.tell()
            gone = {key for key, value in story.wanted.items() if value == "-"}
            self.assertEqual({key: value for key, value in story.held.items() if value != "-"},
                             {key: str(value) for key, value in story.wanted.items() if key not in gone}, story.lines)
            self.assertEqual(story.waiting, set(), story.lines)
            lines += story.lines
        text = "\n".join(lines) + "\n"
        self.assertEqual(in_node(text), text)


if __name__ == "__main__":
    unittest.main()
