"""HAProxy, Caddy, Prometheus, dnsmasq, unbound, systemd-resolved and getaddrinfo, with the files of docs/dns.md, through an outage."""

import json
import os
import shutil
import subprocess
import tempfile
import unittest
import urllib.parse

from eventually import eventually
from stock import (Backends, Load, Program, file_of_the_page, get, instance, place, register, run,
                   start_agent, start_registry, unregister)

# The package itself would take over this machine's resolv.conf.
RESOLVED = "/opt/failback-dev/systemd-resolved/lib/systemd/systemd-resolved"
FRONT = 8000
NAME = "orders.service.failback"


def addresses(name=NAME):
    """What getaddrinfo finds, in another process, as glibc reads resolv.conf once."""
    script = ("import socket, sys\n"
              "print('\\n'.join(sorted({i[4][0] for i in socket.getaddrinfo(sys.argv[1], 80)})))")
    result = subprocess.run(["/usr/bin/python3", "-c", script, name], capture_output=True, text=True,
                            timeout=60)
    return result.stdout.split() if result.returncode == 0 else result.stderr.strip().split("\n")[-1]


class StockTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.registry = start_registry()
        self.addCleanup(self.registry.kill)
        self.agent = start_agent("--dns", "127.0.0.1:7063")
        self.addCleanup(self.agent.kill)

    def file(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w") as file:
            file.write(text)
        return path

    def program(self, *args, **kwargs):
        program = Program(*args, **kwargs)
        self.addCleanup(program.kill)
        return program

    def start_dnsmasq(self):
        # Not a daemon, nor another user, which it cannot be in a user namespace.
        return self.program("/usr/sbin/dnsmasq", "--no-daemon",
                            "--conf-file=" + self.file("dnsmasq.conf", file_of_the_page("dnsmasq.conf")))

    def start_unbound(self):
        of_the_page = self.file("page.conf", file_of_the_page("unbound.conf"))
        # Where it may run in the test.
        path = self.file("unbound.conf", f'server:\n chroot: ""\n username: ""\n pidfile: ""\n'
                         f' directory: "{self.folder}"\n use-syslog: no\ninclude: "{of_the_page}"\n')
        return self.program("/usr/sbin/unbound", "-d", "-c", path)

    def start_haproxy(self):
        frontend = ("defaults\n    mode http\n    timeout connect 5s\n    timeout client 30s\n"
                    f"    timeout server 30s\nfrontend front\n    bind 127.0.0.1:{FRONT}\n"
                    "    default_backend orders\n")
        path = self.file("haproxy.cfg", frontend + file_of_the_page("haproxy.cfg"))
        return self.program("/usr/sbin/haproxy", "-db", "-f", path)

    def start_caddy(self):
        path = self.file("Caddyfile", file_of_the_page("Caddyfile"))
        return self.program("/usr/bin/caddy", "run", "--adapter", "caddyfile", "--config", path,
                            env={"HOME": self.folder, "PATH": "/usr/bin"})

    def grow_shrink_and_lose_the_registry(self):
        """At a proxy on FRONT: 10 servers, 40, 5, and no registry; no request fails."""
        ports = list(range(20001, 20041))
        orders = {port: instance(f"o{port}", port, place(port)) for port in ports}
        backends = Backends(ports)
        self.addCleanup(backends.stop)
        register([orders[port] for port in ports[:10]])
        expected = {str(port) for port in ports}

        def answers():
            try:
                return get(FRONT)
            except (AssertionError, OSError):
                return None
        eventually(answers, "the proxy answers")
        load = Load(FRONT)
        self.addCleanup(load.stop)
        register([orders[port] for port in ports[10:]])
        eventually(lambda: expected <= load.seen, "all 40 servers have calls")
        # Those that leave serve until no client calls them any more.
        unregister([orders[port] for port in ports[5:]])
        stay = {str(port) for port in ports[:5]}

        def only_these():
            load.take_seen()
            start = load.calls
            eventually(lambda: load.calls > start + 200, "calls")
            return load.take_seen() <= stay
        eventually(only_these, "5 servers have all calls")
        backends.stop(ports[5:])
        self.registry.kill()
        start = load.calls
        eventually(lambda: load.calls > start + 1000, "calls without a registry")
        load.stop()
        self.assertEqual(load.failures, [])

    def test_haproxy_grows_and_shrinks_without_a_failed_request(self):
        self.start_haproxy()
        self.grow_shrink_and_lose_the_registry()

    def test_caddy_grows_and_shrinks_without_a_failed_request(self):
        self.start_caddy()
        self.grow_shrink_and_lose_the_registry()

    def getaddrinfo_through_an_outage(self):
        register([instance("a", 80, "10.0.0.1"), instance("b", 80, "10.0.0.2"),
                  instance("c", 80, "2001:db8::1")])
        eventually(lambda: addresses() == ["10.0.0.1", "10.0.0.2", "2001:db8::1"] or
                   addresses() == ["10.0.0.1", "10.0.0.2"], "getaddrinfo finds them")
        found = run("/usr/bin/dig", "+short", "_orders._tcp.service.failback", "SRV")
        self.assertEqual(len(found.split("\n")), 4)
        unregister([instance("a", 80)])
        eventually(lambda: "10.0.0.1" not in addresses(), "the one that left is gone")
        self.registry.kill()
        for _ in range(20):
            self.assertIn("10.0.0.2", addresses())
        nobody = addresses("nobody.service.failback")
        self.assertIn("Temporary failure", nobody)  # and not "not known"
        # 100 addresses do not fit in UDP.
        self.registry = start_registry()
        self.addCleanup(self.registry.kill)
        register([instance(f"m{i}", 80, f"10.1.0.{i}", service="many") for i in range(100)])
        eventually(lambda: len(addresses("many.service.failback")) == 100, "all 100")
        self.assertIn("not known", eventually(
            lambda: "not known" in (text := addresses("nobody.service.failback")) and text,
            "NXDOMAIN comes through"))

    def test_getaddrinfo_through_dnsmasq(self):
        self.start_dnsmasq()
        self.getaddrinfo_through_an_outage()

    def test_getaddrinfo_through_unbound(self):
        self.start_unbound()
        self.getaddrinfo_through_an_outage()

    def test_prometheus_follows_through_dnsmasq(self):
        self.start_dnsmasq()
        ports = [20001, 20002, 20003]
        backends = Backends(ports)
        self.addCleanup(backends.stop)
        register([instance(f"o{port}", port, place(port)) for port in ports[:2]])
        path = self.file("prometheus.yaml", file_of_the_page("prometheus.yaml"))
        self.program("/usr/bin/prometheus", f"--config.file={path}", f"--storage.tsdb.path={self.folder}/data",
                     "--web.listen-address=127.0.0.1:9090", "--log.level=warn", env={"GOMAXPROCS": "2"})

        def healthy():
            query = urllib.parse.urlencode({"state": "active"})
            try:
                answer = json.loads(get(9090, f"/api/v1/targets?{query}"))
            except (AssertionError, OSError):
                return set()
            return {int(target["scrapeUrl"].rsplit(":", 1)[1].split("/")[0])
                    for target in answer["data"]["activeTargets"] if target["health"] == "up"}
        eventually(lambda: healthy() == set(ports[:2]), "two targets are up")
        register([instance("o20003", 20003, place(20003))])
        eventually(lambda: healthy() == set(ports), "a third one")
        unregister([instance("o20001", 20001, place(20001))])
        eventually(lambda: healthy() == set(ports[1:]), "one has left")
        self.registry.kill()
        for _ in range(10):
            self.assertEqual(healthy(), set(ports[1:]))

    @unittest.skipUnless(os.path.exists(RESOLVED), f"no {RESOLVED}: `./dev test` unpacks it there")
    def test_getaddrinfo_through_systemd_resolved(self):
        # It asks no server while there is no network but loopback.
        for command in ("link add one type veth peer name two", "address add 192.0.2.1/24 dev one",
                        "link set one up", "link set two up"):
            run("/usr/sbin/ip", *command.split())
        self.addCleanup(run, "/usr/sbin/ip", "link", "delete", "one")
        # The user that it becomes: root here, as a user namespace may have no other.
        for path, line in (("/etc/passwd", "systemd-resolve:x:0:0::/:/usr/sbin/nologin"),
                           ("/etc/group", "systemd-resolve:x:0:")):
            with open(path) as file:
                run("/usr/bin/mount", "--bind", self.file(os.path.basename(path), file.read() + line + "\n"), path)
            self.addCleanup(run, "/usr/bin/umount", path)
        os.makedirs("/run/systemd/resolved.conf.d")
        with open("/run/systemd/resolved.conf.d/failback.conf", "w") as file:
            file.write(file_of_the_page("resolved.conf"))
        self.program(RESOLVED)
        with open("/etc/resolv.conf", "w") as file:
            file.write("nameserver 127.0.0.53\n")
        self.addCleanup(self.file, "/etc/resolv.conf", "nameserver 127.0.0.1\n")
        self.getaddrinfo_through_an_outage()

    def test_port_53_needs_no_root(self):
        self.agent.kill()
        # A root without its powers: as any other user.
        setpriv = ["/usr/bin/setpriv", "--securebits=+noroot,+noroot_locked", "--inh-caps=-all,+net_bind_service",
                   "--ambient-caps=-all,+net_bind_service", "--bounding-set=-all,+net_bind_service"]
        agent = start_agent("--dns", "127.0.0.1:53", before=setpriv)
        self.addCleanup(agent.kill)
        register([instance("a", 80, "10.0.0.1")])
        eventually(lambda: addresses() == ["10.0.0.1"], "getaddrinfo asks the agent itself")


if __name__ == "__main__":
    unittest.main()
