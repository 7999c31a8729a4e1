"""The programs of one version, and what a story does with them."""

import functools
import json
import os
import queue
import signal
import subprocess
import threading
import time

from ports import reserved_address

TIMEOUT = 60  # reached only when something is broken
NAMES = ("failback-registry", "failback-agent", "failbackctl")


class Failed(AssertionError):
    """What a story found that should not be."""


def check(holds, *what):
    if not holds:
        raise Failed(" ".join(str(w) for w in what))


def same(got, wanted, what):
    check(got == wanted, what, "is", repr(got) + ", not", repr(wanted))


def eventually(value, wanted, what):
    """Waits until value() is `wanted`, or what `wanted` calls true."""
    good = wanted if callable(wanted) else lambda got: got == wanted
    deadline = time.monotonic() + TIMEOUT
    while True:
        got = value()
        if good(got):
            return got
        check(time.monotonic() < deadline, what, "stays", repr(got) + ("" if callable(wanted) else f", not {wanted!r}"))
        time.sleep(0.05)


class Programs:
    """The three programs in a folder: side by side, as `./dev install` puts them, or as Bazel does."""

    def __init__(self, name, folder):
        self.name = name
        self.paths = {}
        for program in NAMES:
            for below in ("", "registry", "agent"):
                path = os.path.abspath(os.path.join(folder, below, program))
                if os.access(path, os.X_OK) and os.path.isfile(path):
                    self.paths[program] = path
                    break
            else:
                raise FileNotFoundError(f"{folder}: {program} is not there, nor in registry/ or agent/ below")

    @functools.lru_cache(maxsize=None)
    def version(self):
        told = {p: subprocess.run([path, "--version"], capture_output=True, text=True, timeout=TIMEOUT,
                                  check=True).stdout.split()[1] for p, path in self.paths.items()}
        check(len(set(told.values())) == 1, "the programs of", self.name, "are of several versions:", told)
        return told["failbackctl"]


