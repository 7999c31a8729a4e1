"""A program that uses clients/python with asyncio: python_story.py TARGET. Speaks as node_story.js does."""

import asyncio
import sys

import failback
from failback import aio


def say(*words):
    print(*words, flush=True)


async def limited(call, milliseconds):
    await asyncio.wait_for(call, float(milliseconds) / 1e3 if milliseconds else None)


class Commands:
    def __init__(self, agent):
        self.agent = agent

    async def register(self, id, port, milliseconds=None):
        await limited(self.agent.register("carts", id, "10.0.0.7", int(port), weight=7, metadata={"k": "v"}), milliseconds)
        say("registered", id, port)

    async def unregister(self, id, milliseconds=None):
        await limited(self.agent.unregister("carts", id), milliseconds)
        say("unregistered", id)

    async def follow(self):
        async for carts in self.agent.follow("carts"):
            say("sees", "[%s]" % " ".join("%s:%d/%d/%s" % (c.id, c.port, c.weight, c.metadata["k"]) for c in carts),
                "stale" if carts.stale else "current")
        say("follow ended")

    async def close(self):
        await self.agent.close()
        say("closed")


async def tell(call, line):
    try:
        await call
    except failback.Refused as refused:
        say("refused", refused)
    except asyncio.TimeoutError:
        say("late", line)
    except RuntimeError as error:
        say("failed", error)


async def main():
    commands = Commands(await aio.Agent(sys.argv[1], name="carts").start())
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    tasks = []
    while line := (await lines.readline()).decode().split():
        tasks.append(asyncio.ensure_future(tell(getattr(commands, line[0])(*line[1:]), " ".join(line))))
        for _ in range(2):  # its first step, and that of the task that wait_for() makes
            await asyncio.sleep(0)
        say("asked", *line)


asyncio.run(main())
