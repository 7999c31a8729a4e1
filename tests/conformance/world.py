"""What a clause has at hand: one subject's servers, names of its own, and words for what it does."""

import itertools
import queue
import re
import threading
import time
import uuid

import grpc
from google.protobuf import duration_pb2

from failback.admin.v1 import admin_pb2_grpc
from failback.registry.v1 import registry_pb2 as pb
from failback.registry.v1 import registry_pb2_grpc as pb_grpc
from failback.rpc.v1 import status_pb2

TIMEOUT = 60  # reached only when something is broken
HEALTHY, UNHEALTHY, DRAINING = (pb.HEALTH_STATUS_HEALTHY, pb.HEALTH_STATUS_UNHEALTHY,
                                pb.HEALTH_STATUS_DRAINING)
ACKNOWLEDGED = pb.INTENT_STATE_ACKNOWLEDGED


def check(holds, *what):
    """Fails the clause unless `holds`."""
    if not holds:
        raise AssertionError(" ".join(str(w) for w in what))


def same(got, wanted, what=""):
    check(got == wanted, what, "is", repr(got) + ", not", repr(wanted))


class Refusal:
    """What a refused item, message or call says to a program."""

    def __init__(self, status):
        self.code, self.message = status.code, status.message
        self.reason, self.metadata, self.fields, self.delay = "", {}, [], None
        for detail in status.details:
            kind = detail.type_url.rsplit("/", 1)[-1]
            if kind == "google.rpc.ErrorInfo":
                info = status_pb2.ErrorInfo.FromString(detail.value)
                if info.domain == "failback.dev":
                    self.reason, self.metadata = info.reason, dict(info.metadata)
            elif kind == "google.rpc.BadRequest":
                bad = status_pb2.BadRequest.FromString(detail.value)
                self.fields = [v.field for v in bad.field_violations]
            elif kind == "google.rpc.RetryInfo":
                delay = status_pb2.RetryInfo.FromString(detail.value).retry_delay
                self.delay = delay.seconds + delay.nanos / 1e9

    @staticmethod
    def of(error):
        for key, value in error.trailing_metadata() or ():
            if key == "grpc-status-details-bin":
                return Refusal(status_pb2.Status.FromString(value))
        return Refusal(status_pb2.Status(code=error.code().value[0], message=error.details() or ""))

    def __str__(self):
        return f"{self.reason or 'code %d' % self.code}: {self.message}"


def reason_of(call):
    """The reason with which call() is refused."""
    try:
        got = call()
    except grpc.RpcError as error:
        return Refusal.of(error).reason
    raise AssertionError(f"not refused: {got}")


def refused(call):
    """The Refusal of call(), which fails."""
    try:
        got = call()
    except grpc.RpcError as error:
        return Refusal.of(error)
    raise AssertionError(f"not refused: {got}")


def reason_of_item(result):
    return Refusal(result.status).reason


class Stream:
    """An open Subscribe: its messages as they come, and the set that they add up to."""

    def __init__(self, call):
        self.call, self.set, self.epoch, self.revision = call, {}, 0, 0
        self._parts = False  # a snapshot is under way
        self._messages = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        try:
            for message in self.call:
                self._messages.put(message)
            self._messages.put(None)
        except grpc.RpcError as error:
            self._messages.put(error)

    def message_or_end(self):
        """None after the next message, which is applied; else the Refusal that ended the stream."""
        got = self._messages.get(timeout=TIMEOUT)
        if isinstance(got, grpc.RpcError):
            return Refusal.of(got)
        check(got is not None, "the stream has ended with OK")
        self._apply(got)
        return None

    def message(self):
        """The next message, applied."""
        got = self._messages.get(timeout=TIMEOUT)
        check(isinstance(got, pb.SubscribeResponse), "the stream has ended:", got)
        self._apply(got)
        return got

    def _apply(self, got):
        kind = got.WhichOneof("event")
        if kind == "delta":
            check(got.epoch == self.epoch and got.delta.base_revision == self.revision,
                  "a delta with base", got.delta.base_revision, "after revision", self.revision)
            self.set.update((i.key.instance_id or i.key.service, i) for i in got.delta.upserts)
            for key in got.delta.removals:
                self.set.pop(key.instance_id or key.service, None)
        elif kind == "snapshot":
            if not self._parts:
                self.set = {}
            self._parts = got.snapshot.more
            self.set.update((i.key.instance_id or i.key.service, i) for i in got.snapshot.instances)
        if kind is not None:
            self.epoch, self.revision = got.epoch, got.revision

    def snapshot(self):
        """The whole of the next snapshot: its parts. What is only `stale` before it is passed over."""
        parts = [self.message()]
        while parts[-1].WhichOneof("event") is None:
            parts = [self.message()]
        check(parts[0].HasField("snapshot"), "no snapshot:", parts[0])
        while parts[-1].snapshot.more:
            parts.append(self.message())
        return parts

    def until(self, ids):
        """Reads until the set is of these ids; the messages."""
        messages = []
        while set(self.set) != set(ids):
            messages.append(self.message())
        return messages

    def end(self):
        """How the stream ends, after whatever still comes."""
        while True:
            got = self._messages.get(timeout=TIMEOUT)
            if got is None:
                return None
            if isinstance(got, grpc.RpcError):
                return Refusal.of(got)

    def cancel(self):
        self.call.cancel()


