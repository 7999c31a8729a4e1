"""A sidecar that answers as a test says."""

import concurrent.futures
import queue
import threading

import grpc
from google.protobuf import duration_pb2

from failback.registry.v1 import registry_pb2 as pb
from failback.registry.v1 import registry_pb2_grpc as pb_grpc
from failback.rpc.v1 import status_pb2
from sidecar import PATIENCE

OK = status_pb2.Status()


def refusal(text):
    return status_pb2.Status(code=grpc.StatusCode.INVALID_ARGUMENT.value[0], message=text)


def busy():
    """A refusal that asks for patience."""
    status = status_pb2.Status(code=grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], message="busy")
    status.details.add().Pack(status_pb2.RetryInfo(), type_url_prefix="type.googleapis.com")
    status.details[0].type_url = "type.googleapis.com/google.rpc.RetryInfo"
    return status


class Call:
    """A Register or an Unregister that waits for its answer."""

    def __init__(self, request):
        self.session = request.session_id
        if isinstance(request, pb.RegisterRequest):
            self.items = {r.instance.key.instance_id: r.instance.port for r in request.registrations}
        else:
            self.items = {d.key.instance_id: None for d in request.deregistrations}
        self.answers = queue.Queue()

    def answer(self, *statuses):
        """One for each item; without any, all are accepted."""
        self.answers.put(statuses or [OK] * len(self.items))

    def fail(self, code):
        self.answers.put(code)


class FakeSidecar(pb_grpc.RegistryServiceServicer):
    def __init__(self, target, ttl=10.0):
        self.ttl = ttl
        self.calls = queue.Queue()
        self.made = []
        self.renewals = queue.Queue()  # their sessions
        self.following = queue.Queue()  # a Subscribe's messages, after which it breaks
        self.openings = queue.Queue()  # an item for each that has arrived
        self.opens = threading.Event()
        self.opens.set()
        self.streams = queue.Queue()
        self.sessions = 0
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(16))
        pb_grpc.add_RegistryServiceServicer_to_server(self, self.server)
        self.server.add_insecure_port(target)
        self.server.start()

    def stop(self):
        while not self.streams.empty():
            self.end_session()
        self.following.put([])
        self.opens.set()
        for call in self.made:
            call.fail(grpc.StatusCode.UNAVAILABLE)
        self.server.stop(None).wait()

    def next_call(self, items=None):
        call = self.calls.get(timeout=PATIENCE)
        assert items is None or call.items == items, "%s, not %s" % (call.items, items)
        return call

    def end_session(self):
        self.streams.get(timeout=PATIENCE).cancel()

    def OpenSession(self, request, context):
        self.openings.put(request.incarnation)
        self.opens.wait(PATIENCE)
        self.sessions += 1
        return pb.OpenSessionResponse(session_id="session-%d" % self.sessions, ttl=duration_pb2.Duration(
            seconds=int(self.ttl), nanos=int(self.ttl % 1 * 1e9)), limits=pb.Limits(max_batch=3))

    def CloseSession(self, request, context):
        return pb.CloseSessionResponse()

    def KeepAlive(self, requests, context):
        self.streams.put(context)
        for request in requests:
            self.renewals.put(request.session_id)
            yield pb.KeepAliveResponse(session_id=request.session_id)

    def answer(self, request, context, response):
        call = Call(request)
        self.made.append(call)
        self.calls.put(call)
        answer = call.answers.get()
        if isinstance(answer, grpc.StatusCode):
            context.abort(answer, "as the test says")
        return response(results=[pb.IntentResult(status=status) for status in answer])

    def Register(self, request, context):
        return self.answer(request, context, pb.RegisterResponse)

    def Unregister(self, request, context):
        return self.answer(request, context, pb.UnregisterResponse)

    def Subscribe(self, request, context):
        yield from self.following.get(timeout=PATIENCE)
        context.abort(grpc.StatusCode.UNAVAILABLE, "as the test says")
