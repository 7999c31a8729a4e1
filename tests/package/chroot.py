"""./dev chroot: what people do with the packages, in bare Debian 12 systems.

    run DIST [--previous DIR | --old-bin DIR] [lintian] [debs] [tarball] [image] [systemd] [library]

All parts unless some are named. DIST has what `./dev package` made. The packages are upgraded from those of
--previous, or from packages with the programs of --old-bin (`debs` alone); without either, from the same programs under
a lower version. Runs as root, on Debian 12."""

import argparse
import glob
import json
import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
import time

import booted
from bare import SCRATCH, System, eventually, run
from story import Story

PACKAGES = ("failback-registry", "failback-agent")
BEGIN = time.monotonic()


def say(text):
    print("%7.1fs  %s" % (time.monotonic() - BEGIN, text), flush=True)


def lower_version(dist, folder, programs=None):
    """The .debs of DIST under a version that is lower than any that is released, with other `programs`."""
    for name in PACKAGES:
        (deb,) = glob.glob(os.path.join(dist, name + "_*.deb"))
        tree = os.path.join(folder, name)
        run("dpkg-deb", "--raw-extract", deb, tree)
        for path in glob.glob(tree + "/usr/bin/*") if programs else ():
            shutil.copy(os.path.join(programs, os.path.basename(path)), path)
        control = os.path.join(tree, "DEBIAN/control")
        with open(control, encoding="utf-8") as file:
            text = file.read()
        with open(control, "w", encoding="utf-8") as file:
            file.write(re.sub(r"^Version: .*$", "Version: 0.0.1~previous", text, flags=re.M))
        run("dpkg-deb", "--root-owner-group", "-Zgzip", "--build", tree, folder, stdout=subprocess.DEVNULL)
    return folder


def as_the_service_manager(system):
    """The folders that the units name."""
    system.get("install", "-d", "-m", "750", "-o", "failback-registry", "-g", "failback-registry", "/var/lib/failback")
    for folder in ("/var/lib/failback-agent", "/run/failback"):
        system.get("install", "-d", "-m", "755", "-o", "failback-agent", "-g", "failback-agent", folder)


def store(story):
    """Which store a registry has, and which life of it."""
    status = json.loads(story.ctl("--target", "127.0.0.1:7070", "status", "-o", "json"))["registry"]
    return status["storeId"], status["epoch"]


# What each daemon keeps: the file that has the schema. An agent has a folder for each of its registries.
STATE = {"registry": "var/lib/failback/registry.db", "agent": "var/lib/failback-agent/upstream-*/journal.db"}
# A schema that no version has yet.
LATER = 1000


def state_file(system, name):
    """A daemon's file, as this machine has it."""
    (path,) = glob.glob(system.path(STATE[name]))
    return path


def schema(system, name):
    """The schema of a daemon's file. The daemon is stopped."""
    database = sqlite3.connect("file:%s?immutable=1" % state_file(system, name), uri=True)
    version = database.execute("PRAGMA user_version").fetchone()[0]
    database.close()
    return version


def set_schema(system, name, version):
    database = sqlite3.connect(state_file(system, name))
    database.execute("PRAGMA user_version=%d" % version)
    database.commit()
    database.close()


def refuses(system, story, name):
    """The daemon does not take a file of a later version, and leaves it as it is."""
    path = state_file(system, name)
    with open(path, "rb") as file:
        before = file.read()
    words, user = {"registry": (story.registry_words, story.registry_user),
                   "agent": (story.agent_words, story.agent_user)}[name]
    status, out = system.status("timeout", "60", *words, user=user)
    assert status == 2 and path[len(system.root):] in out, (status, out)
    with open(path, "rb") as file:
        assert file.read() == before
    say("what a later version has written is refused, untouched: " + out.strip().splitlines()[-1])


def refused_downgrade(system, story):
    """Programs of today, and the files of a later version."""
    for name in STATE:
        version = schema(system, name)
        set_schema(system, name, LATER)
        refuses(system, story, name)
        set_schema(system, name, version)


def go_back(system, story, older, backup):
    """The older packages, as docs/install.md says. `older` is (their .debs, the schemas that they have written)."""
    debs, schemas = older
    system.apt("install", "--allow-downgrades", *debs)
    later = [name for name in STATE if schema(system, name) != schemas[name]]
    for name in later:
        refuses(system, story, name)
    if "registry" in later:
        system.get("failback-registry", "restore", "--store", "sqlite:///" + STATE["registry"], "--from", backup,
                   user=story.registry_user)
    if "agent" in later:
        # Without its memory: what it had is registered by hand, or by the programs, again.
        system.get("sh", "-c", "rm -r /var/lib/failback-agent/*")
    story.start_registry()
    story.start_agent()
    eventually(lambda: story.listed() == ["orders-3"], "the instance is there again")
    story.stop()
    say("downgraded: " + ("what is of a later schema is refused, and its way back is that of docs/install.md"
                          if later else "store and journal, of the same schema, are taken"))


