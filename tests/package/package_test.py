"""What packages have beside the programs: default configurations, manual pages, units, the version."""

import glob
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import unittest

PACKAGE = "deploy/package"
DAEMONS = {"registry": "registry/failback-registry", "agent": "agent/failback-agent"}
PROGRAMS = [("registry/failback-registry", "8"), ("agent/failback-agent", "8"), ("agent/failbackctl", "1")]
# Purges a package whose state is a mount point with another in it, and again once nothing is mounted there.
PURGE = """
set -e
mount -t tmpfs tmpfs /var/lib
mkdir /var/lib/$2
mount -t tmpfs tmpfs /var/lib/$2
mkdir -p /var/lib/$2/state /var/lib/$2/backups
mount -t tmpfs tmpfs /var/lib/$2/backups
touch /var/lib/$2/registry.db /var/lib/$2/state/lock /var/lib/$2/backups/kept
sh $1 purge
(cd /var/lib && find . -mindepth 1)
umount /var/lib/$2/backups /var/lib/$2
touch /var/lib/$2/registry.db
sh $1 purge
ls -A /var/lib
"""
# What `systemd-analyze security` may say of a unit, in tenths: 0 is safe, 100 is not.
MOST_EXPOSED = 20


def run(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


def packages_of(paths):
    """The source packages of Debian that files are from."""
    names = paths + [path[len("/usr"):] for path in paths if path.startswith("/usr/lib/")]
    owners = {owner.strip() for line in run("dpkg", "-S", *names).stdout.splitlines() if "no path found" not in line
              for owner in line.split(": /")[0].split(",")}
    return set(run("dpkg-query", "-W", "-f", "${source:Package}\n", *owners).stdout.split())


class PackageTest(unittest.TestCase):
    def validate(self, name, text):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            return run(DAEMONS[name], "--config", file.name, "--validate-config")

    def test_default_configurations_are_valid(self):
        for name in DAEMONS:
            with open("%s/etc/%s.yaml" % (PACKAGE, name), encoding="utf-8") as file:
                text = file.read()
            done = self.validate(name, text)
            self.assertEqual((done.returncode, done.stdout), (0, "the configuration is valid\n"), name)

    def test_keys_in_comments_are_keys(self):
        for name in DAEMONS:
            with open("%s/etc/%s.yaml" % (PACKAGE, name), encoding="utf-8") as file:
                blocks = re.findall(r"(?:^# (?:[a-z_]+:|  |- ).*\n)+", file.read(), re.M)
            self.assertGreater(len(blocks), 4)
            for block in blocks:
                text = re.sub(r"^# ", "", block, flags=re.M)
                # The last of a key that is there twice is another way to write it.
                done = self.validate(name, ("registry: grpc://127.0.0.1:1\n" if name == "agent" else "") + text)
                if done.returncode != 0:
                    self.assertIn("/etc/failback/", done.stdout, text)
                    self.assertRegex(done.stdout, "No such file|cannot", text)

    def test_manual_pages_have_every_flag(self):
        for program, section in PROGRAMS:
            page = run("/usr/bin/python3", "-B", PACKAGE + "/manpage.py", program, section, "2026-11-23")
            self.assertEqual(page.returncode, 0, page.stdout)
            with tempfile.NamedTemporaryFile("w", suffix="." + section, encoding="utf-8") as file:
                file.write(page.stdout)
                file.flush()
                shown = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", file.name], check=False, text=True,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                       env={**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "200"})
            self.assertEqual((shown.returncode, shown.stderr), (0, ""), program)
            flags = set(re.findall(r"^ +(?:-\w,)?(--[a-z-]+)", run(program, "--help").stdout, re.M))
            self.assertGreater(len(flags), 8)
            missing = [flag for flag in flags if flag not in shown.stdout]
            self.assertEqual(missing, [], program)

    def test_units_have_few_rights(self):
        for name in ("failback-registry", "failback-agent"):
            done = run("systemd-analyze", "security", "--offline=yes", "--threshold=%d" % MOST_EXPOSED,
                       "%s/debian/%s.service" % (PACKAGE, name))
            self.assertEqual(done.returncode, 0, done.stdout)

    def test_units_leave_what_the_configuration_offers(self):
        def left(name):
            done = run("systemd-analyze", "security", "--offline=yes", "--json=short",
                       "%s/debian/%s.service" % (PACKAGE, name))
            found = {item["json_field"]: item["set"] for item in json.loads(done.stdout)}
            return {field for field in ("SystemCallFilter_privileged", "PrivateUsers", "MemoryDenyWriteExecute")
                    if found[field] is False}

        # socket.group: a chown, to a group that the service knows.
        group = {"SystemCallFilter_privileged", "PrivateUsers"}
        self.assertEqual(left("failback-registry"), group)
        # Commands of health checks may be programs that compile as they run.
        self.assertEqual(left("failback-agent"), group | {"MemoryDenyWriteExecute"})

    def test_the_agents_folder_outlives_a_restart(self):
        with open(PACKAGE + "/debian/failback-agent.service", encoding="utf-8") as file:
            self.assertIn("\nRuntimeDirectoryPreserve=restart\n", file.read())

    def test_a_purge_ends_where_the_state_is_a_mount_point(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(folder + "/deluser", "w", encoding="utf-8") as file:
                file.write("#!/bin/sh\necho deluser $*\n")
            os.chmod(folder + "/deluser", 0o755)
            for name, state in (("failback-registry", "failback"), ("failback-agent", "failback-agent")):
                done = subprocess.run(
                    ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", PURGE, "purge",
                     os.path.abspath("%s/debian/%s.postrm" % (PACKAGE, name)), state],
                    capture_output=True, text=True, check=False,
                    env={**os.environ, "PATH": folder + ":" + os.environ["PATH"]})
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                removed = "deluser --system --quiet %s\n" % name
                self.assertEqual(done.stdout, removed + "".join(
                    "./%s%s\n" % (state, path) for path in ("", "/backups", "/backups/kept")) + removed)

    def test_version_is_the_headers_where_no_commit_is_known(self):
        done = subprocess.run([PACKAGE + "/version", os.path.abspath("registry/base/version.h")], text=True,
                              capture_output=True, check=False,
                              env={"PATH": os.environ["PATH"], "GIT_DIR": "/nowhere"})
        version = run("agent/failbackctl", "--version").stdout.split()[1]
        self.assertEqual(done.stdout, version + "\n", done.stderr)

    def test_version_is_the_headers_where_the_commit_is_tagged(self):
        with tempfile.TemporaryDirectory() as folder:
            def run_there(*command):
                done = subprocess.run(command, cwd=folder, text=True, capture_output=True, check=False, env={
                    "PATH": os.environ["PATH"], "HOME": folder, "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a",
                    "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a",
                    "GIT_COMMITTER_DATE": "2026-11-23T13:47:31Z"})
                self.assertEqual(done.returncode, 0, done.stderr)
                return done.stdout.strip()

            shutil.copy(PACKAGE + "/version", folder + "/version")
            with open(folder + "/version.h", "w", encoding="utf-8") as file:
                file.write('constexpr char kVersion[] = "9.8.7";\n')
            run_there("git", "init", "-q")
            run_there("git", "add", ".")
            run_there("git", "commit", "-q", "-m", "one")
            # As wide in every clone, however many commits that has.
            commit = run_there("git", "rev-parse", "HEAD")[:12]
            later = "9.8.7+git20261123134731." + commit
            self.assertEqual(run_there("./version", folder + "/version.h"), later)
            run_there("git", "tag", "-a", "-m", "", "v9.8.7")
            self.assertEqual(run_there("./version", folder + "/version.h"), "9.8.7")
            with open(folder + "/version.h", "a", encoding="utf-8") as file:
                file.write("\n")
            self.assertEqual(run_there("./version", folder + "/version.h"), later + ".dirty")

    def test_an_installed_tree_is_the_same_under_any_umask(self):
        with tempfile.TemporaryDirectory() as folder:
            plan, archive, exported = folder + "/plan", folder + "/nothing.a", folder + "/exported"
            with open(exported, "w", encoding="utf-8") as file:
                file.write("{ global: *; };\n")
            version_h = os.path.abspath("registry/base/version.h")
            with open(plan, "w", encoding="utf-8") as file:
                file.write("archive %s -\nprogram /bin/true -\nheader %s registry/base/version.h\n" % (
                    archive, version_h))
            done = run("sh", "-c", "cd $1 && g++ -c -x c++ /dev/null -o nothing.o && ar rc nothing.a nothing.o", "sh",
                       folder)
            self.assertEqual(done.returncode, 0, done.stdout)
            trees = []
            for umask in ("022", "077"):
                out = "%s/%s.tar" % (folder, umask)
                done = run("sh", "-c", 'umask $1; shift; exec "$@"', "sh", umask, "deploy/install/pack.sh", plan,
                           "/dev/null", "/dev/null", "/dev/null", exported, out, "")
                self.assertEqual(done.returncode, 0, done.stdout)
                with tarfile.open(out) as tar:
                    trees.append([(entry.name, oct(entry.mode)) for entry in tar])
            self.assertEqual(trees[0], trees[1])
            modes = dict(trees[1])
            self.assertEqual((modes["bin/true"], modes["lib/pkgconfig/failback.pc"]), ("0o755", "0o644"))

    def test_licences_are_of_all_headers(self):
        """Of each header of the system that a source names, the package is among those that the packages list."""
        env = {**os.environ, "SOURCE_DATE_EPOCH": "0"}
        code = "import sys; sys.path.insert(0, %r); import contents; print(*contents.HEADERS)" % PACKAGE
        headers = subprocess.run(["/usr/bin/python3", "-B", "-c", code], env=env, text=True, check=True,
                                 stdout=subprocess.PIPE).stdout.split()
        loaded = run("ldd", *[program for program, _ in PROGRAMS]).stdout
        listed = packages_of(headers + [os.path.realpath(path) for path in re.findall(r"=> (/\S+)", loaded)])
        named = set()
        for folder in ("agent", "daemon", "gateway", "registry", "retry"):
            for path in glob.glob(folder + "/**/*.h", recursive=True) + glob.glob(folder + "/**/*.cc", recursive=True):
                with open(path, encoding="utf-8") as file:
                    named |= set(re.findall(r'^#include ["<]([^">]+)[">]', file.read(), re.M))
        # Where the compiler looks after the project's own.
        found = [place + name for name in named if not os.path.exists(name)
                 for place in ("/usr/include/", "/usr/include/x86_64-linux-gnu/") if os.path.isfile(place + name)]
        self.assertIn("/usr/include/boost/beast/http.hpp", found)
        self.assertLessEqual(packages_of(found), listed)

    def test_pages_name_the_library_of_this_version(self):
        version = run("agent/failbackctl", "--version").stdout.split()[1]
        api = re.match(r"0\.\d+|\d+", version).group(0)
        for path, pattern in (("docs/install.md", r"`libfailback(\d[\d.]*)`"), ("docs/library.md", r"`libfailback\.so\.([\d.]+)`")):
            with open(path, encoding="utf-8") as file:
                self.assertEqual(set(re.findall(pattern, file.read())), {api}, path)

    def test_clients_are_of_the_same_version(self):
        version = run("agent/failbackctl", "--version").stdout.split()[1]
        with open("clients/python/failback/__init__.py", encoding="utf-8") as file:
            self.assertIn('__version__ = "%s"\n' % version, file.read())
        with open("clients/node/package.json", encoding="utf-8") as file:
            self.assertEqual(json.load(file)["version"], version)

    def test_clients_are_packed_without_the_programs(self):
        version = run("agent/failbackctl", "--version").stdout.split()[1]
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([PACKAGE + "/run", "/nowhere.tar", folder, "clients"], text=True, check=False,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000", "GIT_DIR": "/nowhere"})
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertEqual({name.split("-")[-1] for name in os.listdir(folder)}, {"any.whl", version + ".tgz"})


if __name__ == "__main__":
    unittest.main()
