"""The client for threads: the one for asyncio, on a loop in a thread that all agents of the process share."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from typing import Any, AsyncIterator, Callable, Dict, Iterator, Mapping, Optional, Set

from failback import aio


class _Loop:
    """The loop of the process, which runs while an agent uses it. gRPC wakes every loop that has a channel for each
    event, and all but one of them log an error: so there is one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0

    def enter(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if not self._users:
                self._loop = asyncio.new_event_loop()
                self._loop.set_exception_handler(self._on_exception)
                self._thread = threading.Thread(target=self._loop.run_forever, name="failback", daemon=True)
                self._thread.start()
            self._users += 1
            return self._loop

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users:
                return
            asyncio.run_coroutine_threadsafe(_cancel(asyncio.all_tasks), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    @staticmethod
    def _on_exception(loop: asyncio.AbstractEventLoop, context: Dict[str, Any]) -> None:
        """Another loop, with a channel of the service's own, was woken first."""
        if not (isinstance(context.get("exception"), BlockingIOError) and
                "PollerCompletionQueue" in str(context.get("message"))):
            loop.default_exception_handler(context)


async def _cancel(tasks: Callable[[], Set[asyncio.Task[Any]]]) -> None:
    found = [task for task in tasks() if task is not asyncio.current_task()]
    for task in found:
        task.cancel()
    await asyncio.gather(*found, return_exceptions=True)


_loop = _Loop()


class Agent:
    """As failback.aio.Agent; calls block. `with Agent() as agent:`, or close() at the end. Every method may be called
    from any thread of the process that made it."""

    def __init__(self, target: Optional[str] = None, name: str = "", ttl: float = 10.0) -> None:
        self._agent = aio.Agent(target, name, ttl)
        # Held while a call is handed to the loop, and by the first close() until all calls have ended.
        self._lock = threading.RLock()
        self._closed = False
        self._calls: Set[asyncio.Task[Any]] = set()
        self._loop = _loop.enter()
        try:
            self._run(self._agent.start)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self) -> None:
        aio.check_process()
        if self._closed:
            raise RuntimeError("the agent is closed")

    async def _carry(self, call: Callable[[], Any]) -> Any:
        task = asyncio.current_task()
        assert task
        self._calls.add(task)
        task.add_done_callback(self._ended)
        return await call()

    def _ended(self, call: asyncio.Task[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # seen, though its caller has left

    def _run(self, call: Callable[[], Any], timeout: Optional[float] = None) -> Any:
        if timeout is not None:
            aio.check_seconds("timeout", timeout, 0, threading.TIMEOUT_MAX)
        self._check()  # and with the lock, which close() holds for long
        with self._lock:
            self._check()
            future = asyncio.run_coroutine_threadsafe(self._carry(call), self._loop)
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
        aio.check_process()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
            finally:
                _loop.leave()

    async def _end(self) -> None:
        await self._agent.close()
        await _cancel(lambda: self._calls)

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
        self._check()
        return self._follow(self._agent.follow(service, namespace=namespace))

    def _follow(self, following: AsyncIterator[aio.Instances]) -> Iterator[aio.Instances]:
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