def left_behind(system):
    """What of Failback is on the system."""
    found = [line for line in system.get("find", "/", "-xdev", "-iname", "*failback*", "-not", "-path", "/tmp/*",
                                         "-not", "-path", "/proc/*", "-not", "-path", "/run/*").splitlines()]
    with open(system.path("etc/passwd"), encoding="utf-8") as file:
        found += [line for line in file if "failback" in line]
    return found


def check_debs(dist, previous):
    with System() as system:
        system.apt("update")
        older = system.take(previous, *PACKAGES)
        begin = time.monotonic()
        system.apt("install", *older)
        say("apt install of %s: %.1f s" % (" ".join(map(os.path.basename, older)), time.monotonic() - begin))
        for name in ("usr/share/man/man1/failbackctl.1.gz", "usr/share/bash-completion/completions/failbackctl",
                     "usr/share/zsh/vendor-completions/_failbackctl", "etc/failback/agent.yaml",
                     "lib/systemd/system/failback-registry.service"):
            # A minimal system leaves manual pages out.
            assert os.path.exists(system.path(name)) or "/man/" in name, name
        as_the_service_manager(system)
        story = Story(system)
        story.main_job()
        say("the main job is done, by hand")

        # The registry and its store live while both packages are upgraded.
        with open(system.path("etc/failback/registry.yaml"), "a", encoding="utf-8") as file:
            file.write("log: {format: json}  # the operator's\n")
        backup = "/var/lib/failback/before.db"
        system.get("failback-registry", "backup", "--store", "sqlite:///" + STATE["registry"], "--to", backup,
                   user=story.registry_user)
        before = store(story)
        newer = system.take(dist, *PACKAGES)
        system.apt("install", *newer)
        assert story.listed() == ["orders-3"]
        story.stop()
        written = {name: schema(system, name) for name in STATE}
        story.start_registry()
        story.start_agent()
        assert store(story) == before
        eventually(lambda: story.listed() == ["orders-3"], "the agent has its instance again")
        with open(system.path("etc/failback/registry.yaml"), encoding="utf-8") as file:
            assert "# the operator's" in file.read()
        story.stop()
        say("upgraded with a live store: %s; same epoch, the operator's configuration kept; schemas %s" % (
            story.ctl("--version").strip(), ", ".join(
                "%s %d to %d" % (name, written[name], schema(system, name)) for name in STATE)))

        # Back again.
        refused_downgrade(system, story)
        go_back(system, story, (older, written), backup)

        system.apt("purge", *PACKAGES)
        assert not left_behind(system), left_behind(system)
        say("purged: nothing is left")


def by_hand(state, socket):
    """Flags for programs without a configuration file."""
    return {"registry": ["--listen", "127.0.0.1:7070", "--store", "sqlite://%s/registry.db" % state],
            "agent": ["--listen", "unix:" + socket, "--registry", "grpc://127.0.0.1:7070"]}


def check_tarball(dist):
    (archive,) = glob.glob(os.path.join(dist, "failback-*-linux-*.tar.gz"))
    with System() as system:
        begin = time.monotonic()
        run("tar", "-xf", archive, "--no-same-owner", "-C", system.path("opt"))
        top = os.path.basename(archive)[:-len(".tar.gz")]
        took = time.monotonic() - begin
        os.makedirs(system.path("run/failback"))
        os.chmod(system.path("run/failback"), 0o777)
        story = Story(system, "/opt/%s/bin/" % top, ("nobody", "nobody"),
                      **by_hand("/tmp", "/run/failback/agent.sock"))
        story.registry_user = story.agent_user = "nobody:nogroup"
        story.main_job()
        story.stop()
        loaded = system.get("/lib64/ld-linux-x86-64.so.2", "--list", story.prefix + "failback-registry")
        outside = [line.split()[0] for line in loaded.splitlines()
                   if "=> /" in line and "/opt/" not in line.split("=>")[1]]
        assert all(re.match(r"lib(c|m|pthread|dl|rt|resolv)\.so", name) for name in outside), outside
        say("tarball of %.1f MB: unpacked in %.1f s, the main job is done with no package installed; of the system it"
            " loads %s" % (os.path.getsize(archive) / 1e6, took, " ".join(outside)))


def unpack_image(archive, root):
    """The image as a container's root, and its user: as umoci, the reference of the format, reads it."""
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        layout, bundle = folder + "/layout", folder + "/bundle"
        os.mkdir(layout)
        run("tar", "-xf", archive, "-C", layout)
        with open(layout + "/index.json", encoding="utf-8") as file:
            (manifest,) = json.load(file)["manifests"]
        run("umoci", "unpack", "--image", layout + ":" + manifest["annotations"]["org.opencontainers.image.ref.name"], bundle)
        os.rmdir(root)
        os.rename(bundle + "/rootfs", root)
        with open(bundle + "/config.json", encoding="utf-8") as file:
            user = json.load(file)["process"]["user"]
    return "%d:%d" % (user["uid"], user["gid"])


