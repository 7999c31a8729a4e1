"""Bare Debian 12 systems: folders with a minimal Debian, whose processes have a network of their own."""

import os
import re
import shutil
import subprocess
import tempfile
import time

PATIENCE = 60.0
CACHE = ".chroot"
# Set by `contained`, whose end is that of every process, mount and network here.
SCRATCH = os.environ["SCRATCH"]


def run(*command, **options):
    return subprocess.run(command, check=True, **options)


def eventually(condition, what):
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.1)
    raise SystemExit("chroot: error: did not happen in time: " + what)


def base():
    """The archive of a minimal Debian 12, made once."""
    path = os.path.join(CACHE, "base.tar")
    if not os.path.exists(path):
        os.makedirs(CACHE, exist_ok=True)
        run("mmdebstrap", "--variant=minbase", "--format=tar", "--quiet", "bookworm", path + ".part")
        os.rename(path + ".part", path)
    return path


class System:
    """A folder that is a process's root. `with System() as system:`"""

    count = 0

    def __init__(self, bare=True):
        System.count += 1
        self.root = tempfile.mkdtemp(prefix="system-", dir=SCRATCH)
        os.chmod(self.root, 0o755)
        self.network = "fb-%d-%d" % (os.getpid(), System.count)
        self.processes, self.mounts = [], []
        run("ip", "netns", "add", self.network)
        run("ip", "netns", "exec", self.network, "ip", "link", "set", "lo", "up")
        if bare:
            run("tar", "-xf", base(), "-C", self.root)
            # No service manager runs here, and apt reaches what the machine reaches.
            self.write("usr/sbin/policy-rc.d", "#!/bin/sh\nexit 101\n", 0o755)
            for name in ("resolv.conf", "hosts"):
                shutil.copy("/etc/" + name, self.path("etc/" + name))
            self.mount("proc", "-t", "proc", "proc")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()
        for place in reversed(self.mounts):
            subprocess.run(["umount", "--lazy", place], check=False)
        subprocess.run(["ip", "netns", "del", self.network], check=False)
        shutil.rmtree(self.root)

    def path(self, name):
        return os.path.join(self.root, name)

    def write(self, name, text, mode=0o644):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(self.path(name), mode)

    def mount(self, place, *how):
        os.makedirs(self.path(place), exist_ok=True)
        run("mount", *how, self.path(place))
        self.mounts.append(self.path(place))

    def command(self, user, words):
        return ["ip", "netns", "exec", self.network, "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/",
                "chroot", "--userspec=" + user, self.root] + words

    def get(self, *words, user="0:0"):
        """What a program prints; its failure is ours."""
        done = subprocess.run(self.command(user, list(words)), capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit("chroot: error: %s: exit status %d\n%s%s" % (
                " ".join(words), done.returncode, done.stdout, done.stderr))
        return done.stdout

    def status(self, *words, user="0:0"):
        """Exit status and output of a program."""
        done = subprocess.run(self.command(user, list(words)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, check=False)
        return done.returncode, done.stdout

    def start(self, user, *words):
        """A daemon, once it says that it serves."""
        log = self.root + ".log"
        with open(log, "wb") as file:
            process = subprocess.Popen(self.command(user, list(words)), stdout=subprocess.PIPE, stderr=file,
                                       text=True)
        self.processes.append(process)
        line = process.stdout.readline()
        if " listening on " not in line:
            with open(log, encoding="utf-8") as file:
                raise SystemExit("chroot: error: %s does not serve\n%s%s" % (words[0], line, file.read()))
        return process

    def apt(self, *words):
        """As a person calls apt, on the network of this machine."""
        done = subprocess.run(
            ["chroot", self.root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-y", "-qq",
             "-o", "APT::Sandbox::User=root", *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            raise SystemExit("chroot: error: apt-get %s:\n%s" % (" ".join(words), done.stdout))
        return done.stdout

    def take(self, folder, *names):
        """Copies .debs into the system; their names there."""
        found = []
        for name in names:
            (deb,) = [entry for entry in os.listdir(folder) if re.match(name + r"_.*\.deb$", entry)]
            shutil.copy(os.path.join(folder, deb), self.path("tmp/" + deb))
            found.append("/tmp/" + deb)
        return found
