"""What the packages hold, made of the tree that `./dev install` unpacks: files, conffiles, units, licences, and the
same bytes when they are made again elsewhere. `./dev chroot` installs and uses them."""

import glob
import hashlib
import io
import json
import os
import re
import subprocess
import tarfile
import tempfile
import unittest

with open("registry/base/version.h", encoding="utf-8") as header:
    VERSION = re.search(r'kVersion\[\] = "(.*)";', header.read()).group(1)
# Before 1.0 the middle number says which API, and so which ABI, it is.
API = re.match(r"0\.\d+|\d+", VERSION).group(0)
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
    "libfailback" + API: {MULTIARCH + "libfailback.so." + API, MULTIARCH + "libfailback.so." + VERSION},
    # Beside its headers.
    "libfailback-dev": {
        MULTIARCH + name for name in (
            "libfailback.a", "libfailback.so", "pkgconfig/failback.pc", "pkgconfig/failback-shared.pc",
            "cmake/failback/failbackConfig.cmake", "cmake/failback/failbackConfigVersion.cmake")},
}
CONFFILES = {"failback-registry": ["/etc/failback/registry.yaml"], "failback-agent": ["/etc/failback/agent.yaml"]}
# Of what is compiled into the programs by its headers: package, and who is named in debian/copyright.
HEADERS = {"libcli11-dev": "University of Cincinnati", "libboost1.74-dev": "Boost Software License - Version 1.0",
           "nlohmann-json3-dev": "Niels Lohmann"}
# Some of the packages whose libraries the programs load.
LOADED = {"libexpat1", "libyaml-0-2", "libgrpc++1.51", "libprotobuf32", "libsqlite3-0", "libssl3"}
PARTS = ("deb", "tarball", "image", "clients")
# What `deploy/package/run` reads.
SOURCES = ("deploy", "clients", "proto", "registry/base/version.h", "CHANGELOG.md", "LICENSE")
# Runs a command on a machine with an authority of its own, where files are private.
ELSEWHERE = """
set -e
openssl req -x509 -newkey rsa:2048 -nodes -keyout /dev/null -out $1/local.crt -subj /CN=local 2>/dev/null
cat /etc/ssl/certs/ca-certificates.crt $1/local.crt >$1/bundle.crt
mount --bind $1/bundle.crt /etc/ssl/certs/ca-certificates.crt
umask 077
shift
exec "$@"
"""
# Packed loosely: how well is not what is tested.
ENVIRONMENT = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000", "GIT_DIR": "/nowhere",
               "DPKG_DEB_COMPRESSOR_TYPE": "gzip", "DPKG_DEB_COMPRESSOR_LEVEL": "1"}


def run(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


def make(out, *parts, root=".", before=()):
    done = subprocess.run([*before, root + "/deploy/package/run", root + "/" + TREE, out, *parts], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, env=ENVIRONMENT)
    assert done.returncode == 0, done.stdout


def digests(folder):
    found = {}
    for path in glob.glob(folder + "/*"):
        with open(path, "rb") as file:
            found[os.path.basename(path)] = hashlib.sha256(file.read()).hexdigest()
    return found


class DebsTest(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.dist = cls.folder.name + "/dist"
        make(cls.dist, *PARTS)
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
        for name in ("failback-registry", "failback-agent", "libfailback" + API):
            depends = run("dpkg-deb", "--field", self.debs[name], "Depends").stdout
            for library in ("libabsl20220623", "libgrpc++1.51", "libprotobuf32"):
                self.assertIn(library, depends, name)
            # Eureka's XML and the daemons' YAML, which the library does not read.
            for library in ("libexpat1", "libyaml-0-2"):
                self.assertEqual(library in depends, name in CONFFILES, (name, library))
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
        packages = {package["name"] for package in document["packages"][1:]}
        self.assertLessEqual(set(HEADERS) | LOADED, packages)
        for package in packages:
            self.assertIn("licenses/" + package, files)
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
            # It has one name, whether Docker, podman or containerd loads it.
            (legacy,) = json.load(layout.extractfile("manifest.json"))
            self.assertEqual(["docker.io/library/" + name for name in legacy["RepoTags"]],
                             [index["manifests"][0]["annotations"]["io.containerd.image.name"]])
            files = {}
            for layer in manifest["layers"]:
                with tarfile.open(fileobj=blob(layer), mode="r:gz") as tar:
                    files.update({e.name: tar.extractfile(e).read() for e in tar if e.isfile()})
        self.assertEqual(config["config"]["User"], "65532:65532")
        names = {os.path.basename(name) for name in files}
        self.assertEqual(names & {"sh", "bash", "dash", "busybox", "apt", "dpkg"}, set())
        document = json.loads(files["usr/share/doc/failback/failback.spdx.json"])
        status = files["var/lib/dpkg/status"].decode()
        packages = {package["name"] for package in document["packages"][1:]}
        self.assertLessEqual(set(HEADERS) | LOADED, packages)
        for package in packages:
            self.assertIn("usr/share/doc/%s/copyright" % package, files)
            self.assertIn("Package: %s\n" % package, status)
        # As many authorities as Debian ships.
        shipped = [path for path in run("dpkg", "-L", "ca-certificates").stdout.split() if path.endswith(".crt")]
        trusted = files["etc/ssl/certs/ca-certificates.crt"].count(b"-----BEGIN CERTIFICATE-----")
        self.assertEqual(trusted, len(shipped))

    def test_licences_of_headers_are_in_the_packages(self):
        for name in CONFFILES:
            with open("%s/usr/share/doc/%s/copyright" % (self.root, name), encoding="utf-8") as file:
                text = file.read()
            for package, words in HEADERS.items():
                self.assertIn(package, text)
                self.assertIn(words, text)

    def test_packages_made_again_elsewhere_are_the_same_bytes(self):
        elsewhere = self.folder.name + "/elsewhere"
        again = elsewhere + "/dist"
        os.makedirs(again)
        # As a person has it who lets no one else read, beside packages that were made of other programs.
        for path in SOURCES:
            os.makedirs(os.path.dirname("%s/%s" % (elsewhere, path)), exist_ok=True)
            run("cp", "-rL", path, "%s/%s" % (elsewhere, path))
        run("chmod", "-R", "go=", elsewhere)
        for path in self.debs.values():
            with open(os.path.join(again, os.path.basename(path)), "w", encoding="utf-8") as file:
                file.write("of other programs")
        before = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", ELSEWHERE, "sh", elsewhere]
        make(again, "image", "deb", "tarball", "clients", root=elsewhere, before=before)
        self.assertEqual(digests(again), digests(self.dist))
        # A tarball, an image, a wheel and a package for npm beside them.
        self.assertEqual(len(digests(again)), len(self.debs) + 4)


if __name__ == "__main__":
    unittest.main()
