"""What the packages hold, made of the tree that `./dev install` unpacks: files, conffiles, units, licences, and the
same bytes when they are made again elsewhere. `./dev chroot` installs and uses them."""

import glob
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import unittest

TREE = "deploy/install/failback.tar"
MULTIARCH = "usr/lib/x86_64-linux-gnu/"
DOCS = {"usr/share/doc/%s/" + name for name in ("changelog.Debian.gz", "changelog.gz", "copyright")}
FILES = {
    "failback-registry": {
        "usr/bin/failback-registry", "etc/failback/registry.yaml", "lib/systemd/system/failback-registry.service",
        "usr/share/man/man8/failback-registry.8.gz"},
    "failback-agent": {
        "usr/bin/failback-agent", "usr/bin/failbackctl", "etc/failback/agent.yaml",
        "lib/systemd/system/failback-agent.service", "usr/share/man/man8/failback-agent.8.gz",
        "usr/share/man/man1/failbackctl.1.gz", "usr/share/bash-completion/completions/failbackctl",
        "usr/share/zsh/vendor-completions/_failbackctl", "usr/share/fish/vendor_completions.d/failbackctl.fish"},
    "libfailback0.1": {MULTIARCH + "libfailback.so.0.1", MULTIARCH + "libfailback.so.0.1.0"},
    # Beside its headers.
    "libfailback-dev": {
        MULTIARCH + name for name in (
            "libfailback.a", "libfailback.so", "pkgconfig/failback.pc", "pkgconfig/failback-shared.pc",
            "cmake/failback/failbackConfig.cmake", "cmake/failback/failbackConfigVersion.cmake")},
}
CONFFILES = {"failback-registry": ["/etc/failback/registry.yaml"], "failback-agent": ["/etc/failback/agent.yaml"]}
# Packed loosely: how well is not what is tested.
ENVIRONMENT = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000", "GIT_DIR": "/nowhere",
               "DPKG_DEB_COMPRESSOR_TYPE": "gzip", "DPKG_DEB_COMPRESSOR_LEVEL": "1"}