def check_image(dist):
    (archive,) = glob.glob(os.path.join(dist, "failback-*.oci.tar"))
    with System(bare=False) as system:
        user = unpack_image(archive, system.root)
        size = int(run("du", "-sb", system.root, capture_output=True, text=True).stdout.split()[0])
        assert size <= 60e6, size
        assert user == "65532:65532", user
        # As Kubernetes mounts it: the root read-only, and the folders that are written.
        system.mount("", "--bind", system.root)
        for place in ("var/lib/failback", "run/failback"):
            system.mount(place, "-t", "tmpfs", "-o", "uid=65532,gid=65532", "tmpfs")
        system.mount("proc", "-t", "proc", "proc")
        run("mount", "-o", "remount,bind,ro", system.root)
        story = Story(system, **by_hand("/var/lib/failback", "/run/failback/agent.sock"))
        story.registry_user = story.agent_user = user
        story.main_job()
        story.stop()
        inside = {name for _, _, names in os.walk(system.root) for name in names}
        assert not inside & {"sh", "bash", "dash", "busybox", "apt", "dpkg"}, inside
        with open(system.path("usr/share/doc/failback/failback.spdx.json"), encoding="utf-8") as file:
            sbom = json.load(file)
        for package in sbom["packages"][1:]:
            assert os.path.exists(system.path("usr/share/doc/%s/copyright" % package["name"])), package["name"]
        say("image of %.1f MB (%.1f MB packed): user %s, read-only root, no shell, %d Debian packages in its SBOM;"
            " the main job is done" % (size / 1e6, os.path.getsize(archive) / 1e6, user, len(sbom["packages"]) - 1))


def check_library(dist):
    """The program of docs/library.md is built with the packages, and registers itself."""
    def page(part):
        return run("/usr/bin/python3", "-B", "tests/install/page.py", "docs/library.md", part, capture_output=True,
                   text=True).stdout

    with System() as system:
        system.apt("update")
        begin = time.monotonic()
        system.apt("install", "--no-install-recommends", "g++", "cmake", "make", "pkg-config",
                   *system.take(dist, r"libfailback\d[\d.]*", "libfailback-dev", "failback-registry"))
        took = time.monotonic() - begin
        os.mkdir(system.path("tmp/orders"))
        system.write("tmp/orders/orders.cc", page("program"))
        system.write("tmp/orders/CMakeLists.txt", page("cmake"))
        system.get("sh", "-ec", """cd /tmp/orders
            g++ -std=c++17 -c orders.cc -o orders.o $(pkg-config --cflags failback)
            g++ orders.o -o static $(pkg-config --libs failback)
            g++ orders.o -o shared $(pkg-config --libs failback-shared)
            cmake -S . -B build && cmake --build build""")
        story = Story(system, users=("root", "root"), **by_hand("/tmp", "/tmp/agent.sock"))
        story.start_registry()
        for program in ("static", "shared", "build/orders"):
            out = system.get("/tmp/orders/" + program, "grpc://127.0.0.1:7070")
            assert out.startswith("registered orders-1, ") and out.endswith(", channel OK\n"), (program, out)
        loaded = system.get("ldd", "/tmp/orders/shared")
        assert re.search(r"libfailback\.so\.\d[\d.]* => /lib/", loaded), loaded
        say("apt install of libfailback-dev with compilers: %.1f s; a program is built with pkg-config, static and"
            " shared, and with CMake, and registers itself" % took)


def check_lintian(dist):
    done = subprocess.run(["lintian", "--no-cfg", "--allow-root", "--fail-on", "error,warning",
                           *sorted(glob.glob(os.path.join(dist, "*.deb")))], check=False)
    assert done.returncode == 0
    say("lintian has no error and no warning")


# What of DIST a part needs.
MADE = {"lintian": "*.deb", "debs": "*.deb", "tarball": "failback-*-linux-*.tar.gz", "image": "failback-*.oci.tar",
        "systemd": "*.deb", "library": "libfailback-dev_*.deb"}
PARTS = tuple(MADE)


def main():
    parser = argparse.ArgumentParser(prog="./dev chroot")
    parser.add_argument("dist")
    earlier = parser.add_mutually_exclusive_group()
    earlier.add_argument("--previous", metavar="DIR", help="folder of an earlier version's .debs")
    earlier.add_argument("--old-bin", metavar="DIR",
                         help="folder of an earlier version's programs: packages with these are upgraded, in `debs`")
    parser.add_argument("parts", nargs="*", metavar="|".join(PARTS))
    args = parser.parse_intermixed_args()
    parts = args.parts or PARTS
    if unknown := set(parts) - set(PARTS):
        parser.error("unknown: " + " ".join(sorted(unknown)))
    for needed in sorted({MADE[part] for part in parts}):
        if not glob.glob(os.path.join(args.dist, needed)):
            parser.error("%s has no %s: `./dev package` makes it" % (args.dist, needed))
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        def previous(programs=None):
            return args.previous or lower_version(args.dist, tempfile.mkdtemp(dir=folder), programs)

        for part in parts:
            if part == "lintian":
                check_lintian(args.dist)
            elif part == "debs":
                check_debs(args.dist, previous(args.old_bin))
            elif part == "systemd":
                booted.check_systemd(args.dist, previous(), say)
            else:
                {"tarball": check_tarball, "image": check_image, "library": check_library}[part](args.dist)
    say("done: " + " ".join(parts))


if __name__ == "__main__":
    main()
