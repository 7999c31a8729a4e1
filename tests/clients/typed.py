"""What a caller with types writes: mypy --strict takes it, and the lines marked so are mistakes that it finds."""

import asyncio
from typing import List

import failback
from failback import aio


def with_threads() -> None:
    with failback.Agent("unix:/run/a.sock", name="orders", ttl=5.0) as agent:
        agent.register("orders", "orders-1", "10.0.0.7", 8080, weight=7, metadata={"a": "b"}, timeout=1.0)
        agent.register("orders", "orders-1", "10.0.0.7", "8080")  # mistake
        for orders in agent.follow("orders"):
            ports: List[int] = [one.port for one in orders]
            stale: bool = orders.stale
            print(ports, stale)
            print(orders[0].prot)  # mistake
        agent.unregister("orders", "orders-1")


async def with_asyncio() -> None:
    agent = await aio.Agent().start()
    await agent.register("orders", "orders-1", "10.0.0.7", 8080)
    async for orders in agent.follow("orders"):
        first: failback.Instance = orders[0]
        print(first.address)
    await agent.close()


try:
    asyncio.run(with_asyncio())
except failback.Refused as refused:
    code: int = refused.code