def run(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


def make(out, *parts):
    done = subprocess.run(["deploy/package/run", TREE, out, *parts], stdout=subprocess.PIPE, text=True, check=False,
                          stderr=subprocess.STDOUT, env=ENVIRONMENT)
    assert done.returncode == 0, done.stdout


def digests(folder):
    found = {}
    for path in glob.glob(folder + "/*"):
        with open(path, "rb") as file:
            found[os.path.basename(path)] = hashlib.sha256(file.read()).hexdigest()
    return found


class DebsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.dist = cls.folder.name + "/dist"
        make(cls.dist, "deb", "tarball", "image")
        cls.debs = {os.path.basename(path).split("_")[0]: path for path in glob.glob(cls.dist + "/*.deb")}
        cls.root = cls.folder.name + "/root"
        for name in ("failback-registry", "failback-agent"):
            subprocess.run(["dpkg-deb", "-x", cls.debs[name], cls.root], check=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_each_package_has_its_files_and_no_other(self):
        self.assertEqual(set(self.debs), set(FILES))
        for name, deb in self.debs.items():
            data = subprocess.run(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE, check=True).stdout
            with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                entries = [entry for entry in tar if not entry.isdir()]
            found = {entry.name[2:] for entry in entries}
            if name == "libfailback-dev":
                headers = {path for path in found if path.startswith("usr/include/failback/")}
                self.assertIn("usr/include/failback/agent/agent.h", headers)
                found -= headers
            self.assertEqual(found, FILES[name] | {path % name for path in DOCS})
            self.assertEqual({(e.uname, e.gname, e.mtime) for e in entries}, {("root", "root", 1700000000)}, name)
            self.assertEqual([e.name for e in entries if e.mode & 0o7022 and not e.issym()], [], name)

    def test_configuration_is_kept_on_upgrade(self):
        for name, deb in self.debs.items():
            done = run("dpkg-deb", "--ctrl-tarfile", deb) if name not in CONFFILES else None
            if done is None:
                conffiles = run("dpkg-deb", "--info", deb, "conffiles").stdout.split()
                self.assertEqual(conffiles, CONFFILES[name])
            else:
                self.assertNotIn("conffiles", done.stdout)

    def test_units_are_valid(self):
        for name in CONFFILES:
            with open("%s/lib/systemd/system/%s.service" % (self.root, name), encoding="utf-8") as file:
                unit = file.read()
            self.assertIn("ExecStart=/usr/bin/%s " % name, unit)
            path = os.path.join(self.folder.name, name + ".service")
            with open(path, "w", encoding="utf-8") as file:
                file.write(unit.replace("/usr/bin/", self.root + "/usr/bin/"))
            done = run("systemd-analyze", "verify", "--man=no", path)
            said = [line for line in done.stdout.splitlines() if name in line]
            self.assertEqual((done.returncode, said), (0, []), done.stdout)

    def test_dependencies_are_those_of_this_release(self):
        for name in ("failback-registry", "failback-agent", "libfailback0.1"):
            depends = run("dpkg-deb", "--field", self.debs[name], "Depends").stdout
            for library in ("libabsl20220623", "libgrpc++1.51", "libprotobuf32"):
                self.assertIn(library, depends, name)
            # Nothing that is for building.
            self.assertNotRegex(depends, r"-dev\b", name)

    def test_tarball_names_what_is_inside(self):
        (path,) = glob.glob(self.dist + "/failback-*-linux-*.tar.gz")
        with tarfile.open(path) as tar:
            top = tar.getnames()[0].split("/")[0]
            files = {e.name[len(top) + 1:]: tar.extractfile(e).read() for e in tar if e.isfile()}
        self.assertLessEqual({"bin/failback-registry", "bin/failback-agent", "bin/failbackctl", "README", "LICENSE",
                              "etc/agent.yaml", "systemd/failback-agent.service", "man/failbackctl.1"}, set(files))
        document = json.loads(files.pop("failback.spdx.json"))
        listed = {entry["fileName"][2:]: entry["checksums"] for entry in document["files"]}
        self.assertEqual(set(listed), set(files))
        for name, sums in listed.items():
            digest = next(entry["checksumValue"] for entry in sums if entry["algorithm"] == "SHA256")
            self.assertEqual(digest, hashlib.sha256(files[name]).hexdigest(), name)
        for package in document["packages"][1:]:
            self.assertIn("licenses/" + package["name"], files)
        # glibc is the system's.
        self.assertEqual([n for n in files if re.search(r"lib/failback/(libc\.so|ld-linux)", n)], [])

    def test_image_has_no_shell_and_all_licences(self):
        (path,) = glob.glob(self.dist + "/failback-*.oci.tar")
        with tarfile.open(path) as layout:
            def blob(descriptor):
                return layout.extractfile("blobs/sha256/" + descriptor["digest"].split(":")[1])

            index = json.load(layout.extractfile("index.json"))
            manifest = json.load(blob(index["manifests"][0]))
            config = json.load(blob(manifest["config"]))
            files = {}
            for layer in manifest["layers"]:
                with tarfile.open(fileobj=blob(layer), mode="r:gz") as tar:
                    files.update({e.name: tar.extractfile(e).read() for e in tar if e.isfile()})
        self.assertEqual(config["config"]["User"], "65532:65532")
        names = {os.path.basename(name) for name in files}
        self.assertEqual(names & {"sh", "bash", "dash", "busybox", "apt", "dpkg"}, set())
        document = json.loads(files["usr/share/doc/failback/failback.spdx.json"])
        status = files["var/lib/dpkg/status"].decode()
        for package in document["packages"][1:]:
            self.assertIn("usr/share/doc/%s/copyright" % package["name"], files)
            self.assertIn("Package: %s\n" % package["name"], status)

    def test_packages_made_again_elsewhere_are_the_same_bytes(self):
        again = self.folder.name + "/elsewhere/dist"
        os.makedirs(again)
        make(again, "deb", "image")
        first = {name: digest for name, digest in digests(self.dist).items() if not name.endswith(".gz")}
        self.assertEqual(digests(again), first)
        shutil.rmtree(again)


if __name__ == "__main__":
    unittest.main()
