"""The client for asyncio: see the package's own page."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import re
import uuid
from typing import Any, AsyncIterator, Dict, List, Mapping, Optional, Set

import grpc
from google.protobuf import duration_pb2

from failback.intents import Intent, Intents, Key
from failback.registry.v1 import registry_pb2 as pb
from failback.registry.v1 import registry_pb2_grpc as pb_grpc

DEFAULT_TARGET = "unix:/run/failback/agent.sock"
# How long a call waits for the sidecar's answer, and the last one of a session; how long until a call is made again.
CALL_SECONDS = 5.0
CLOSE_SECONDS = 1.0
RETRY_SECONDS = 0.5
UNANSWERED = 3  # renewals in a TTL; the sidecar hangs when none of them is answered
# The sidecar comes back within moments: a channel must not wait for minutes.
CHANNEL_OPTIONS = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 1000),
                   ("grpc.min_reconnect_backoff_ms", 5000)]
# Codes of a sidecar that is unavailable, or does not know the session: the call is made again in the next one.
AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.ABORTED, grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.FAILED_PRECONDITION)
# What a refusal's details say: it asks for patience; the sidecar ends, and takes away what it has registered.
RETRY_INFO = "google.rpc.RetryInfo"
DRAINING = "DRAINING"
# An item's place in its call, of which the caller knows nothing.
PLACE = re.compile(r"^(de)?registrations\[\d+\]\.(instance\.)?")
BATCH = 200
MAX_SECONDS = 315576000000  # of google.protobuf.Duration
# What gRPC dials: a path needs its scheme.
TARGET = re.compile(r"(unix|unix-abstract|dns|ipv4|ipv6|vsock):.+|(?!unix:)[^/]+")
SURROGATE = re.compile("[\ud800-\udfff]")  # half of a character

log = logging.getLogger("failback")

# Whether this process has made an Agent, and whether it is the child of one that had.
_made = False
_forked = False


def _after_fork() -> None:
    global _forked  # pylint: disable=global-statement
    _forked = _forked or _made


os.register_at_fork(after_in_child=_after_fork)


def check_process() -> None:
    """gRPC's core shares descriptors and locks with the parent: a call in the child would hang, and break the parent's."""
    if _forked:
        raise RuntimeError(
            "process %d was forked after its parent had made an Agent, and gRPC does not work in it: fork before, or "
            "start the child with subprocess or multiprocessing's spawn" % os.getpid())


class Refused(Exception):
    """The sidecar does not take an intent: the same one would be refused again. `code` is gRPC's number."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclasses.dataclass(frozen=True)
class Instance:
    """One instance of a service."""

    service: str
    id: str
    address: str
    port: int
    namespace: str = ""
    healthy: bool = True
    weight: int = 100
    zone: str = ""
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)


class Instances(List[Instance]):
    """The instances of a service, by id. `stale`: the registry is unavailable, and these are the last that are known."""

    stale: bool = False


def _instance(message: pb.ServiceInstance) -> Instance:
    return Instance(message.key.service, message.key.instance_id, message.address, message.port,
                    message.key.namespace, message.status in (0, pb.HEALTH_STATUS_HEALTHY),
                    message.weight if message.HasField("weight") else 100, message.zone, dict(message.metadata))


def _says(error: grpc.aio.AioRpcError, word: str) -> bool:
    return any(key == "grpc-status-details-bin" and word.encode() in value
               for key, value in error.trailing_metadata() or ())


def _refusal(error: grpc.aio.AioRpcError) -> Optional[Refused]:
    """None for a failure that passes."""
    if error.code() in AWAY:
        return None
    if error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and _says(error, RETRY_INFO):
        return None
    return Refused(error.code().value[0], error.details() or "")


def _passes(status) -> bool:
    """Of an item of a call: whether it is to be sent again."""
    return (status.code == grpc.StatusCode.UNAVAILABLE.value[0] or
            any(RETRY_INFO in detail.type_url for detail in status.details))


def _check_type(allowed: bool, argument: str, value: object, means: str) -> None:
    if not allowed:
        raise TypeError("%s: %.100r is not %s" % (argument, value, means))


def _check_value(allowed: bool, argument: str, value: object, means: str) -> None:
    if not allowed:
        raise ValueError("%s: %.100r is not %s" % (argument, value, means))


def _check_texts(**arguments: str) -> None:
    for argument, value in arguments.items():
        _check_type(isinstance(value, str), argument, value, "a string")
        _check_value(not SURROGATE.search(value), argument, value, "a string of Unicode characters")


