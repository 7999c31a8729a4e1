"""The client for threads: the one for asyncio, on a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from typing import Any, Callable, Iterator, Mapping, Optional

from failback import aio


class Agent:
    """As failback.aio.Agent; calls block. `with Agent() as agent:`, or close() at the end. Every method may be called
    from any thread of the process that made it."""

    def __init__(self, target: Optional[str] = None, name: str = "", ttl: float = 10.0) -> None:
        self._agent = aio.Agent(target, name, ttl)
        self._process = os.getpid()
        # Held while a call is handed to the loop, and by the first close() until the loop has ended.
        self._lock = threading.RLock()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="failback", daemon=True)
        self._thread.start()
        self._run(self._agent.start)

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError("the agent was made in process %d, and does not work after a fork: make it in the child"
                               % self._process)

    def _check(self) -> None:
        self._check_process()
        if self._closed:
            raise RuntimeError("the agent is closed")

    def _run(self, call: Callable[[], Any], timeout: Optional[float] = None) -> Any:
        self._check()  # and with the lock, which close() holds for long
        with self._lock:
            self._check()
            future = asyncio.run_coroutine_threadsafe(call(), self._loop)
        try:
            return future.result(timeout)
        except concurrent.futures.TimeoutError as error:
            raise TimeoutError("the sidecar has not answered") from error
        except concurrent.futures.CancelledError as error:
            raise RuntimeError("the agent is closed") from error
        finally:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                # Unless it is done; on the loop, so that the call has begun, and what it wants is in force.
                self._loop.call_soon_threadsafe(future.cancel)

    def close(self) -> None:
        """Ends the session, and every follow(). Several threads may call it: each returns when that is done."""
        self._check_process()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _end(self) -> None:
        await self._agent.close()
        rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    def register(self, service: str, id: str, address: str, port: int, *, namespace: str = "",
                 weight: Optional[int] = None, zone: str = "", metadata: Optional[Mapping[str, str]] = None,
                 timeout: Optional[float] = None) -> None:
        """Returns when the sidecar has accepted it. With `timeout` it raises TimeoutError if that takes longer; the
        instance is registered when the sidecar is back, all the same."""
        self._run(lambda: self._agent.register(service, id, address, port, namespace=namespace, weight=weight, zone=zone,
                                               metadata=metadata), timeout)

    def unregister(self, service: str, id: str, *, namespace: str = "", timeout: Optional[float] = None) -> None:
        """Returns when the sidecar has accepted it."""
        self._run(lambda: self._agent.unregister(service, id, namespace=namespace), timeout)

    def follow(self, service: str, *, namespace: str = "") -> Iterator[aio.Instances]:
        """The instances of a service, each time that they change; ends with the agent."""
        following = self._agent.follow(service, namespace=namespace)
        while not self._closed:
            try:
                instances = self._run(following.__anext__)
            except StopAsyncIteration:
                return
            except RuntimeError:
                if self._closed:
                    return
                raise
            yield instances