class Ended(grpc.RpcError):
    """The end of a subscription on a Watch stream, as a call of its own would have raised it."""

    def __init__(self, status):
        super().__init__()
        self._status = status

    def code(self):
        return next(code for code in grpc.StatusCode if code.value[0] == self._status.code)

    def trailing_metadata(self):
        return (("grpc-status-details-bin", self._status.SerializeToString()),)


class Watch:
    """An open Watch stream; each subscription on it is as the call of a Subscribe."""

    def __init__(self, stub):
        self._requests = queue.Queue()
        self._lock = threading.Lock()
        self._subscriptions = {}
        self._last = 0
        self.call = stub.Watch(iter(self._requests.get, None))
        threading.Thread(target=self._read, daemon=True).start()

    def _send(self, **command):
        self._requests.put(pb.WatchRequest(commands=[pb.WatchCommand(**command)]))

    def subscribe(self, request):
        with self._lock:
            self._last += 1
            watch_id, items = self._last, queue.Queue()
            self._subscriptions[watch_id] = items
            self._send(watch_id=watch_id, subscribe=request)
        return Watched(items, lambda: self._send(watch_id=watch_id, unsubscribe=pb.WatchUnsubscribe()))

    def _read(self):
        try:
            for response in self.call:
                for item in response.items:
                    with self._lock:
                        items = self._subscriptions[item.watch_id]
                        if item.HasField("end"):
                            del self._subscriptions[item.watch_id]
                    items.put(item)
        except grpc.RpcError as error:
            with self._lock:
                for items in self._subscriptions.values():
                    items.put(error)

    def close(self):
        self._requests.put(None)
        self.call.cancel()


class Watched:
    """A subscription on a Watch stream: iterated as a call."""

    def __init__(self, items, cancel):
        self._items, self.cancel = items, cancel

    def __iter__(self):
        while True:
            item = self._items.get()
            if isinstance(item, grpc.RpcError):
                raise item
            if not item.HasField("end"):
                yield item.event
            elif item.end.code != 0:
                raise Ended(item.end)
            else:
                return


