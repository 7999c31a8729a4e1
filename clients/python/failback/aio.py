"""The client for asyncio: see the package's own page."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import uuid
from typing import AsyncIterator, Dict, List, Mapping, Optional, Tuple

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
# Codes of a sidecar that is away, or does not know the session: the call is made again in the next one.
AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.ABORTED, grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.FAILED_PRECONDITION)


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
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Instances(List[Instance]):
    """The instances of a service, by id. `stale`: the registry is away, and these are the last that are known."""

    stale: bool = False


def _instance(message: pb.ServiceInstance) -> Instance:
    return Instance(message.key.service, message.key.instance_id, message.address, message.port,
                    message.key.namespace, message.status in (0, pb.HEALTH_STATUS_HEALTHY),
                    message.weight if message.HasField("weight") else 100, message.zone, dict(message.metadata))


class Agent:
    """A session at the sidecar. `async with Agent() as agent:`; at its end, or when the process dies, what it has
    registered is unregistered."""

    def __init__(self, target: Optional[str] = None, name: str = "", ttl: float = 10.0) -> None:
        self._target = target or os.environ.get("FAILBACK_TARGET", DEFAULT_TARGET)
        self._name, self._ttl = name, ttl
        self._incarnation = str(uuid.uuid4())
        self._wanted: Dict[Tuple[str, str, str], pb.ServiceInstance] = {}
        self._session = ""
        # Intents count in the order in which they arrive: one call at a time.
        self._sending = asyncio.Lock()
        self._opened = asyncio.Event()

    async def __aenter__(self) -> Agent:
        self._channel = grpc.aio.insecure_channel(self._target, CHANNEL_OPTIONS)
        self._stub = pb_grpc.RegistryServiceStub(self._channel)
        self._keeper = asyncio.ensure_future(self._keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the session: the sidecar unregisters what it has registered."""
        self._keeper.cancel()
        await asyncio.gather(self._keeper, return_exceptions=True)
        if self._session:
            try:
                await self._stub.CloseSession(pb.CloseSessionRequest(session_id=self._session), timeout=CALL_SECONDS)
            except grpc.aio.AioRpcError:
                pass  # the end of the stream says the same
        await self._channel.close()

    async def register(self, service: str, id: str, address: str, port: int, *, namespace: str = "",
                       weight: Optional[int] = None, zone: str = "",
                       metadata: Optional[Mapping[str, str]] = None) -> None:
        """Returns when the sidecar has accepted it; from then on the sidecar carries it. Once more with the same id
        it changes what is registered. While the sidecar is away this waits."""
        instance = pb.ServiceInstance(
            key=pb.InstanceKey(namespace=namespace, service=service, instance_id=id), address=address, port=port,
            weight=weight, zone=zone, metadata=metadata or {})
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
        self._wanted.pop((namespace, service, id), None)
        item = pb.Deregistration(key=pb.InstanceKey(namespace=namespace, service=service, instance_id=id))
        await self._submit(lambda: self._stub.Unregister(
            pb.UnregisterRequest(session_id=self._session, deregistrations=[item]), timeout=CALL_SECONDS))

    async def follow(self, service: str, *, namespace: str = "") -> AsyncIterator[Instances]:
        """The instances of a service, each time that they change."""
        known: Dict[str, pb.ServiceInstance] = {}
        while True:
            try:
                parts: Dict[str, pb.ServiceInstance] = {}
                request = pb.SubscribeRequest(selector=pb.Selector(namespace=namespace, service=service))
                async for message in self._stub.Subscribe(request, wait_for_ready=True):
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
                if error.code() not in AWAY + (grpc.StatusCode.RESOURCE_EXHAUSTED,):
                    raise Refused(error.code().value[0], error.details() or "") from error
                if known:
                    yield self._list(known, True)
            await asyncio.sleep(RETRY_SECONDS)

    @staticmethod
    def _list(known: Dict[str, pb.ServiceInstance], stale: bool) -> Instances:
        instances = Instances(_instance(known[id]) for id in sorted(known))
        instances.stale = stale
        return instances

    def _register(self, instances: List[pb.ServiceInstance]):
        return self._stub.Register(pb.RegisterRequest(
            session_id=self._session, registrations=[pb.Registration(instance=i) for i in instances]),
            timeout=CALL_SECONDS)

    async def _submit(self, call) -> None:
        """Until the sidecar has answered."""
        while True:
            await self._opened.wait()
            try:
                async with self._sending:
                    answer = await call()
            except grpc.aio.AioRpcError as error:
                if error.code() not in AWAY + (grpc.StatusCode.RESOURCE_EXHAUSTED,):
                    raise Refused(error.code().value[0], error.details() or "") from error
                await asyncio.sleep(RETRY_SECONDS)
                continue
            for result in answer.results:
                if result.status.code:
                    raise Refused(result.status.code, result.status.message)
            return

    async def _keep(self) -> None:
        """Keeps a session open, in which everything wanted is registered."""
        while True:
            try:
                await self._one_session()
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass
            self._opened.clear()
            await asyncio.sleep(RETRY_SECONDS)

    async def _one_session(self) -> None:
        opened = await self._stub.OpenSession(pb.OpenSessionRequest(
            incarnation=self._incarnation, client_name=self._name, ends_with_stream=True,
            ttl=duration_pb2.Duration(seconds=int(self._ttl), nanos=int(self._ttl % 1 * 1e9))),
            wait_for_ready=True)
        self._session = opened.session_id
        stream = self._stub.KeepAlive()
        await stream.write(pb.KeepAliveRequest(session_id=self._session))
        batch = max(1, min(opened.limits.max_batch or 200, 200))
        async with self._sending:
            wanted = list(self._wanted.values())
            for i in range(0, len(wanted), batch):
                await self._register(wanted[i:i + batch])
        self._opened.set()
        renewing = asyncio.ensure_future(self._renew(stream, opened.ttl.ToNanoseconds() / 3e9))
        try:
            async for answer in stream:
                if answer.status.code:
                    return  # the session is unknown: a new one
        finally:
            renewing.cancel()

    async def _renew(self, stream, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            await stream.write(pb.KeepAliveRequest(session_id=self._session))