def _check_service(service: str) -> None:
    _check_texts(service=service)
    _check_value(service != "", "service", service, "the name of a service")


def _check_number(argument: str, value: int, least: int) -> None:
    means = "an integer from %d to 65535" % least
    _check_type(isinstance(value, int) and not isinstance(value, bool), argument, value, means)
    _check_value(least <= value <= 65535, argument, value, means)


def check_seconds(argument: str, value: float, least: float, most: float) -> None:
    _check_type(isinstance(value, (int, float)) and not isinstance(value, bool), argument, value, "a number of seconds")
    _check_value(least <= value <= most, argument, value, "from %d to %d seconds" % (least, most))


def _key(service: str, id: str, namespace: str) -> Key:
    _check_service(service)
    _check_texts(id=id, namespace=namespace)
    return namespace or "default", service, id


def _key_message(key: Key) -> pb.InstanceKey:
    return pb.InstanceKey(namespace=key[0], service=key[1], instance_id=key[2])


class Agent:
    """A session at the sidecar. `async with Agent() as agent:`, or start() and close(); at its end, or when the
    process dies, what it has registered is unregistered. For one event loop, after any fork."""

    def __init__(self, target: Optional[str] = None, name: str = "", ttl: float = 10.0) -> None:
        global _made  # pylint: disable=global-statement
        check_process()
        self._target = (os.environ.get("FAILBACK_TARGET") or DEFAULT_TARGET) if target is None else target
        _check_texts(target=self._target, name=name)
        _check_value(TARGET.fullmatch(self._target) is not None, "target", self._target, "unix:PATH or HOST:PORT")
        check_seconds("ttl", ttl, -MAX_SECONDS, MAX_SECONDS)
        _made = True
        self._opening = pb.OpenSessionRequest(
            incarnation=str(uuid.uuid4()), client_name=name, ends_with_stream=True,
            ttl=duration_pb2.Duration(seconds=int(ttl), nanos=int((ttl - int(ttl)) * 1e9)))
        self._intents = Intents()
        self._session = ""
        self._limit = BATCH
        self._keeper: Optional[asyncio.Future] = None
        self._sender: Optional[asyncio.Future] = None
        self._retry: Optional[asyncio.TimerHandle] = None
        self._unanswered = 0  # renewals
        self._closed = False
        self._away = False
        # Why the sidecar opens no session.
        self._refused: Optional[Refused] = None
        # Streams of follow() that are not broken off.
        self._followed: Set[grpc.aio.Call] = set()

    async def start(self) -> Agent:
        """Does not wait for the sidecar."""
        check_process()
        if self._keeper or self._closed:
            raise RuntimeError("the agent has been started before")
        self._channel = grpc.aio.insecure_channel(self._target, CHANNEL_OPTIONS)
        self._stub = pb_grpc.RegistryServiceStub(self._channel)
        self._keeper = asyncio.ensure_future(self._keep())
        return self

    async def __aenter__(self) -> Agent:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the session, and every follow(): the sidecar unregisters what it has registered."""
        check_process()
        keeper, self._keeper, self._closed = self._keeper, None, True
        if not keeper:
            return
        session = self._session
        tasks = [task for task in (keeper, self._sender) if task]
        for task in tasks:
            task.cancel()
        if self._retry:
            self._retry.cancel()
        self._fail(self._intents.refused_all(), RuntimeError("the agent is closed"))
        await asyncio.gather(*tasks, return_exceptions=True)
        if session:
            try:
                await self._stub.CloseSession(pb.CloseSessionRequest(session_id=session), timeout=CLOSE_SECONDS)
            except grpc.aio.AioRpcError:
                pass  # the end of the stream says the same
        for call in list(self._followed):
            call.cancel()
        await self._channel.close()

    async def register(self, service: str, id: str, address: str, port: int, *, namespace: str = "",
                       weight: Optional[int] = None, zone: str = "",
                       metadata: Optional[Mapping[str, str]] = None) -> None:
        """Returns when the sidecar has accepted it; from then on the sidecar carries it. Once more with the same id
        it changes what is registered. While the sidecar is unavailable this waits; if it is cancelled, the instance is
        registered all the same when the sidecar is back, unless it is unregistered."""
        key = _key(service, id, namespace)
        _check_texts(address=address, zone=zone)
        _check_number("port", port, 1)
        if weight is not None:
            _check_number("weight", weight, 0)
        _check_type(metadata is None or isinstance(metadata, Mapping), "metadata", metadata, "a mapping of strings")
        for name, value in (metadata or {}).items():
            _check_texts(metadata=name)
            _check_texts(**{"metadata[%.100r]" % name: value})
        await self._submit(key, pb.ServiceInstance(
            key=_key_message(key), address=address, port=port, weight=weight, zone=zone, metadata=metadata or {}))

    async def unregister(self, service: str, id: str, *, namespace: str = "") -> None:
        """Returns when the sidecar has accepted it. One that is not registered is fine."""
        await self._submit(_key(service, id, namespace), None)

    def follow(self, service: str, *, namespace: str = "") -> AsyncIterator[Instances]:
        """The instances of a service, each time that they change; ends with the agent."""
        self._check()
        _check_service(service)
        _check_texts(namespace=namespace)
        return self._follow(service, namespace)

    async def _follow(self, service: str, namespace: str) -> AsyncIterator[Instances]:
        known: Dict[str, pb.ServiceInstance] = {}
        stale = False  # the last list
        told = False
        while not self._closed:
            silence = asyncio.get_running_loop().call_later(CALL_SECONDS, self._note_silence, service, told)
            call = self._stub.Subscribe(
                pb.SubscribeRequest(selector=pb.Selector(namespace=namespace, service=service)))
            self._followed.add(call)
            try:
                parts: Dict[str, pb.ServiceInstance] = {}
                async for message in call:
                    silence.cancel()
                    kind = message.WhichOneof("event")
                    if kind == "snapshot":
                        parts.update((i.key.instance_id, i) for i in message.snapshot.instances)
                        if message.snapshot.more:
                            continue
                        known, parts = parts, {}
                    elif kind == "delta":
                        for key in message.delta.removals:
                            known.pop(key.instance_id, None)
                        known.update((i.key.instance_id, i) for i in message.delta.upserts)
                    stale, told = message.stale, True
                    yield self._list(known, stale)
            except grpc.aio.AioRpcError as error:
                refusal = _refusal(error)
                if refusal:
                    raise refusal from error
            except asyncio.CancelledError:
                if self._closed:
                    return  # by close(), not by the caller
                if call in self._followed:
                    raise
            finally:
                silence.cancel()
                self._followed.discard(call)
                call.cancel()
            if not stale and not self._closed:
                stale = told = True
                yield self._list(known, stale)
            await asyncio.sleep(RETRY_SECONDS)

    @staticmethod
    def _list(known: Dict[str, pb.ServiceInstance], stale: bool) -> Instances:
        instances = Instances(_instance(known[id]) for id in sorted(known))
        instances.stale = stale
        return instances

    def _note_silence(self, service: str, told: bool) -> None:
        if not told:
            log.warning("the sidecar at %s has no list of %s yet: its registry is unavailable, or does not let it read "
                        "that service; `failbackctl pending` says which", self._target, service)

    def _check(self) -> None:
        check_process()
        if self._closed:
            raise RuntimeError("the agent is closed")
        if not self._keeper:
            raise RuntimeError("the agent is not started: use `async with`, or await start()")

    async def _submit(self, key: Key, instance: Optional[pb.ServiceInstance]) -> None:
        """Returns the outcome. The intent is in force though the caller stops waiting."""
        self._check()
        if self._refused:
            raise Refused(self._refused.code, str(self._refused))
        waiter = asyncio.get_running_loop().create_future()
        self._intents.put(key, instance, waiter)
        self._wake()
        try:
            await waiter
        finally:
            self._intents.leave(key, waiter)

    def _wake(self) -> None:
        if self._session and (not self._sender or self._sender.done()):
            self._sender = asyncio.ensure_future(self._send())

    async def _send(self) -> None:
        """The one sender: one call at a time, while there are a session and something to send."""
        while self._session:
            batch = self._intents.batch(self._limit)
            if not batch:
                return
            try:
                results = (await self._call(batch)).results
            except grpc.aio.AioRpcError as error:
                self._settle_call(batch, error)
            else:
                for intent, result in zip(batch, results):
                    self._settle(intent, result.status)

    def _call(self, batch: List[Intent]):
        """Without a deadline: a call that was given up may still be carried out, after a newer one."""
        if batch[0].instance is None:
            return self._stub.Unregister(pb.UnregisterRequest(
                session_id=self._session, deregistrations=[pb.Deregistration(key=_key_message(i.key)) for i in batch]))
        return self._stub.Register(pb.RegisterRequest(
            session_id=self._session, registrations=[pb.Registration(instance=i.instance) for i in batch]))

    def _settle(self, intent: Intent, status) -> None:
        if not status.code:
            self._accept(intent)
        elif _passes(status):
            self._send_later(intent)
        else:
            self._refuse(intent, Refused(status.code, PLACE.sub("", status.message)))

    def _settle_call(self, batch: List[Intent], error: grpc.aio.AioRpcError) -> None:
        refusal = _refusal(error)
        if _says(error, DRAINING) and batch[0].instance is None:
            for intent in batch:
                self._accept(intent)  # the sidecar does so by itself
        elif not refusal:
            if _says(error, DRAINING):
                self._note_away("takes nothing new, and is asked again until it does", error.details())
            for intent in batch:
                self._send_later(intent)
        elif len(batch) > 1:
            self._intents.apart(batch)
        else:
            self._refuse(batch[0], refusal)

    def _accept(self, intent: Intent) -> None:
        for waiter in self._intents.accepted(intent):
            if not waiter.done():
                waiter.set_result(None)

    def _refuse(self, intent: Intent, refusal: Refused) -> None:
        waiters = self._intents.refused(intent)
        self._fail(waiters, refusal)
        if not waiters:
            log.warning("the sidecar does not take %s/%s: %s", intent.key[1], intent.key[2], refusal)

    @staticmethod
    def _fail(waiters: List[Any], error: Exception) -> None:
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)

    def _send_later(self, intent: Intent) -> None:
        self._intents.later(intent)
        if not self._retry:
            self._retry = asyncio.get_running_loop().call_later(RETRY_SECONDS, self._send_again)

    def _send_again(self) -> None:
        self._retry = None
        self._intents.retry()
        self._wake()

    async def _keep(self) -> None:
        """Keeps a session open, in which everything wanted is registered."""
        while True:
            try:
                await self._one_session()
            except grpc.aio.AioRpcError as error:
                self._note_failure(error)
            except Exception:  # pylint: disable=broad-except
                log.exception("the session at %s has failed, and is opened again", self._target)
            await asyncio.sleep(RETRY_SECONDS)

    def _note_failure(self, error: grpc.aio.AioRpcError) -> None:
        self._refused = _refusal(error)
        if self._refused:
            self._fail(self._intents.refused_all(), self._refused)
        self._note_away("has no session for this process, which tries again until it has",
                        "%s: %s" % (error.code().name, error.details()))

    def _note_away(self, what: str, why: str) -> None:
        if not self._away:
            self._away = True
            log.warning("the sidecar at %s %s: %s", self._target, what, why)

    async def _one_session(self) -> None:
        opened = await self._stub.OpenSession(self._opening, timeout=CALL_SECONDS)
        stream = self._stub.KeepAlive()
        reading = asyncio.ensure_future(self._read(stream))
        renewing = asyncio.ensure_future(self._renew(
            stream, opened.session_id, opened.ttl.ToNanoseconds() / 1e9 / UNANSWERED))
        try:
            if self._away:
                self._away = False
                log.info("the sidecar at %s is back", self._target)
            self._limit = min(opened.limits.max_batch or BATCH, BATCH)
            self._session, self._refused = opened.session_id, None
            self._intents.session_opened()
            self._wake()
            await asyncio.wait((reading, renewing), return_when=asyncio.FIRST_COMPLETED)
            if renewing.done() and not renewing.exception():
                # What it has been asked may still be done, so no call of the sender is given up.
                self._note_away("does not answer", "%d renewals of the session wait" % UNANSWERED)
                self._break_follows()
            else:
                await reading
        finally:
            self._session = ""
            for task in (reading, renewing):
                task.cancel()
            stream.cancel()
            await asyncio.gather(reading, renewing, return_exceptions=True)

    def _break_follows(self) -> None:
        broken, self._followed = self._followed, set()
        for call in broken:
            call.cancel()

    async def _read(self, stream) -> None:
        """Until the session is unknown."""
        async for answer in stream:
            if answer.status.code:
                return
            self._unanswered = 0

    async def _renew(self, stream, session: str, seconds: float) -> None:
        """Until so many are unanswered: this process may have slept, so the clock does not tell."""
        self._unanswered = 0
        while self._unanswered < UNANSWERED:
            self._unanswered += 1
            await stream.write(pb.KeepAliveRequest(session_id=session))
            await asyncio.sleep(seconds)
