"""The client of examples/python, which is written from docs/protocol.md alone, against real registries."""

import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import grpc

from failback.registry.v1 import registry_pb2 as pb
from failback.registry.v1 import registry_pb2_grpc as pb_grpc
from failback_client import Client
from ports import reserved_address

REGISTRY = sys.argv.pop()
TIMEOUT = 60  # reached only when something is broken
SOON = {"ttl": 1.0, "audit_seconds": 0.3, "superseded_seconds": 0.1}


def instance(instance_id, service="orders", port=8080, **fields):
    return pb.ServiceInstance(key=pb.InstanceKey(service=service, instance_id=instance_id),
                              address="10.0.0.7", port=port, **fields)


class SlowProxy:
    """Takes connections to `target` at `address`, and passes the first bytes on after `delay` seconds."""

    def __init__(self, target, delay):
        self._target, self._delay = target, delay
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = "127.0.0.1:%d" % self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self):
        while True:
            try:
                near = self._listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near):
        time.sleep(self._delay)
        host, port = self._target.rsplit(":", 1)
        try:
            far = socket.create_connection((host, int(port)))
        except OSError:
            near.close()
            return
        threading.Thread(target=self._copy, args=(near, far), daemon=True).start()
        self._copy(far, near)

    @staticmethod
    def _copy(source, sink):
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class PythonClientTest(unittest.TestCase):

    def setUp(self):
        self.address = reserved_address()
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.process = None
        self.addCleanup(self.kill)

    def start(self, store="sqlite", *options):
        uri = "memory:" if store == "memory" else f"sqlite:///{self.folder.name}/registry.db"
        self.process = subprocess.Popen(
            [REGISTRY, "--listen", self.address, "--store", uri, "--admin", "", "--log-level", "error",
             *options],
            stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        self.assertRegex(line, r"^failback-registry listening on ")

    def kill(self):
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process.stdout.close()
            self.process = None

    def client(self, **options):
        client = Client(options.pop("address", self.address), **{**SOON, **options})
        self.addCleanup(client.close)
        return client

    def stub(self):
        channel = grpc.insecure_channel(self.address)
        self.addCleanup(channel.close)
        return pb_grpc.RegistryServiceStub(channel)

    def listed(self):
        """{id: port} of the service `orders`."""
        try:
            page = self.stub().List(pb.ListRequest(selector=pb.Selector(service="orders")), timeout=TIMEOUT)
        except grpc.RpcError:
            return None
        return {r.instance.key.instance_id: r.instance.port for r in page.records}

    def until(self, value, expected):
        deadline = time.monotonic() + TIMEOUT
        while True:
            got = value()
            if got == expected:
                return
            self.assertLess(time.monotonic(), deadline, f"{got}, and not {expected}")
            time.sleep(0.02)

    @staticmethod
    def state(client, instance_id):
        return client.states().get(("default", "orders", instance_id), (None, None))[0]

    def test_what_is_stated_during_an_outage_is_carried_out_after_it(self):
        self.start()
        client = self.client()
        seen = []
        client.follow(pb.Selector(service="orders"),
                      lambda known, stale: seen.append({key[2]: i.port for key, i in known.items()}))
        client.register(instance("a"))
        client.register(instance("b", port=1))
        self.until(self.listed, {"a": 8080, "b": 1})
        self.kill()
        client.unregister(instance("a").key)
        client.register(instance("b", port=2))
        client.register(instance("b", port=3))
        client.register(instance("c"))
        self.start()
        self.until(self.listed, {"b": 3, "c": 8080})
        self.until(lambda: seen[-1], {"b": 3, "c": 8080})
        self.until(lambda: {s for s, _ in client.states().values()}, {"acknowledged"})
        self.assertNotIn({"b": 2}, seen)

    def test_a_connection_that_takes_long_to_stand_does_stand(self):
        # Longer than any wait between two attempts: what ends an attempt then ends each.
        self.start("memory")
        proxy = SlowProxy(self.address, delay=1.5)
        self.addCleanup(proxy.close)
        client = self.client(address=proxy.address, ttl=5.0)
        seen = []
        client.follow(pb.Selector(service="orders"),
                      lambda known, stale: seen.append({key[2]: i.port for key, i in known.items()}))
        client.register(instance("a"))
        self.until(lambda: seen[-1:], [{"a": 8080}])
        self.kill()
        self.start("memory")
        client.register(instance("b", port=1))
        self.until(self.listed, {"a": 8080, "b": 1})
        self.until(lambda: seen[-1:], [{"a": 8080, "b": 1}])

    def test_a_registry_that_has_forgotten_everything_gets_everything(self):
        self.start("memory")
        client = self.client()
        client.register(instance("a"))
        self.until(self.listed, {"a": 8080})
        self.kill()
        self.start("memory")
        self.until(self.listed, {"a": 8080})

    def test_a_session_that_was_ended_is_opened_again(self):
        self.start()
        client = self.client()
        client.register(instance("a"))
        self.until(self.listed, {"a": 8080})
        ended = client._session.session_id
        self.stub().CloseSession(pb.CloseSessionRequest(session_id=ended), timeout=TIMEOUT)
        self.until(lambda: client._session is not None and client._session.session_id != ended, True)
        self.until(self.listed, {"a": 8080})

    def test_the_later_incarnation_wins_and_the_older_claims_the_key_when_it_has_gone(self):
        self.start()
        older = self.client()
        older.register(instance("a", port=1))
        self.until(self.listed, {"a": 1})
        later = self.client()
        later.register(instance("a", port=2))
        self.until(self.listed, {"a": 2})
        older.register(instance("a", port=3))
        self.until(lambda: self.state(older, "a"), "superseded")
        self.assertEqual(self.listed(), {"a": 2})
        later.close()
        self.until(self.listed, {"a": 3})
        self.until(lambda: self.state(older, "a"), "acknowledged")

    def test_what_another_hand_removed_is_put_back(self):
        self.start()
        client = self.client()
        client.register(instance("a", status=pb.HEALTH_STATUS_DRAINING, metadata={"k": "v"}))
        self.until(self.listed, {"a": 8080})
        revision = self.stub().Unregister(
            pb.UnregisterRequest(deregistrations=[pb.Deregistration(key=instance("a").key)]),
            timeout=TIMEOUT).revision
        self.until(self.listed, {"a": 8080})
        # And then there is nothing to repair: several audits change nothing.
        audits = client._audit_due
        self.until(lambda: client._audit_due > audits + 2 * SOON["audit_seconds"], True)
        page = self.stub().List(pb.ListRequest(), timeout=TIMEOUT)
        self.assertEqual(page.revision, revision + 1)

    def test_what_can_never_pass_is_parked_with_the_reason(self):
        self.start()
        client = self.client()
        client.register(instance("a", port=70000))
        self.until(lambda: self.state(client, "a"), "parked")
        self.assertRegex(client.states()[("default", "orders", "a")][1],
                         r"^INVALID_FIELD: registrations\[0\]\.instance\.port: 70000 ")
        client.register(instance("a", port=7000))
        self.until(self.listed, {"a": 7000})

    def test_a_large_set_comes_in_parts(self):
        self.start()
        client = self.client()
        for i in range(3000):
            client.register(instance(f"i{i}", port=1 + i, metadata={"pad": "x" * 500}))
        self.until(lambda: {s for s, _ in client.states().values()}, {"acknowledged"})
        seen = []
        client.follow(pb.Selector(service="orders"), lambda known, stale: seen.append(len(known)))
        self.until(lambda: seen[:1], [3000])

    def test_who_leaves_takes_its_instances_along(self):
        self.start()
        client = self.client()
        client.register(instance("a"))
        self.until(self.listed, {"a": 8080})
        client.close()
        self.assertEqual(self.listed(), {})


if __name__ == "__main__":
    unittest.main(verbosity=2)
