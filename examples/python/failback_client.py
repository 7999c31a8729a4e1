"""A client of the registry protocol, written from docs/protocol.md alone ("Writing a client").

It speaks to `failback-registry` directly, without an agent: it has a session, numbers its intents, retries
them until they are acknowledged, sends them again when the registry has lost them, compares now and then, and
follows services. It needs grpcio, protobuf, and the stubs of proto/failback/registry/v1/registry.proto:

    client = Client("127.0.0.1:7070", name="payments-7")
    client.register(pb.ServiceInstance(key=pb.InstanceKey(service="payments", instance_id="payments-7"),
                                       address="10.0.0.7", port=8080))
    client.follow(pb.Selector(service="orders"), lambda instances, stale: print(sorted(instances)))
    ...
    client.close()

Threads: every method may be called from any thread. A listener is called on its subscription's own thread, one
call at a time; what it raises ends that thread.
"""

import random
import threading
import time
import uuid

import grpc
from google.protobuf import duration_pb2

from failback.registry.v1 import registry_pb2 as pb
from failback.registry.v1 import registry_pb2_grpc as pb_grpc
from failback.rpc.v1 import status_pb2

CALL_SECONDS = 5
BATCH = 200
RETRY_FIRST, RETRY_MOST = 0.5, 30.0
# Codes without a reason that mean "again"; with any other the same request fails again.
AGAIN = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.ABORTED,
         grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED,
         grpc.StatusCode.UNAUTHENTICATED}
CODE_OF = {code.value[0]: code for code in grpc.StatusCode}


class Refusal:
    """What a status says to a program: its code, its reason, and how long to wait."""

    def __init__(self, status):
        self.code = CODE_OF.get(status.code, grpc.StatusCode.UNKNOWN)
        self.message = status.message
        self.reason, self.metadata, self.wait = "", {}, None
        for detail in status.details:
            if detail.type_url.endswith("/google.rpc.ErrorInfo"):
                info = status_pb2.ErrorInfo.FromString(detail.value)
                if info.domain == "failback.dev":
                    self.reason, self.metadata = info.reason, dict(info.metadata)
            elif detail.type_url.endswith("/google.rpc.RetryInfo"):
                delay = status_pb2.RetryInfo.FromString(detail.value).retry_delay
                self.wait = delay.seconds + delay.nanos / 1e9

    @staticmethod
    def of(error):
        """That of a failed call."""
        for key, value in error.trailing_metadata() or ():
            if key == "grpc-status-details-bin":
                return Refusal(status_pb2.Status.FromString(value))
        return Refusal(status_pb2.Status(code=error.code().value[0], message=error.details() or ""))

    @property
    def again(self):
        """Whether the same request may pass later."""
        if self.code == grpc.StatusCode.RESOURCE_EXHAUSTED:
            return self.wait is not None
        return self.code in AGAIN

    def __str__(self):
        return f"{self.reason or self.code.name}: {self.message}"


class Intent:
    """What is wanted of one key: an instance, or None to be gone."""

    def __init__(self, key, instance, generation):
        self.key, self.instance, self.generation = key, instance, generation
        # "pending", "acknowledged", "superseded" or "parked".
        self.state = "pending"
        self.error = None
        self.attempts = 0
        self.due = 0.0


