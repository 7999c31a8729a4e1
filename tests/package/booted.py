"""The packages where systemd runs: a bare system that is booted as a container, without a network."""

import json
import os
import shutil
import subprocess

from bare import System, eventually

PACKAGES = ("failback-registry", "failback-agent")
MANAGER = ("systemd", "systemd-sysv", "dbus")
# What `systemd-analyze security` may say of a unit: 0 is safe, 10 is not.
MOST_EXPOSED = 2.0
BACKUP = "/var/lib/failback/backup.db"


class Booted:
    """A System whose own systemd runs. `with Booted(system) as machine:`"""

    def __init__(self, system):
        self.system = system
        os.unlink(system.path("usr/sbin/policy-rc.d"))
        subprocess.run(["umount", system.path("proc")], check=False)
        system.mounts.remove(system.path("proc"))

    def __enter__(self):
        self.container = subprocess.Popen(
            ["systemd-nspawn", "--quiet", "--directory", self.system.root, "--boot", "--private-network",
             "--register=no", "--keep-unit", "--console=pipe", "--kill-signal=SIGRTMIN+4"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        eventually(self.init, "the container's systemd is there")
        eventually(lambda: self.status("systemctl", "is-system-running")[1].strip() in ("running", "degraded"),
                   "the container has booted")
        return self

    def __exit__(self, *_):
        self.container.kill()
        self.container.wait()

    def init(self):
        """The container's process 1, as this machine numbers it."""
        path = "/proc/%d/task/%d/children" % (self.container.pid, self.container.pid)
        with open(path, encoding="utf-8") as file:
            children = file.read().split()
        return children[0] if children else None

    def status(self, *words):
        done = subprocess.run(
            ["nsenter", "--target", self.init(), "--all", "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
             "DEBIAN_FRONTEND=noninteractive", *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            timeout=240)
        return done.returncode, done.stdout

    def get(self, *words):
        status, out = self.status(*words)
        if status:
            raise SystemExit("chroot: error: %s: exit status %d\n%s" % (" ".join(words), status, out))
        return out

    def apt(self, *words):
        return self.get("apt-get", "-y", "-qq", "-o", "APT::Sandbox::User=root", *words)


def active(machine):
    return [machine.status("systemctl", "is-active", name)[1].strip() for name in PACKAGES]


def ids(machine):
    records = json.loads(machine.get("failbackctl", "--target", "127.0.0.1:7070", "list", "orders", "-o", "json"))
    return [record["instance"]["key"]["instanceId"] for record in records]


def epoch(machine):
    return json.loads(machine.get("failbackctl", "--target", "127.0.0.1:7070", "status", "-o", "json"))[
        "registry"]["epoch"]


def check_units(machine, say):
    """They run, and have no more rights than they need."""
    assert active(machine) == ["active", "active"], machine.get("journalctl", "--no-pager")
    said = []
    for name in PACKAGES:
        # What is said of other units is not ours.
        status, out = machine.status("systemd-analyze", "verify", "--man=no", name + ".service")
        assert (status, "failback" in out) == (0, False), out
        found = json.loads(machine.get("systemd-analyze", "security", "--json=short", name + ".service"))
        assert found
        status, out = machine.status("systemd-analyze", "security", "--threshold=%d" % (MOST_EXPOSED * 10), name)
        assert status == 0, out
        said.append(out.splitlines()[-1].split(": ")[1].split()[0])
        line = machine.get("systemctl", "show", "--property=StatusText", "--value", name).strip()
        assert " listening on " in line, line
    socket = machine.get("stat", "-c", "%A %U %G", "/run/failback/agent.sock").strip()
    assert socket == "srw-rw---- failback-agent failback-agent", socket
    say("both units are active, notified by the daemons; exposure %s; agent.sock is %s" % (" and ".join(said), socket))


def check_configuration(system, machine, say):
    """A reload takes what can be taken; a configuration that is wrong is refused, and not tried again."""
    path = system.path("etc/failback/agent.yaml")
    with open(path, encoding="utf-8") as file:
        right = file.read()

    def write(text):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    service = "services: [{name: orders, id: orders-2, address: 10.0.0.8, port: 8080}]\n"
    pid = machine.get("systemctl", "show", "--property=MainPID", "--value", "failback-agent")
    write(right + service)
    machine.get("systemctl", "reload", "failback-registry", "failback-agent")
    eventually(lambda: sorted(ids(machine)) == ["orders-1", "orders-2"], "a reload takes the services")
    assert machine.get("systemctl", "show", "--property=MainPID", "--value", "failback-agent") == pid
    write(right + "lisen: x\n")
    assert machine.status("systemctl", "restart", "failback-agent")[0] != 0
    eventually(lambda: active(machine)[1] == "failed", "a configuration that is wrong is not tried again")
    status = machine.status("systemctl", "status", "--no-pager", "--full", "failback-agent")[1]
    line = "agent.yaml:%d: " % (right.count("\n") + 1)
    assert line in status, status
    write(right)
    machine.get("systemctl", "restart", "failback-agent")
    eventually(lambda: ids(machine) == ["orders-1"], "the agent has its instance again")
    say("a reload takes the services of agent.yaml; `systemctl status` names the line of a wrong key: "
        + next(text for text in status.splitlines() if line in text).split("]: ", 1)[-1])


def check_socket_group(system, machine, say):
    """socket.group may be any group of the service's user."""
    sockets = {"registry": "/run/failback-registry/registry.sock", "agent": "/run/failback/agent.sock"}
    before = {}
    for name, socket in sockets.items():
        path = "etc/failback/%s.yaml" % name
        with open(system.path(path), encoding="utf-8") as file:
            before[path] = file.read()
        listen = 'listen: [127.0.0.1:7070, "unix:%s"]' % socket
        text = before[path].replace("\nlisten: 127.0.0.1:7070\n", "\n%s\n" % listen)
        system.write(path, text + "socket: {group: users}\n")
        drop_in = "etc/systemd/system/failback-%s.service.d" % name
        os.makedirs(system.path(drop_in))
        system.write(drop_in + "/group.conf", "[Service]\nSupplementaryGroups=users\n")
    machine.get("systemctl", "daemon-reload")
    machine.get("systemctl", "restart", *PACKAGES)
    owners = machine.get("stat", "-c", "%U:%G", *sockets.values()).split()
    assert owners == ["failback-registry:users", "failback-agent:users"], owners
    for path, text in before.items():
        system.write(path, text)
    for name in sockets:
        shutil.rmtree(system.path("etc/systemd/system/failback-%s.service.d" % name))
    machine.get("systemctl", "daemon-reload")
    machine.get("systemctl", "restart", *PACKAGES)
    say("with `socket: {group: users}` and SupplementaryGroups=users the sockets are " + " and ".join(owners))


def check_systemd(dist, previous, say):
    with System() as system:
        system.apt("update")
        system.apt("install", "--no-install-recommends", *MANAGER)
        older, newer = system.take(previous, *PACKAGES), system.take(dist, *PACKAGES)
        # The container has no network: what the packages need is there before.
        system.apt("install", "--download-only", *newer)
        # It has a /tmp of its own.
        folders = {}
        for kind, debs in (("older", older), ("newer", newer)):
            os.mkdir(system.path("root/" + kind))
            folders[kind] = [shutil.move(system.path(deb[1:]), system.path("root/" + kind)) for deb in debs]
            folders[kind] = ["/" + os.path.relpath(path, system.root) for path in folders[kind]]
        with Booted(system) as machine:
            machine.apt("install", *folders["older"])
            check_units(machine, say)
            machine.get("failbackctl", "register", "orders", "--id", "orders-1", "--address", "10.0.0.7",
                        "--port", "8080", "--wait", "acknowledged")
            before = epoch(machine)
            machine.get("systemctl", "kill", "--signal=KILL", "failback-registry", "failback-agent")
            eventually(lambda: active(machine) == ["active", "active"], "both are started again")
            eventually(lambda: ids(machine) == ["orders-1"], "the instance is there again")
            say("killed: both are started again, and the registration is back")
            # A container that has mounted it keeps this folder.
            folder = machine.get("stat", "-c", "%i", "/run/failback")
            machine.apt("install", *folders["newer"])
            assert machine.get("stat", "-c", "%i", "/run/failback") == folder
            assert active(machine) == ["active", "active"]
            eventually(lambda: ids(machine) == ["orders-1"], "the instance is there after the upgrade")
            assert epoch(machine) == before
            say("upgraded while both run: restarted, the same store and epoch, the registration is there")
            check_configuration(system, machine, say)
            check_socket_group(system, machine, say)
            # As its user, while the service runs.
            for words in (["backup", "--store", "sqlite:///var/lib/failback/registry.db", "--to", BACKUP],
                          ["check", "--store", BACKUP]):
                machine.get("runuser", "-u", "failback-registry", "--", "failback-registry", *words)
            # A person who may use the agent.
            machine.get("adduser", "--quiet", "games", "failback-agent")
            machine.get("systemctl", "stop", "failback-agent", "failback-registry")
            assert not os.path.exists(system.path("run/failback"))
            machine.apt("purge", *PACKAGES)
            left = machine.get("find", "/", "-xdev", "-iname", "*failback*", "-not", "-path", "/root/*", "-not",
                               "-path", "/proc/*", "-not", "-path", "/var/log/*")
            assert not left, left
            for what in (("systemctl", "list-unit-files", "--no-pager"), ("getent", "passwd"), ("getent", "group")):
                assert "failback" not in machine.get(*what), what
            say("stopped and purged: no unit, user, group or file is left")