class World:
    """One clause's view of a subject. `name` is part of every service, so that clauses run side by side."""

    _serial = itertools.count(1)

    def __init__(self, subject, addresses, watches=False):
        self.subject = subject
        self.subscribed = False  # a clause that follows something is to hold by Watch, too
        self._watches = {} if watches else None
        self.name = f"c{next(World._serial)}"
        self._cleanup = []
        self.stubs = [self._stub(address) for address in addresses]
        self.stub, self.other = self.stubs[0][0], self.stubs[-1][0]
        self.admin = self.stubs[0][1]
        self.channel = self.stubs[0][2]

    def _stub(self, address):
        channel = grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        self._cleanup.append(channel.close)
        return (pb_grpc.RegistryServiceStub(channel), admin_pb2_grpc.AdminServiceStub(channel), channel)

    def close(self):
        for undo in reversed(self._cleanup):
            try:
                undo()
            except (grpc.RpcError, ValueError):
                pass

    def defer(self, undo):
        self._cleanup.append(undo)

    # --- Names.

    def key(self, instance_id="a", service="s", namespace=""):
        return pb.InstanceKey(namespace=namespace, service=f"{self.name}-{service}", instance_id=instance_id)

    def instance(self, instance_id="a", port=80, service="s", namespace="", **fields):
        return pb.ServiceInstance(key=self.key(instance_id, service, namespace), address="10.0.0.1",
                                  port=port, **fields)

    def selector(self, service="s", **fields):
        return pb.Selector(service=f"{self.name}-{service}", **fields)

    # --- Calls.

    def open(self, incarnation="", ttl=30, stub=None, **fields):
        request = pb.OpenSessionRequest(
            incarnation=f"{self.name}-{incarnation}" if incarnation else str(uuid.uuid4()),
            ttl=duration_pb2.Duration(seconds=int(ttl), nanos=int(ttl % 1 * 1e9)), **fields)
        session = (stub or self.stub).OpenSession(request, timeout=TIMEOUT)
        self.defer(lambda: self.close_session(session, stub))
        return session

    def close_session(self, session, stub=None):
        return (stub or self.stub).CloseSession(
            pb.CloseSessionRequest(session_id=session.session_id), timeout=TIMEOUT)

    def register(self, session, *instances, generation=0, stub=None):
        """The response to a Register of `instances`, each under `generation`."""
        response = (stub or self.stub).Register(
            pb.RegisterRequest(
                session_id=session.session_id if session else "", wait_for=ACKNOWLEDGED,
                registrations=[pb.Registration(instance=i, generation=generation) for i in instances]),
            timeout=TIMEOUT)
        if session is None:
            for i in instances:
                self.defer(lambda key=i.key: self.unregister(None, key))
        return response

    def unregister(self, session, *keys, generation=0, stub=None):
        return (stub or self.stub).Unregister(
            pb.UnregisterRequest(
                session_id=session.session_id if session else "", wait_for=ACKNOWLEDGED,
                deregistrations=[pb.Deregistration(key=k, generation=generation) for k in keys]),
            timeout=TIMEOUT)

    def registered(self, session, *instances, generation=0, stub=None):
        """As register, and every one is acknowledged."""
        response = self.register(session, *instances, generation=generation, stub=stub)
        for result in response.results:
            check(result.status.code == 0, "refused:", Refusal(result.status))
            same(result.state, ACKNOWLEDGED, "state")
        return response

    def unregistered(self, session, *keys, generation=0, stub=None):
        response = self.unregister(session, *keys, generation=generation, stub=stub)
        for result in response.results:
            check(result.status.code == 0, "refused:", Refusal(result.status))
        return response

    def page(self, stub=None, **fields):
        return (stub or self.stub).List(pb.ListRequest(**fields), timeout=TIMEOUT)

    def records(self, service="s", stub=None, **fields):
        """{id: record} of a service."""
        records, token = {}, ""
        while True:
            page = self.page(stub, selector=self.selector(service, **fields), page_token=token)
            records.update((r.instance.key.instance_id, r) for r in page.records)
            token = page.next_page_token
            if not token:
                return records

    def ids(self, service="s", stub=None, **fields):
        return sorted(self.records(service, stub, **fields))

    def subscribe(self, selector=None, stub=None, **fields):
        self.subscribed = True
        stub = stub or self.stub
        request = pb.SubscribeRequest(selector=selector or self.selector(), **fields)
        if self._watches is None:
            call = stub.Subscribe(request)
        else:
            if stub not in self._watches:
                self._watches[stub] = Watch(stub)
                self.defer(self._watches[stub].close)
            call = self._watches[stub].subscribe(request)
        self.defer(call.cancel)
        return Stream(call)

    def keep_alive(self, stub=None):
        return KeepAlive(self, stub or self.stub)

    @staticmethod
    def eventually(value, wanted, what=""):
        deadline = time.monotonic() + TIMEOUT
        while True:
            got = value()
            if got == wanted:
                return
            check(time.monotonic() < deadline, what, "stays", repr(got) + ", not", repr(wanted))
            time.sleep(0.02)


class KeepAlive:
    """An open stream of renewals."""

    def __init__(self, world, stub):
        self._requests = queue.Queue()
        self.call = stub.KeepAlive(iter(self._requests.get, None))
        world.defer(self.call.cancel)
        world.defer(self.end)

    def renew(self, session_id):
        self._requests.put(pb.KeepAliveRequest(session_id=session_id))
        return next(self.call)

    def end(self):
        self._requests.put(None)


class Renewing:
    """Keeps sessions alive for the length of a `with`."""

    def __init__(self, world, *sessions):
        self._stream = world.keep_alive()
        self._sessions = sessions
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        while not self._stop.wait(0.2):
            for session in self._sessions:
                self._stream.renew(session.session_id)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._stop.set()
        self._thread.join()
        self._stream.end()


def matches(text, pattern):
    check(re.search(pattern, text), repr(text), "does not match", repr(pattern))
