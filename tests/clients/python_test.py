"""The story of clients/python with a real registry and a real sidecar, with threads and with asyncio: registered,
found, through outages of the registry and of the sidecar, and gone when the process ends."""

import asyncio
import queue
import signal
import subprocess
import sys
import threading
import unittest
import unittest.mock

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
                agent.register("carts", "carts-2", "10.0.0.8", 8083, metadata={"k": "v" * 2000})
            self.assertIn("metadata", str(refused.exception))
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
        with self.assertRaisesRegex(RuntimeError, "is closed"):
            agent.follow("carts")

    def test_close_does_not_wait_for_long(self):
        agent = failback.Agent(self.target)
        agent.register("carts", "carts-1", "10.0.0.7", 8080)
        self.pause_agent()
        with unittest.mock.patch.object(aio, "CALL_SECONDS", 3600):
            closing = threading.Thread(target=agent.close, daemon=True)
            closing.start()
            closing.join(PATIENCE)
        self.assertFalse(closing.is_alive())
        self.resume_agent()
        self.until(self.listed, {})

    def test_many_agents_share_a_loop_and_log_nothing(self):
        program = """if True:
            import failback, sys, threading
            agents = [failback.Agent(sys.argv[1]) for _ in range(20)]
            print([thread.name for thread in threading.enumerate()].count("failback"))
            gate = threading.Barrier(20)
            def work(number):
                for port in range(1, 21):
                    agents[number].register("carts", "carts-%d" % number, "10.0.0.7", port)
                for carts in agents[number].follow("carts"):
                    if len(carts) == 20:
                        break
                gate.wait()
                agents[number].close()
            threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
            for act in (threading.Thread.start, threading.Thread.join):
                for thread in threads:
                    act(thread)
            print([thread.name for thread in threading.enumerate()].count("failback"))
            with failback.Agent(sys.argv[1]) as agent:
                agent.register("carts", "carts-1", "10.0.0.7", 8080)
            """
        done = subprocess.run([sys.executable, "-X", "dev", "-c", program, self.target], capture_output=True, text=True,
                              timeout=PATIENCE, check=False)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "1\n0\n", ""))

    def test_an_interrupted_follow_ends_with_the_interrupt(self):
        program = """if True:
            import failback, sys
            with failback.Agent(sys.argv[1]) as agent:
                for carts in agent.follow("carts"):
                    print("seen", flush=True)
            """
        process = subprocess.Popen([sys.executable, "-c", program, self.target], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "seen\n")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
        self.assertNotIn("StopAsyncIteration", errors)
        self.assertEqual(errors.splitlines()[-1], "KeyboardInterrupt")

    def test_a_sidecar_that_is_away_is_reported_once(self):
        with self.assertLogs("failback", "WARNING") as logged:
            with failback.Agent("unix:" + self.folder + "/none.sock") as agent:
                with self.assertRaises(TimeoutError):
                    agent.register("carts", "carts-1", "10.0.0.7", 8080, timeout=1.5)
        self.assertEqual(len(logged.output), 1, logged.output)
        self.assertIn("none.sock", logged.output[0])

    def test_a_sidecar_that_hangs_is_reported_and_its_lists_are_stale(self):
        seen = queue.Queue()
        with self.assertLogs("failback", "WARNING") as logged:
            with failback.Agent(self.target, ttl=1) as agent:
                agent.register("carts", "carts-1", "10.0.0.7", 8080)

                def follow():
                    for carts in agent.follow("carts"):
                        seen.put((len(carts), carts.stale))

                follower = threading.Thread(target=follow)
                follower.start()
                while seen.get(timeout=PATIENCE) != (1, False):
                    pass
                self.pause_agent()
                self.assertEqual(seen.get(timeout=PATIENCE), (1, True))
                with self.assertRaises(TimeoutError):
                    agent.register("carts", "carts-2", "10.0.0.7", 8080, timeout=0.1)
                self.resume_agent()
                self.until(self.listed, {"carts-1": 8080, "carts-2": 8080})
                while seen.get(timeout=PATIENCE) != (2, False):
                    pass
        follower.join(PATIENCE)
        self.assertIn("does not answer", logged.output[0])

    def test_a_drained_sidecar_has_unregistered_and_takes_nothing_new(self):
        with self.assertLogs("failback", "WARNING") as logged:
            with failback.Agent(self.target) as agent:
                agent.register("carts", "carts-1", "10.0.0.7", 8080)
                self.until(self.listed, {"carts-1": 8080})
                subprocess.run(["agent/failbackctl", "--target", self.target, "drain"], stdout=subprocess.DEVNULL,
                               check=True)
                self.assertEqual(self.listed(), {})
                agent.unregister("carts", "carts-1")
                with self.assertRaises(TimeoutError):
                    agent.register("carts", "carts-2", "10.0.0.7", 8080, timeout=1.5)
                self.kill_daemon(self.agent)
                self.start_agent()
                self.until(self.listed, {"carts-2": 8080})
        self.assertEqual(len(logged.output), 1, logged.output)
        self.assertIn("the agent is draining and takes no new intents", logged.output[0])

    def test_a_list_that_does_not_come_is_reported(self):
        self.kill_daemon(self.registry)
        self.kill_daemon(self.agent)
        self.start_agent()
        with self.assertLogs("failback", "WARNING") as logged:
            with unittest.mock.patch.object(aio, "CALL_SECONDS", 0.5), failback.Agent(self.target) as agent:
                follower = threading.Thread(target=lambda: list(agent.follow("carts")))
                follower.start()
                self.until(lambda: len(logged.output), 1)
        follower.join(PATIENCE)
        self.assertIn("has no list of carts yet", logged.output[0])

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

    def test_the_default_namespace_has_one_name(self):
        with failback.Agent(self.target) as agent:
            agent.register("carts", "carts-1", "10.0.0.7", 8080)
            agent.unregister("carts", "carts-1", namespace="default")
            self.kill_daemon(self.agent)
            self.start_agent()
            agent.register("carts", "carts-2", "10.0.0.7", 8080)
            self.until(self.listed, {"carts-2": 8080})

    def test_wrong_arguments_are_named_at_once(self):
        for options, text in (
                ({"ttl": None}, "ttl: None is not a number of seconds"),
                ({"ttl": "10s"}, "ttl: '10s' is not a number of seconds"),
                ({"ttl": True}, "ttl: True is not a number of seconds"),
                ({"ttl": float("nan")}, "ttl: nan is not from -315576000000 to 315576000000 seconds"),
                ({"name": 7}, "name: 7 is not a string"),
                ({"target": 7}, "target: 7 is not a string"),
                ({"target": False}, "target: False is not a string"),
                ({"target": ""}, "target: '' is not unix:PATH or HOST:PORT"),
                ({"target": "unix:"}, "target: 'unix:' is not unix:PATH or HOST:PORT"),
                ({"target": "/run/failback/agent.sock"},
                 "target: '/run/failback/agent.sock' is not unix:PATH or HOST:PORT"),
                ({"target": "grpc://127.0.0.1:7060"}, "target: 'grpc://127.0.0.1:7060' is not unix:PATH or HOST:PORT")):
            with self.assertRaises((TypeError, ValueError)) as raised:
                failback.Agent(**options)
            self.assertEqual(str(raised.exception), text)
        self.assertEqual([thread.name for thread in threading.enumerate() if thread.name == "failback"], [])
        with failback.Agent(self.target) as agent:
            for options, text in (
                    ({"port": "8080"}, "port: '8080' is not an integer from 1 to 65535"),
                    ({"port": True}, "port: True is not an integer from 1 to 65535"),
                    ({"timeout": "1"}, "timeout: '1' is not a number of seconds"),
                    ({"address": None}, "address: None is not a string"),
                    ({"id": 1}, "id: 1 is not a string"),
                    ({"metadata": "zone=a"}, "metadata: 'zone=a' is not a mapping of strings"),
                    ({"metadata": {"a": 1}}, "metadata['a']: 1 is not a string"),
                    ({"metadata": {"a": {"b": "c"}}}, "metadata['a']: {'b': 'c'} is not a string")):
                self.check_wrong(agent, TypeError, options, text)
            for options, text in (
                    ({"port": 0}, "port: 0 is not an integer from 1 to 65535"),
                    ({"port": -1}, "port: -1 is not an integer from 1 to 65535"),
                    ({"port": 65536}, "port: 65536 is not an integer from 1 to 65535"),
                    ({"timeout": float("inf")}, "timeout: inf is not from 0 to %d seconds" % threading.TIMEOUT_MAX),
                    ({"timeout": -1}, "timeout: -1 is not from 0 to %d seconds" % threading.TIMEOUT_MAX),
                    ({"service": ""}, "service: '' is not the name of a service"),
                    ({"metadata": {"a": "\ud800"}}, "metadata['a']: '\\ud800' is not a string of Unicode characters"),
                    ({"weight": -1}, "weight: -1 is not an integer from 0 to 65535")):
                self.check_wrong(agent, ValueError, options, text)
            with self.assertRaisesRegex(TypeError, "service: 7 is not a string"):
                agent.follow(7)
            with self.assertRaisesRegex(ValueError, "service: '' is not the name of a service"):
                agent.follow("")
            # None of them is registered.
            agent.register("carts", "last", "10.0.0.7", 8080)
            self.until(self.listed, {"last": 8080})

    def check_wrong(self, agent, kind, options, text):
        with self.assertRaises(kind) as raised:
            agent.register(**{"service": "carts", "id": "carts-1", "address": "10.0.0.7", "port": 8080, **options})
        self.assertEqual((type(raised.exception), str(raised.exception)), (kind, text))

    def test_many_threads_may_close_it(self):
        for _ in range(10):
            agent = failback.Agent(self.target)
            outcomes = queue.Queue()

            def register():
                try:
                    while True:
                        agent.register("carts", "carts-1", "10.0.0.7", 8080)
                except Exception as error:  # pylint: disable=broad-except
                    outcomes.put(str(error))

            def follow():
                for _ in following:
                    pass
                outcomes.put("followed")

            def close():
                try:
                    agent.close()
                    agent.register("carts", "carts-1", "10.0.0.7", 8080)
                except Exception as error:  # pylint: disable=broad-except
                    outcomes.put(str(error))

            agent.register("carts", "carts-1", "10.0.0.7", 8080)
            following = agent.follow("carts")
            threads = [threading.Thread(target=act, daemon=True) for act in [register] * 4 + [follow] + [close] * 4]
            for thread in threads:
                thread.start()
            self.assertEqual(sorted(outcomes.get(timeout=PATIENCE) for _ in threads),
                             ["followed"] + ["the agent is closed"] * 8)

    def test_a_forked_child_learns_at_once_that_it_has_no_agent(self):
        program = """if True:
            import asyncio, failback, os, signal, sys
            from failback import aio
            agent = failback.Agent(sys.argv[1])
            agent.register("carts", "carts-1", "10.0.0.7", 8080)
            own = aio.Agent(sys.argv[1])  # not started
            if os.fork() == 0:
                signal.alarm(30)  # a child that hangs ends
                for call in (lambda: failback.Agent(sys.argv[1]), lambda: aio.Agent(sys.argv[1]),
                             lambda: asyncio.run(own.start()),
                             lambda: agent.register("carts", "carts-2", "10.0.0.7", 8080), agent.close,
                             lambda: agent.follow("carts")):
                    try:
                        call()
                    except RuntimeError as error:
                        print(str(error).split(": ")[1], flush=True)
                os._exit(0)
            print(os.wait()[1])
            agent.register("carts", "carts-3", "10.0.0.7", 8080)
            print("registered", flush=True)
            sys.stdin.read()
            """
        process = self.start(sys.executable, "-c", program, self.target)
        self.assertEqual(list(iter(process.stdout.readline, "registered\n")), [
            "fork before, or start the child with subprocess or multiprocessing's spawn\n"] * 6 + ["0\n"])
        # The parent is unharmed: it outlives a session that began later and is not renewed.
        witness = self.start(sys.executable, "-c", """if True:
            import failback, sys
            agent = failback.Agent(sys.argv[1])
            agent.register("carts", "witness", "10.0.0.7", 8080)
            print("registered", flush=True)
            sys.stdin.read()
            """, self.target)
        self.assertEqual(witness.stdout.readline(), "registered\n")
        witness.send_signal(signal.SIGSTOP)
        parent = {"carts-1": 8080, "carts-3": 8080}
        self.until(self.listed, {**parent, "witness": 8080})
        self.until(self.listed, parent)

    def test_instances_may_be_in_sets(self):
        one = failback.Instance("carts", "carts-1", "10.0.0.7", 8080, metadata={"k": "v"})
        self.assertEqual(len({one, one}), 1)


if __name__ == "__main__":
    unittest.main()
