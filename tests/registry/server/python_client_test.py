"""A client in another language's gRPC, against both daemons."""

import queue
import re
import subprocess
import sys
import unittest

import grpc

from failback.registry.v1 import registry_pb2 as pb
from failback.registry.v1 import registry_pb2_grpc as pb_grpc
from failback.rpc.v1 import status_pb2

AGENT = sys.argv.pop()
REGISTRY = sys.argv.pop()
TIMEOUT = 60  # reached only when something is broken


def instance(instance_id, port=8080, service="orders"):
    return pb.ServiceInstance(
        key=pb.InstanceKey(service=service, instance_id=instance_id),
        address="10.0.0.7",
        port=port,
    )


class PythonClientTest(unittest.TestCase):

    def setUp(self):
        self.connect(self.start([REGISTRY, "--store", "memory:"]))

    def start(self, command):
        """Starts a daemon on a free port; returns its address."""
        process = subprocess.Popen(
            command + ["--listen", "127.0.0.1:0", "--log-level", "warning"],
            stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.stop, process)
        line = process.stdout.readline()
        ready = re.match(r"failback-\w+ listening on (127\.0\.0\.1:\d+), ", line)
        self.assertTrue(ready, line)
        return ready.group(1)

    def connect(self, address):
        self.channel = grpc.insecure_channel(address)
        self.addCleanup(self.channel.close)
        self.registry = pb_grpc.RegistryServiceStub(self.channel)

    def stop(self, process):
        """Ends the daemon in good order, and expects it to be one."""
        process.terminate()
        try:
            self.assertEqual(process.wait(TIMEOUT), 0)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()

    def register(self, *instances, session_id=""):
        response = self.registry.Register(
            pb.RegisterRequest(
                session_id=session_id,
                registrations=[pb.Registration(instance=i) for i in instances]),
            timeout=TIMEOUT)
        for result in response.results:
            self.assertEqual(result.status.code, 0, result)
            self.assertEqual(result.state, pb.INTENT_STATE_ACKNOWLEDGED)
        return response

    def listed(self):
        response = self.registry.List(pb.ListRequest(), timeout=TIMEOUT)
        return [record.instance.key.instance_id for record in response.records]

    def test_register_list_unregister(self):
        response = self.register(instance("a"), instance("b"))
        self.assertEqual(len(response.results), 2)
        self.assertGreater(response.epoch, 0)
        self.assertEqual(self.listed(), ["a", "b"])
        self.registry.Unregister(
            pb.UnregisterRequest(deregistrations=[pb.Deregistration(key=instance("a").key)]),
            timeout=TIMEOUT)
        self.assertEqual(self.listed(), ["b"])

    def test_subscribe_and_unsubscribe(self):
        session = self.registry.OpenSession(
            pb.OpenSessionRequest(incarnation="python"), timeout=TIMEOUT)
        self.register(instance("a"), session_id=session.session_id)
        stream = self.registry.Subscribe(
            pb.SubscribeRequest(
                session_id=session.session_id, subscription_id="s",
                selector=pb.Selector(service="orders")),
            timeout=TIMEOUT)
        snapshot = next(stream)
        self.assertEqual(
            [i.key.instance_id for i in snapshot.snapshot.instances], ["a"])
        self.register(instance("b"), session_id=session.session_id)
        delta = next(stream)
        self.assertEqual(delta.delta.base_revision, snapshot.revision)
        self.assertEqual([i.key.instance_id for i in delta.delta.upserts], ["b"])
        self.registry.Unsubscribe(
            pb.UnsubscribeRequest(session_id=session.session_id, subscription_id="s"),
            timeout=TIMEOUT)
        self.assertEqual(list(stream), [])
        self.assertEqual(stream.code(), grpc.StatusCode.OK)

    def test_keep_alive(self):
        session = self.registry.OpenSession(
            pb.OpenSessionRequest(incarnation="python"), timeout=TIMEOUT)
        requests = queue.Queue()
        responses = self.registry.KeepAlive(iter(requests.get, None), timeout=TIMEOUT)
        for session_id in (session.session_id, "nobody", session.session_id):
            requests.put(pb.KeepAliveRequest(session_id=session_id))
            response = next(responses)
            self.assertEqual(response.session_id, session_id)
            self.assertEqual(response.status.code != 0, session_id == "nobody")
        requests.put(None)
        self.assertEqual(list(responses), [])

    def test_error_details(self):
        with self.assertRaises(grpc.RpcError) as raised:
            self.registry.KeepAlive(iter([]), timeout=TIMEOUT)
            self.registry.Subscribe(
                pb.SubscribeRequest(selector=pb.Selector(service="a b")), timeout=TIMEOUT).next()
        error = raised.exception
        self.assertEqual(error.code(), grpc.StatusCode.INVALID_ARGUMENT)
        details = dict(error.trailing_metadata())["grpc-status-details-bin"]
        status = status_pb2.Status.FromString(details)
        self.assertEqual(status.code, grpc.StatusCode.INVALID_ARGUMENT.value[0])
        infos = [d for d in status.details
                 if d.type_url == "type.googleapis.com/google.rpc.ErrorInfo"]
        info = status_pb2.ErrorInfo.FromString(infos[0].value)
        self.assertEqual((info.domain, info.reason), ("failback.dev", "INVALID_FIELD"))
        self.assertIn("selector.service", status.message)

    def call_bytes(self, method, request):
        return self.channel.unary_unary(method)(request, timeout=TIMEOUT)

    def test_health(self):
        # HealthCheckRequest{service = 1}, HealthCheckResponse{status = 1}; 1 is SERVING.
        for name in (b"", b"failback.registry.v1.RegistryService"):
            request = b"\x0a" + bytes([len(name)]) + name
            self.assertEqual(
                self.call_bytes("/grpc.health.v1.Health/Check", request), b"\x08\x01")
        with self.assertRaises(grpc.RpcError) as raised:
            self.call_bytes("/grpc.health.v1.Health/Check", b"\x0a\x01x")
        self.assertEqual(raised.exception.code(), grpc.StatusCode.NOT_FOUND)

    def test_reflection_is_not_served(self):
        # ServerReflectionRequest{list_services = 7}.
        call = self.channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        with self.assertRaises(grpc.RpcError) as raised:
            next(call(iter([b"\x3a\x01*"]), timeout=TIMEOUT))
        self.assertEqual(raised.exception.code(), grpc.StatusCode.UNIMPLEMENTED)


class PythonAgentTest(PythonClientTest):
    """The same client and the same calls at the sidecar, but for what only a registry tells."""

    def setUp(self):
        upstream = self.start([REGISTRY, "--store", "memory:"])
        self.connect(self.start([AGENT, "--registry", "grpc://" + upstream]))

    def register(self, *instances, session_id=""):
        response = self.registry.Register(
            pb.RegisterRequest(
                session_id=session_id,
                registrations=[pb.Registration(instance=i) for i in instances],
                wait_for=pb.INTENT_STATE_ACKNOWLEDGED),
            timeout=TIMEOUT)
        for result in response.results:
            self.assertEqual(result.status.code, 0, result)
            self.assertEqual(result.state, pb.INTENT_STATE_ACKNOWLEDGED)
        return response

    def test_register_list_unregister(self):
        self.register(instance("a"), instance("b"))
        self.assertEqual(self.listed(), ["a", "b"])
        self.registry.Unregister(
            pb.UnregisterRequest(
                deregistrations=[pb.Deregistration(key=instance("a").key)],
                wait_for=pb.INTENT_STATE_ACKNOWLEDGED),
            timeout=TIMEOUT)
        self.assertEqual(self.listed(), ["b"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
