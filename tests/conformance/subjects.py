"""What the suite runs against: a registry on each store, two over one etcd, an agent."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import grpc

from ports import reserved_address, reserved_port

REGISTRY = os.environ.get("FAILBACK_TEST_REGISTRY", "registry/failback-registry")
AGENT = os.environ.get("FAILBACK_TEST_AGENT", "agent/failback-agent")
TIMEOUT = 60


class Process:
    """A daemon that runs until the suite ends, or is stopped."""

    def __init__(self, command, ready):
        self.command, self.ready = command, ready
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if self.ready not in line:
            raise AssertionError(f"{self.command[0]} did not start: {line!r}")

    def stop(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(TIMEOUT)
        self.process.stdout.close()


class Etcd:
    """One member, its data in a folder."""

    def __init__(self, folder):
        self.client, peer = reserved_port(), reserved_port()
        url, peer_url = f"http://127.0.0.1:{self.client}", f"http://127.0.0.1:{peer}"
        self.process = subprocess.Popen(
            ["/usr/bin/etcd", "--name", "m", "--data-dir", os.path.join(folder, "etcd"),
             "--listen-client-urls", url, "--advertise-client-urls", url,
             "--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url,
             "--initial-cluster", f"m={peer_url}", "--heartbeat-interval", "20",
             "--election-timeout", "200", "--log-level", "error"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + TIMEOUT
        while socket.socket().connect_ex(("127.0.0.1", self.client)) != 0:
            if time.monotonic() > deadline:
                raise AssertionError("etcd did not start")
            time.sleep(0.02)

    def stop(self):
        self.process.kill()
        self.process.wait()


class Subject:
    """Registries (or an agent) that the clauses call, and how to have one with other options or again."""

    name = ""
    servers = 1

    def __init__(self):
        # Memory, where there is: etcd syncs each commit.
        where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = tempfile.mkdtemp(prefix="failback-conformance-", dir=where)
        self._running = []
        self._stores = 0
        self.prepare()
        self.daemons = [self.registry(self.store()) for _ in range(self.servers)]

    def prepare(self):
        pass

    def store(self):
        """A URI; the same each time for what several servers share."""
        raise NotImplementedError

    def own_store(self):
        """The URI of a store that nobody else has."""
        raise NotImplementedError

    def registry(self, store, *options):
        address = reserved_address()
        daemon = Process([REGISTRY, "--listen", address, "--store", store, "--admin", "",
                          "--log-level", "error", *options], "failback-registry listening on ")
        daemon.address = address
        self._running.append(daemon)
        return daemon

    def own(self, *options):
        """Another daemon of this kind with its own store and these options."""
        return self.registry(self.own_store(), *options)

    @property
    def addresses(self):
        return [daemon.address for daemon in self.daemons]

    def close(self):
        for daemon in reversed(self._running):
            daemon.stop(signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


class Memory(Subject):
    name = "memory"

    def store(self):
        return "memory:"

    own_store = store


class Sqlite(Subject):
    name = "sqlite"

    def own_store(self):
        self._stores += 1
        return f"sqlite:///{self.folder}/registry{self._stores}.db"

    store = own_store


class EtcdOne(Subject):
    name = "etcd"

    def prepare(self):
        self.etcd = Etcd(self.folder)
        self._running.append(self)

    def stop(self, _):
        self.etcd.stop()

    def store(self):
        return f"etcd://127.0.0.1:{self.etcd.client}/failback"

    def own_store(self):
        self._stores += 1
        return f"etcd://127.0.0.1:{self.etcd.client}/own{self._stores}"


class EtcdTwo(EtcdOne):
    """Two servers over one etcd: a clause calls the first, or the second as `world.other`."""
    name = "etcd-two"
    servers = 2


class Agent(Memory):
    """An agent in front of a registry in memory."""
    name = "agent"

    def __init__(self):
        super().__init__()
        self.daemons = [self.agent(self.daemons[0])]

    def agent(self, registry):
        address = reserved_address()
        daemon = Process([AGENT, "--listen", address, "--registry", f"grpc://{registry.address}", "--admin", "",
                          "--log-level", "error"], "failback-agent listening on ")
        daemon.address = address
        self._running.append(daemon)
        wait_until_ready(address)
        return daemon

    def own(self, *options):
        return self.agent(self.registry("memory:", *options))


def wait_until_ready(address):
    """Until an agent has a session at its registry: a listing passes."""
    from failback.registry.v1 import registry_pb2 as pb
    from failback.registry.v1 import registry_pb2_grpc as pb_grpc
    deadline = time.monotonic() + TIMEOUT
    with grpc.insecure_channel(address) as channel:
        stub = pb_grpc.RegistryServiceStub(channel)
        while True:
            try:
                if not stub.List(pb.ListRequest(), timeout=5).stale:
                    return
            except grpc.RpcError:
                pass
            if time.monotonic() > deadline:
                raise AssertionError("the agent does not reach its registry")
            time.sleep(0.02)


SUBJECTS = {subject.name: subject for subject in (Memory, Sqlite, EtcdOne, EtcdTwo, Agent)}
