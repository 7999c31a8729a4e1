"""The story of clients/python with a real registry and a real sidecar, with threads and with asyncio: registered,
found, through outages of the registry and of the sidecar, and gone when the process ends."""

import asyncio
import queue
import sys
import threading
import unittest

import failback
from failback import aio
from sidecar import PATIENCE, Sidecar


class WithThreads(Sidecar):
    def test_a_service_stays_registered_through_outages(self):
        seen = queue.Queue()
        with failback.Agent(self.target, name="carts") as agent:
            def follow():
                for carts in agent.follow("carts"):
                    seen.put(({c.id: c.port for c in carts}, carts.stale))

            follower = threading.Thread(target=follow)
            follower.start()
            agent.register("carts", "carts-1", "10.0.0.7", 8080, weight=7, zone="a", metadata={"k": "v"})
            self.until(self.listed, {"carts-1": 8080})
            while seen.get(timeout=PATIENCE) != ({"carts-1": 8080}, False):
                pass
            # The registry is unavailable: intents are accepted, and arrive when it is back.
            self.kill_daemon(self.registry)
            agent.register("carts", "carts-2", "10.0.0.8", 8081)
            agent.unregister("carts", "carts-1")
            while not seen.get(timeout=PATIENCE)[1]:
                pass
            self.start_registry()
            self.until(self.listed, {"carts-2": 8081})
            while seen.get(timeout=PATIENCE) != ({"carts-2": 8081}, False):
                pass
            # The sidecar is killed, and has no state: it is given everything again.
            self.kill_daemon(self.agent)
            with self.assertRaises(TimeoutError):
                agent.register("carts", "carts-2", "10.0.0.8", 8082, timeout=0.2)
            self.start_agent()
            self.until(self.listed, {"carts-2": 8082})
            # Refused for good: the caller hears it, and what was there stays.
            with self.assertRaises(failback.Refused) as refused:
                agent.register("carts", "carts-2", "10.0.0.8", 70000)
            self.assertIn("port", str(refused.exception))
        follower.join(PATIENCE)
        self.assertFalse(follower.is_alive())
        self.until(self.listed, {})

    def test_the_end_of_the_process_unregisters(self):
        program = ("import failback, sys, time; agent = failback.Agent(sys.argv[1]);"
                   "agent.register('carts', 'carts-9', '10.0.0.9', 1); print('registered', flush=True);"
                   "time.sleep(600)")
        process = self.start(sys.executable, "-c", program, self.target)
        self.assertEqual("registered\n", process.stdout.readline())
        self.until(self.listed, {"carts-9": 1})
        process.kill()
        self.until(self.listed, {})


class WithAsyncio(Sidecar):
    def test_a_service_registers_and_follows(self):
        async def story():
            async with aio.Agent(self.target) as agent:
                await agent.register("carts", "carts-1", "10.0.0.7", 8080, weight=7, zone="a", metadata={"k": "v"})
                async for carts in agent.follow("carts"):
                    if carts and not carts.stale:
                        return list(carts)

        self.assertEqual(asyncio.run(asyncio.wait_for(story(), PATIENCE)), [failback.Instance(
            "carts", "carts-1", "10.0.0.7", 8080, "default", True, 7, "a", {"k": "v"})])
        self.until(self.listed, {})


if __name__ == "__main__":
    unittest.main()
