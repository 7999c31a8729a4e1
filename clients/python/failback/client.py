"""The client for threads: the one for asyncio, on a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from typing import Iterator, Mapping, Optional

from failback import aio


class Agent:
    """As failback.aio.Agent; calls block. `with Agent() as agent:`, or close() at the end. Every method may be called
    from any thread."""

    def __init__(self, target: Optional[str] = None, name: str = "", ttl: float = 10.0) -> None:
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="failback", daemon=True)
        self._thread.start()
        self._agent = self._run(self._open(target, name, ttl))

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    async def _open(target: Optional[str], name: str, ttl: float) -> aio.Agent:
        return await aio.Agent(target, name, ttl).start()

    def _run(self, coroutine, timeout: Optional[float] = None):
        if self._closed:
            coroutine.close()
            raise RuntimeError("the agent is closed")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(timeout)
        except concurrent.futures.TimeoutError as error:
            raise TimeoutError("the sidecar has not answered") from error
        finally:
            future.cancel()  # unless it is done

    def close(self) -> None:
        """Ends the session, and every follow()."""
        if self._closed:
            return
        self._run(self._agent.close())
        self._run(self._end())
        self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    def register(self, service: str, id: str, address: str, port: int, *, namespace: str = "",
                 weight: Optional[int] = None, zone: str = "", metadata: Optional[Mapping[str, str]] = None,
                 timeout: Optional[float] = None) -> None:
        """Returns when the sidecar has accepted it. With `timeout` it raises TimeoutError if that takes longer; the
        instance is registered when the sidecar is back, all the same."""
        self._run(self._agent.register(service, id, address, port, namespace=namespace, weight=weight, zone=zone,
                                       metadata=metadata), timeout)

    def unregister(self, service: str, id: str, *, namespace: str = "", timeout: Optional[float] = None) -> None:
        """Returns when the sidecar has accepted it."""
        self._run(self._agent.unregister(service, id, namespace=namespace), timeout)

    def follow(self, service: str, *, namespace: str = "") -> Iterator[aio.Instances]:
        """The instances of a service, each time that they change; ends with the agent."""
        following = self._agent.follow(service, namespace=namespace)
        while not self._closed:
            try:
                yield self._run(following.__anext__())
            except (StopAsyncIteration, concurrent.futures.CancelledError):
                return