class Daemon:
    """A daemon that was started: serving, or `refused` (it has ended, with `status` and `log()`)."""

    def __init__(self, program, address, log, *options):
        self.address, self._log = address, log
        ready = f"{os.path.basename(program)} listening on "
        begin = self.log().count(ready) if os.path.exists(log) else 0
        with open(log, "ab") as out:
            self._process = subprocess.Popen([program, "--listen", address, "--admin", "", *options],
                                             stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        deadline = time.monotonic() + TIMEOUT
        while self.log().count(ready) == begin and self._process.poll() is None:
            if time.monotonic() > deadline:
                self.kill()
                raise Failed(f"{program} does not start: {self.log()}")
            time.sleep(0.02)

    @property
    def status(self):
        """None while it runs."""
        return self._process.poll()

    @property
    def refused(self):
        return self.status is not None

    def log(self):
        with open(self._log, encoding="utf-8", errors="replace") as log:
            return log.read()

    def serving(self):
        check(not self.refused, "has not started:", self.log()[-2000:])
        return self

    def stop(self, how=signal.SIGTERM):
        if self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(TIMEOUT)

    def kill(self):
        self.stop(signal.SIGKILL)


class Follower:
    """`failbackctl subscribe`: the set of ids as its messages tell it."""

    def __init__(self, ctl, target, service):
        self.ids, self.messages = set(), 0
        self._lines = queue.Queue()
        self._process = subprocess.Popen([ctl, "--target", target, "subscribe", service, "--watch", "-o", "json"],
                                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                         stderr=subprocess.DEVNULL, text=True)
        threading.Thread(target=lambda: [self._lines.put(l) for l in self._process.stdout], daemon=True).start()

    def until(self, ids, what):
        deadline = time.monotonic() + TIMEOUT
        while self.messages == 0 or self.ids != set(ids):
            try:
                line = self._lines.get(timeout=0.2)
            except queue.Empty:
                check(time.monotonic() < deadline, what, "is told as", sorted(self.ids), "not", sorted(ids))
                continue
            if line.startswith("{"):
                self._apply(json.loads(line))

    def _apply(self, message):
        if "snapshot" in message:
            self.ids = {i["key"]["instanceId"] for i in message["snapshot"]["instances"]}
            self.messages += 1
        elif "delta" in message:
            self.ids |= {i["key"]["instanceId"] for i in message["delta"]["upserts"]}
            self.ids -= {k["instanceId"] for k in message["delta"]["removals"]}
            self.messages += 1

    def heard(self):
        """What it was told that `until` has not read."""
        lines = []
        while not self._lines.empty():
            lines.append(self._lines.get())
        return lines

    def stop(self):
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


class Stage:
    """One story's folder and processes; all end with it."""

    def __init__(self, folder):
        self.folder = folder
        os.makedirs(folder)
        self._running = []

    def file(self, name):
        return os.path.join(self.folder, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in reversed(self._running):
            process.stop(signal.SIGKILL) if isinstance(process, Daemon) else process.stop()

    def own(self, process):
        """Stops `process` with the others; returns it."""
        self._running.append(process)
        return process

    def store(self, name="registry.db"):
        return "sqlite://" + self.file(name)

    def registry(self, programs, store, address=None, options=(), log="registry.log"):
        """Perhaps `refused`: the caller says serving() or looks."""
        return self.own(Daemon(programs.paths["failback-registry"], address or reserved_address(), self.file(log),
                                "--store", store, *options))

    def agent(self, programs, registry, address=None, options=(), log="agent.log"):
        """`registry` is an address, several with commas, or a URI; the upstream is called `main`."""
        uri = registry if "://" in registry else "grpc://" + registry
        return self.own(Daemon(programs.paths["failback-agent"], address or reserved_address(), self.file(log),
                                "--registry", "main=" + uri, *options))

    def follow(self, programs, target, service="orders"):
        return self.own(Follower(programs.paths["failbackctl"], target, service))


class Ctl:
    """failbackctl of one version."""

    def __init__(self, programs):
        self._path = programs.paths["failbackctl"]

    def run(self, target, *args):
        """(exit status, stdout, stderr)"""
        done = subprocess.run([self._path, "--target", target, "--timeout", "30s", *args], capture_output=True,
                              text=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL, check=False)
        return done.returncode, done.stdout, done.stderr

    def ok(self, target, *args):
        status, out, err = self.run(target, *args)
        check(status == 0, "failbackctl", *args, "ends with", status, err.strip())
        return out

    def json(self, target, *args):
        return json.loads(self.ok(target, *args, "-o", "json"))

    def register(self, target, instance_id, *options, wait="acknowledged", service="orders", port=80):
        self.ok(target, "register", service, "--id", instance_id, "--address", "10.0.0.1", "--port", str(port),
                "--wait", wait, *options)

    def unregister(self, target, instance_id, *options, wait="acknowledged", service="orders"):
        self.ok(target, "unregister", service, "--id", instance_id, "--wait", wait, *options)

    def ids(self, target, service="orders"):
        """The ids listed; what keeps them from being listed, while something does."""
        status, out, err = self.run(target, "list", service, "-o", "json")
        return sorted(r["instance"]["key"]["instanceId"] for r in json.loads(out)) if status == 0 else err

    def ports(self, target, service="orders"):
        return {r["instance"]["key"]["instanceId"]: r["instance"]["port"]
                for r in self.json(target, "list", service)}

    def pending(self, target):
        """The registers and unregisters."""
        return sorted(o["id"] for o in self.json(target, "pending") if not o["id"].startswith("subscribe"))

    def followed(self, target):
        """What an agent follows and its registry does not tell: the state, and the code of the last answer."""
        return {o["id"]: (o["state"], o.get("lastStatus", {}).get("code"))
                for o in self.json(target, "pending") if o["id"].startswith("subscribe")}

    def upstream(self, target):
        """How an agent is with its registry."""
        return self.json(target, "status")["upstreams"][0]

    def ready(self, target):
        eventually(lambda: self.upstream(target)["state"], "UPSTREAM_STATE_READY", f"the upstream of {target}")
        return self.upstream(target)
