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
            # Refused for good: the caller gets the error, and what was there stays.
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

    def test_follow_ends_with_the_agent(self):
        async def story():
            agent = await aio.Agent(self.target).start()
            seen = asyncio.Event()

            async def follow():
                async for _ in agent.follow("carts"):
                    seen.set()
                return "ended"

            following = asyncio.ensure_future(follow())
            await seen.wait()
            await agent.close()
            await agent.close()
            self.assertEqual(await following, "ended")

        asyncio.run(asyncio.wait_for(story(), PATIENCE))

    def test_calls_before_the_start_and_after_the_end_are_errors(self):
        async def story():
            agent = aio.Agent("unix:" + self.folder + "/none.sock")
            with self.assertRaisesRegex(RuntimeError, "not started"):
                await agent.register("carts", "carts-1", "10.0.0.7", 8080)
            await agent.start()
            waiting = asyncio.ensure_future(agent.register("carts", "carts-1", "10.0.0.7", 8080))
            await asyncio.sleep(0)
            await agent.close()
            with self.assertRaisesRegex(RuntimeError, "is closed"):
                await waiting
            with self.assertRaisesRegex(RuntimeError, "is closed"):
                await agent.unregister("carts", "carts-1")

        asyncio.run(asyncio.wait_for(story(), PATIENCE))


class Edges(Sidecar):
    def test_a_closed_agent_refuses_calls(self):
        agent = failback.Agent(self.target)
        agent.close()
        agent.close()
        with self.assertRaisesRegex(RuntimeError, "is closed"):
            agent.register("carts", "carts-1", "10.0.0.7", 8080)
        self.assertEqual(list(agent.follow("carts")), [])

    def test_a_sidecar_that_is_away_is_reported_once(self):
        with self.assertLogs("failback", "WARNING") as logged:
            with failback.Agent("unix:" + self.folder + "/none.sock") as agent:
                with self.assertRaises(TimeoutError):
                    agent.register("carts", "carts-1", "10.0.0.7", 8080, timeout=1.5)
        self.assertEqual(len(logged.output), 1, logged.output)
        self.assertIn("none.sock", logged.output[0])

    def test_a_session_that_is_refused_reaches_the_caller(self):
        with self.assertLogs("failback", "WARNING"):
            with failback.Agent(self.target, ttl=-1) as agent:
                with self.assertRaisesRegex(failback.Refused, "ttl: is negative"):
                    agent.register("carts", "carts-1", "10.0.0.7", 8080)

    def test_what_is_too_large_is_refused(self):
        with failback.Agent(self.target) as agent:
            agent.register("carts", "carts-1", "10.0.0.7", 8080)
            with self.assertRaisesRegex(failback.Refused, "6000000 bytes"):
                agent.register("carts", "carts-1", "10.0.0.7", 8081, metadata={"x": "y" * 6000000})
            self.until(self.listed, {"carts-1": 8080})

    def test_instances_may_be_in_sets(self):
        one = failback.Instance("carts", "carts-1", "10.0.0.7", 8080, metadata={"k": "v"})
        self.assertEqual(len({one, one}), 1)


if __name__ == "__main__":
    unittest.main()
