"""failbackctl and a Unix socket that is not for its user: it says for whom it is."""

import grp
import os
import subprocess
import tempfile
import unittest

import daemons
from daemons import CTL, Daemon

# Root that may do no more than its files' modes let it.
AS_THE_MODES_SAY = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]


class SocketTest(unittest.TestCase):
    def setUp(self):
        registry = daemons.registry()
        self.addCleanup(registry.kill)
        folder = tempfile.TemporaryDirectory(prefix="fb-")
        self.addCleanup(folder.cleanup)
        self.path = folder.name + "/agent.sock"
        agent = Daemon("failback-agent", "--registry", "grpc://" + registry.address, "--listen", "unix:" + self.path,
                       "--admin", "")
        self.addCleanup(agent.kill)

    def refused(self):
        done = subprocess.run(AS_THE_MODES_SAY + [CTL, "--target", "unix:" + self.path, "list"], capture_output=True,
                              text=True, check=False, timeout=daemons.TIMEOUT)
        self.assertEqual((done.returncode, done.stdout), (3, ""))
        start = "failbackctl: list: UNAVAILABLE: no answer from unix:%s (Permission denied); " % self.path
        self.assertTrue(done.stderr.startswith(start), done.stderr)
        return done.stderr[len(start):]

    @unittest.skipUnless(os.geteuid() == 0, "only root gives a socket away")
    def test_the_group_that_it_is_for_is_named(self):
        group = grp.getgrnam("users")
        os.chown(self.path, 65534, group.gr_gid)
        self.assertEqual(self.refused(), "the socket is for root and the group users: `adduser root users` as root, then log"
                         " in again\n")

    @unittest.skipUnless(os.geteuid() == 0, "only root gives a socket away")
    def test_the_user_that_it_is_for_is_named(self):
        os.chown(self.path, 65534, grp.getgrnam("users").gr_gid)
        os.chmod(self.path, 0o600)
        self.assertEqual(self.refused(), "the socket is for root and the user nobody\n")


if __name__ == "__main__":
    unittest.main()
