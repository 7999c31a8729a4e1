"""`failbackctl wait-ready`, started before the agent that it waits for."""

import os
import socket
import subprocess
import tempfile
import unittest

import daemons
from daemons import CTL, Daemon


class WaitReadyTest(unittest.TestCase):
    def test_an_agent_that_starts_later_is_found(self):
        registry = daemons.registry()
        self.addCleanup(registry.kill)
        folder = tempfile.TemporaryDirectory(prefix="fb-")
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "agent.sock")
        # Without gRPC's poller of last resort, every 5 s, only what waits for the connection drives it.
        env = dict(os.environ, GRPC_CLIENT_CHANNEL_BACKUP_POLL_INTERVAL_MS="0")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            waiting = subprocess.Popen([CTL, "-t", "unix:" + path, "wait-ready", "--deadline", "30s"],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
            self.addCleanup(waiting.kill)
            listener.accept()[0].close()  # its first attempt fails
            os.unlink(path)
        agent = Daemon("failback-agent", "--registry", "grpc://" + registry.address, "--listen",
                       "unix:" + path, "--admin", "")
        self.addCleanup(agent.kill)
        self.assertEqual(waiting.communicate(timeout=daemons.TIMEOUT), ("ready\n", ""))
        self.assertEqual(waiting.returncode, 0)


if __name__ == "__main__":
    unittest.main()