class Client:

    def __init__(self, address, name="", ttl=10.0, audit_seconds=60.0, superseded_seconds=30.0,
                 token=""):
        self._ttl, self._name = ttl, name
        self._audit_seconds, self._superseded_seconds = audit_seconds, superseded_seconds
        self._metadata = [("authorization", "Bearer " + token)] if token else []
        self._incarnation = str(uuid.uuid4())
        self._channel = grpc.insecure_channel(address, [
            ("grpc.keepalive_time_ms", 10000), ("grpc.keepalive_timeout_ms", 10000),
            # An outage of minutes must not make the channel wait for minutes.
            ("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 1000),
            # Despite its name, how long one connection attempt may take.
            ("grpc.min_reconnect_backoff_ms", CALL_SECONDS * 1000)])
        self._stub = pb_grpc.RegistryServiceStub(self._channel)
        self._changed = threading.Condition()
        self._intents = {}  # by key
        self._generation = 0
        self._session = None  # OpenSessionResponse
        self._rank, self._store_id = 0, ""
        self._seen_epoch = 0
        self._audit_due = time.monotonic() + audit_seconds
        self._closed = False
        self._calls = set()  # open streams
        self._threads = []
        self._start(self._sender)
        self._start(self._renewer)

    # --- What a program calls.

    def register(self, instance):
        """The instance is to be registered, as given, until `unregister` or `close`."""
        self._state(instance.key, instance)

    def unregister(self, key):
        """It is to be gone, whatever was asked before."""
        self._state(key, None)

    def states(self):
        """{(namespace, service, id): (state, last error or None)} of what is not gone for good."""
        with self._changed:
            return {key: (intent.state, intent.error) for key, intent in self._intents.items()}

    def follow(self, selector, listener):
        """Calls listener({(namespace, service, id): instance}, stale) with each state of what is followed."""
        self._start(self._follower, selector, listener)

    def close(self):
        """Leaves: the session ends, and its instances with it."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            session = self._session
            self._changed.notify_all()
            for call in self._calls:
                call.cancel()
        for thread in self._threads:
            thread.join()
        if session is not None:
            try:
                self._stub.CloseSession(pb.CloseSessionRequest(session_id=session.session_id),
                                        timeout=CALL_SECONDS, metadata=self._metadata)
            except grpc.RpcError:
                pass  # it ends with its TTL
        self._channel.close()

    # --- Intents: one for each key, the last one wins.

    def _state(self, key, instance):
        if instance is not None:
            instance = pb.ServiceInstance.FromString(instance.SerializeToString())
            key = instance.key
        if not key.namespace:
            key.namespace = "default"
        with self._changed:
            self._generation += 1
            self._intents[_name(key)] = Intent(key, instance, self._generation)
            self._changed.notify_all()

    def _sender(self):
        while True:
            with self._changed:
                if self._closed:
                    return
                now = time.monotonic()
                session = self._session
                due = [i for i in self._intents.values() if self._is_due(i, now)] if session else []
                audit = session is not None and not due and now >= self._audit_due
                if not due and not audit:
                    self._changed.wait(self._until_next(now))
                    continue
                # One kind at a time; an intent that a newer one replaces meanwhile is left alone below.
                batch = [i for i in due if (i.instance is None) == (due[0].instance is None)][:BATCH]
            if audit:
                self._audit(session)
            else:
                self._send(session, batch)

    @staticmethod
    def _is_due(intent, now):
        return intent.state in ("pending", "superseded") and intent.due <= now

    def _until_next(self, now):
        waits = [i.due - now for i in self._intents.values() if i.state in ("pending", "superseded")]
        if self._session is None:
            return None  # the renewer notifies
        return max(0.0, min(waits + [self._audit_due - now]))

    def _send(self, session, batch):
        try:
            if batch[0].instance is None:
                request = pb.UnregisterRequest(
                    session_id=session.session_id,
                    deregistrations=[pb.Deregistration(key=i.key, generation=i.generation) for i in batch])
                response = self._stub.Unregister(request, timeout=CALL_SECONDS, metadata=self._metadata)
            else:
                request = pb.RegisterRequest(
                    session_id=session.session_id,
                    registrations=[pb.Registration(instance=i.instance, generation=i.generation)
                                   for i in batch])
                response = self._stub.Register(request, timeout=CALL_SECONDS, metadata=self._metadata)
            refusals = [Refusal(r.status) if r.status.code else None for r in response.results]
        except grpc.RpcError as error:
            refusals = [Refusal.of(error)] * len(batch)
        with self._changed:
            for intent, refusal in zip(batch, refusals):
                if self._intents.get(_name(intent.key)) is intent:  # else a newer one has replaced it
                    self._judge(session, intent, refusal)

    def _judge(self, session, intent, refusal):
        """What the answer to an intent means for it."""
        intent.error = refusal and str(refusal)
        reason = refusal.reason if refusal else ""
        own = refusal is not None and refusal.metadata.get("rank") == str(session.rank)
        if refusal is None:
            intent.attempts = 0
            if intent.instance is None:
                del self._intents[_name(intent.key)]
            else:
                intent.state = "acknowledged"
        elif reason in ("SESSION_UNKNOWN", "SESSION_NOT_OWNED"):
            self._lose(session)
        elif reason == "GENERATION_REUSED" or (reason == "SUPERSEDED" and own):
            # A number was lost: go on above the registry's; at once the first time, then with a wait.
            self._generation = max(self._generation, int(refusal.metadata["generation"])) + 1
            intent.generation = self._generation
            intent.attempts += 1
            if intent.attempts > 1:
                intent.due = time.monotonic() + random.uniform(0, RETRY_FIRST)
        elif reason == "SUPERSEDED" and intent.instance is None:
            del self._intents[_name(intent.key)]  # a later incarnation's is not ours to remove
        elif reason == "SUPERSEDED":
            # Kept, and claimed again when that incarnation has gone.
            intent.state = "superseded"
            intent.due = time.monotonic() + self._superseded_seconds * random.uniform(0.8, 1.2)
        elif refusal.again:
            intent.attempts += 1
            most = min(RETRY_MOST, RETRY_FIRST * 2 ** (intent.attempts - 1))
            wait = random.uniform(0, most) if refusal.wait is None else refusal.wait
            intent.state, intent.due = "pending", time.monotonic() + wait
        else:
            intent.state = "parked"  # until it is stated again, or everything is sent again

    # --- The session.

    def _lose(self, session):
        if self._session is session:
            self._session = None
            self._changed.notify_all()

    def _send_all_again(self):
        for intent in self._intents.values():
            intent.state, intent.due = "pending", 0.0

    def _renewer(self):
        attempts = 0
        while True:
            with self._changed:
                if self._closed:
                    return
                session = self._session
            try:
                if session is None:
                    self._open()
                else:
                    self._renew(session)
                attempts = 0
            except grpc.RpcError as error:
                refusal = Refusal.of(error)
                attempts += 1
                most = min(2.0, RETRY_FIRST * 2 ** (attempts - 1))
                wait = refusal.wait if refusal.wait is not None else random.uniform(most / 2, most)
                with self._changed:
                    if not self._closed:
                        self._changed.wait_for(lambda: self._closed, wait)

    def _open(self):
        request = pb.OpenSessionRequest(
            incarnation=self._incarnation, client_name=self._name, rank=self._rank, store_id=self._store_id,
            ttl=duration_pb2.Duration(seconds=int(self._ttl), nanos=int(self._ttl % 1 * 1e9)))
        # gRPC works on a connection attempt while a call waits for it, and hardly between calls.
        session = self._stub.OpenSession(request, timeout=CALL_SECONDS, metadata=self._metadata,
                                         wait_for_ready=True)
        with self._changed:
            self._rank, self._store_id = session.rank, session.store_id
            self._session, self._seen_epoch = session, session.epoch
            # Whether it was resumed or not: what a connection that broke has carried is not known.
            self._send_all_again()
            self._audit_due = min(self._audit_due, time.monotonic() + random.uniform(2, 6))
            self._changed.notify_all()

    def _renew(self, session):
        """Renews until the stream or the session ends."""
        ttl = session.ttl.seconds + session.ttl.nanos / 1e9

        def requests():
            while True:
                yield pb.KeepAliveRequest(session_id=session.session_id)
                with self._changed:
                    if self._changed.wait_for(lambda: self._closed or self._session is not session,
                                              ttl / 3):
                        return

        with self._stream(self._stub.KeepAlive(requests(), metadata=self._metadata,
                                               wait_for_ready=True)) as answers:
            for answer in answers:
                if answer.status.code:
                    refusal = Refusal(answer.status)
                    if refusal.reason in ("SESSION_UNKNOWN", "SESSION_NOT_OWNED"):
                        with self._changed:
                            self._lose(session)
                        return
                    continue  # as with credentials that are refused now: the next renewal asks again
                with self._changed:
                    if answer.epoch != self._seen_epoch:
                        # The store went back, and still knows the session: it may lack what was sent since.
                        self._seen_epoch = answer.epoch
                        self._send_all_again()
                        self._audit_due = time.monotonic() + random.uniform(2, 6)
                        self._changed.notify_all()

    # --- Comparing, slowly.

    def _audit(self, session):
        listed, epoch = {}, None
        request = pb.ListRequest(incarnation=self._incarnation)
        try:
            while True:
                page = self._stub.List(request, timeout=CALL_SECONDS, metadata=self._metadata)
                if page.stale or (epoch is not None and page.epoch != epoch):
                    listed = None  # of another life, or an agent's memory: it compares with nothing
                    break
                epoch = page.epoch
                for record in page.records:
                    listed[_name(record.instance.key)] = record
                if not page.next_page_token:
                    break
                request.page_token = page.next_page_token
        except grpc.RpcError:
            listed = None
        with self._changed:
            self._audit_due = time.monotonic() + self._audit_seconds * random.uniform(0.75, 1.25)
            if listed is None or self._session is not session:
                return
            for name, intent in self._intents.items():
                record = listed.pop(name, None)
                if intent.state != "acknowledged":
                    continue
                if record is None or _wanted(record.instance) != _wanted(intent.instance):
                    intent.state, intent.due = "pending", 0.0  # the same again, under its number
            for record in listed.values():
                # Ours by name, and not wanted: as after a backup was put back.
                self._generation = max(self._generation, record.generation) + 1
                key = record.instance.key
                self._intents[_name(key)] = Intent(key, None, self._generation)

    # --- Following.

    def _follower(self, selector, listener):
        known, epoch, revision = {}, 0, 0  # what was applied, and where that is
        while True:
            with self._changed:
                if self._closed:
                    return
            request = pb.SubscribeRequest(selector=selector, epoch=epoch, revision=revision)
            wait = random.uniform(0.2, 1.0)
            try:
                with self._stream(self._stub.Subscribe(request, metadata=self._metadata,
                                                       wait_for_ready=True)) as events:
                    parts, began = None, False
                    for event in events:
                        kind = event.WhichOneof("event")
                        if kind is None:  # only `stale` has changed
                            listener(dict(known), event.stale)
                            continue
                        # A stream that begins with an older snapshot does not know the position.
                        if (event.epoch == epoch and event.revision < revision and
                                (began or kind != "snapshot")):
                            break  # a server that is behind another: later, from the same position
                        if kind == "delta" and (event.epoch != epoch or
                                                event.delta.base_revision != revision):
                            epoch = revision = 0  # a message is missing: from the beginning
                            break
                        if kind == "snapshot":
                            parts = {} if parts is None else parts
                            parts.update((_name(i.key), i) for i in event.snapshot.instances)
                            if event.snapshot.more:
                                continue
                            known, parts = parts, None
                        else:
                            known = dict(known)
                            known.update((_name(i.key), i) for i in event.delta.upserts)
                            for key in event.delta.removals:
                                known.pop(_name(key), None)
                        epoch, revision, began = event.epoch, event.revision, True
                        listener(dict(known), event.stale)
            except grpc.RpcError as error:
                refusal = Refusal.of(error)
                if refusal.reason == "POSITION_LOST" or (
                        refusal.code == grpc.StatusCode.RESOURCE_EXHAUSTED and refusal.wait is None):
                    epoch = revision = 0
                if refusal.wait is not None:
                    wait = refusal.wait
            with self._changed:
                self._changed.wait_for(lambda: self._closed, wait)

    # --- Threads and streams.

    def _start(self, work, *arguments):
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _stream(self, call):
        return _Stream(self, call)


class _Stream:
    """An open stream, which `close` cancels."""

    def __init__(self, client, call):
        self._client, self._call = client, call

    def __enter__(self):
        with self._client._changed:
            self._client._calls.add(self._call)
            if self._client._closed:
                self._call.cancel()
        return self._call

    def __exit__(self, *error):
        with self._client._changed:
            self._client._calls.discard(self._call)
        self._call.cancel()


def _name(key):
    return (key.namespace or "default", key.service, key.instance_id)


def _wanted(instance):
    """What its owner says of an instance: without what the registry adds, and with the defaults written out."""
    wanted = pb.ServiceInstance.FromString(instance.SerializeToString())
    wanted.ClearField("offline")
    wanted.ClearField("instance_count")
    wanted.key.namespace = wanted.key.namespace or "default"
    wanted.status = wanted.status or pb.HEALTH_STATUS_HEALTHY
    if not wanted.HasField("weight"):
        wanted.weight = 100
    return wanted
