"""The client for asyncio: see the package's own page."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import uuid
from typing import AsyncIterator, Dict, List, Mapping, Optional, Set, Tuple

import grpc
from google.protobuf import duration_pb2

from failback.registry.v1 import registry_pb2 as pb
from failback.registry.v1 import registry_pb2_grpc as pb_grpc

DEFAULT_TARGET = "unix:/run/failback/agent.sock"
# How long a call waits for the sidecar's answer, and how long until it is tried again.
CALL_SECONDS = 5.0
RETRY_SECONDS = 0.5
# The sidecar comes back within moments: a channel must not wait for minutes.
CHANNEL_OPTIONS = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 1000),
                   ("grpc.min_reconnect_backoff_ms", 5000)]
# Codes of a sidecar that is unavailable, or does not know the session: the call is made again in the next one.
AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.ABORTED, grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.FAILED_PRECONDITION)
# A refusal with this among its details asks for patience.
RETRY_INFO = "google.rpc.RetryInfo"

log = logging.getLogger("failback")


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


def _refusal(error: grpc.aio.AioRpcError) -> Optional[Refused]:
    """None for a failure that passes."""
    if error.code() in AWAY:
        return None
    patience = any(key == "grpc-status-details-bin" and RETRY_INFO.encode() in value
                   for key, value in error.trailing_metadata() or ())
    if error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and patience:
        return None
    return Refused(error.code().value[0], error.details() or "")


def _passes(status) -> bool:
    """Of an item of a call: whether it is to be sent again."""
    return (status.code == grpc.StatusCode.UNAVAILABLE.value[0] or
            any(RETRY_INFO in detail.type_url for detail in status.details))


class Agent:
    """A session at the sidecar. `async with Agent() as agent:`, or start() and close(); at its end, or when the
    process dies, what it has registered is unregistered. For one event loop, after any fork."""

    def __init__(self, target: Optional[str] = None, name: str = "", ttl: float = 10.0) -> None:
        self._target = target or os.environ.get("FAILBACK_TARGET", DEFAULT_TARGET)
        self._name, self._ttl = name, ttl
        self._incarnation = str(uuid.uuid4())
        self._wanted: Dict[Tuple[str, str, str], pb.ServiceInstance] = {}
        self._session = ""
        self._keeper: Optional[asyncio.Future] = None
        self._closed = False
        self._away = False
        # Why the sidecar opens no session.
        self._refused: Optional[Refused] = None
        # Streams of follow().
        self._followed: Set[grpc.aio.Call] = set()

    async def start(self) -> Agent:
        """Does not wait for the sidecar."""
        if self._keeper or self._closed:
            raise RuntimeError("the agent has been started before")
        # Intents count in the order in which they arrive: one call at a time.
        self._sending = asyncio.Lock()
        # There is a session, or there will be none.
        self._decided = asyncio.Event()
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
        keeper, self._keeper, self._closed = self._keeper, None, True
        if not keeper:
            return
        self._decided.set()
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)
        if self._session:
            try:
                await self._stub.CloseSession(pb.CloseSessionRequest(session_id=self._session), timeout=CALL_SECONDS)
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
        instance = pb.ServiceInstance(
            key=pb.InstanceKey(namespace=namespace, service=service, instance_id=id), address=address, port=port,
            weight=weight, zone=zone, metadata=metadata or {})
        self._check()
        key = (namespace, service, id)
        before = self._wanted.get(key)
        self._wanted[key] = instance
        try:
            await self._submit(lambda: self._register([instance]))
        except Refused:
            if before is None:
                self._wanted.pop(key, None)
            else:
                self._wanted[key] = before
            raise

    async def unregister(self, service: str, id: str, *, namespace: str = "") -> None:
        """Returns when the sidecar has accepted it. One that is not registered is fine."""
        self._check()
        self._wanted.pop((namespace, service, id), None)
        item = pb.Deregistration(key=pb.InstanceKey(namespace=namespace, service=service, instance_id=id))
        await self._submit(lambda: self._stub.Unregister(
            pb.UnregisterRequest(session_id=self._session, deregistrations=[item]), timeout=CALL_SECONDS))

    async def follow(self, service: str, *, namespace: str = "") -> AsyncIterator[Instances]:
        """The instances of a service, each time that they change; ends with the agent."""
        self._check()
        known: Dict[str, pb.ServiceInstance] = {}
        while not self._closed:
            request = pb.SubscribeRequest(selector=pb.Selector(namespace=namespace, service=service))
            call = self._stub.Subscribe(request, wait_for_ready=True)
            self._followed.add(call)
            try:
                parts: Dict[str, pb.ServiceInstance] = {}
                async for message in call:
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
                    yield self._list(known, message.stale)
            except grpc.aio.AioRpcError as error:
                refusal = _refusal(error)
                if refusal:
                    raise refusal from error
                if known and not self._closed:
                    yield self._list(known, True)
            except asyncio.CancelledError:
                if self._closed:
                    return  # by close(), not by the caller
                raise
            finally:
                self._followed.discard(call)
                call.cancel()
            await asyncio.sleep(RETRY_SECONDS)

    @staticmethod
    def _list(known: Dict[str, pb.ServiceInstance], stale: bool) -> Instances:
        instances = Instances(_instance(known[id]) for id in sorted(known))
        instances.stale = stale
        return instances

    def _check(self) -> None:
        if self._closed:
            raise RuntimeError("the agent is closed")
        if not self._keeper:
            raise RuntimeError("the agent is not started: use `async with`, or await start()")

    def _register(self, instances: List[pb.ServiceInstance]):
        return self._stub.Register(pb.RegisterRequest(
            session_id=self._session, registrations=[pb.Registration(instance=i) for i in instances]),
            timeout=CALL_SECONDS)

    async def _submit(self, call) -> None:
        """Until the sidecar has answered."""
        while True:
            await self._decided.wait()
            self._check()
            if self._refused:
                raise self._refused
            try:
                async with self._sending:
                    answer = await call()
            except (asyncio.CancelledError, grpc.aio.UsageError):
                self._check()  # the channel's end, not the caller's
                raise
            except grpc.aio.AioRpcError as error:
                refusal = _refusal(error)
                if refusal:
                    raise refusal from error
            else:
                failed = [result.status for result in answer.results if result.status.code]
                if not failed:
                    return
                if not _passes(failed[0]):
                    raise Refused(failed[0].code, failed[0].message)
            await asyncio.sleep(RETRY_SECONDS)

    async def _keep(self) -> None:
        """Keeps a session open, in which everything wanted is registered."""
        while True:
            try:
                await self._one_session()
            except grpc.aio.AioRpcError as error:
                self._note_failure(error)
            except asyncio.InvalidStateError:
                pass  # the stream has ended
            except Exception:  # pylint: disable=broad-except
                log.exception("the session at %s has failed, and is opened again", self._target)
            if not self._refused:
                self._decided.clear()
            await asyncio.sleep(RETRY_SECONDS)

    def _note_failure(self, error: grpc.aio.AioRpcError) -> None:
        self._refused = _refusal(error)
        if self._refused:
            self._decided.set()
        if not self._away:
            self._away = True
            log.warning("the sidecar at %s has no session for this process, which tries again until it has: %s: %s",
                        self._target, error.code().name, error.details())

    async def _one_session(self) -> None:
        opened = await self._stub.OpenSession(pb.OpenSessionRequest(
            incarnation=self._incarnation, client_name=self._name, ends_with_stream=True,
            ttl=duration_pb2.Duration(seconds=int(self._ttl), nanos=int(self._ttl % 1 * 1e9))), timeout=CALL_SECONDS)
        self._session = opened.session_id
        stream = self._stub.KeepAlive()
        await stream.write(pb.KeepAliveRequest(session_id=self._session))
        await self._register_again(max(1, min(opened.limits.max_batch or 200, 200)))
        if self._away:
            self._away = False
            log.info("the sidecar at %s is back", self._target)
        self._refused = None
        self._decided.set()
        renewing = asyncio.ensure_future(self._renew(stream, opened.ttl.ToNanoseconds() / 3e9))
        try:
            async for answer in stream:
                if answer.status.code:
                    return  # the session is unknown: a new one
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

    async def _register_again(self, batch: int) -> None:
        async with self._sending:
            wanted = list(self._wanted.values())
            for i in range(0, len(wanted), batch):
                answer = await self._register(wanted[i:i + batch])
                while any(_passes(result.status) for result in answer.results):
                    await asyncio.sleep(RETRY_SECONDS)
                    answer = await self._register(wanted[i:i + batch])
                for instance, result in zip(wanted[i:i + batch], answer.results):
                    if result.status.code:
                        log.warning("the sidecar does not take %s/%s again: %s", instance.key.service,
                                    instance.key.instance_id, result.status.message)

    async def _renew(self, stream, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            await stream.write(pb.KeepAliveRequest(session_id=self._session))
