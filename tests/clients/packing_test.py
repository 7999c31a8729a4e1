"""How the clients are packed: by deploy/package/clients.py, and from their folders by pip and npm. What lies in the folders by
accident is not published, and does not hinder packing."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

PACKED = os.environ["PACKED"]
with open("clients/node/package.json", encoding="utf-8") as package_json:
    VERSION = json.load(package_json)["version"]


def copy_of_the_tree():
    folder = tempfile.TemporaryDirectory()
    for name in ("clients", "deploy", "proto"):
        shutil.copytree(name, folder.name + "/" + name)
    shutil.copy("LICENSE", folder.name)
    return folder


def files_below(folder):
    found = {}
    for place, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(place, name), "rb") as file:
                found[os.path.relpath(file.name, folder)] = file.read()
    return found


class Packing(unittest.TestCase):
    maxDiff = None

    def run_there(self, folder, *command):
        done = subprocess.run(command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                              env=dict(os.environ, HOME=folder))
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def test_pip_installs_the_folder(self):
        with copy_of_the_tree() as root:
            self.run_there(root, "/usr/bin/python3", "-m", "pip", "install", "--no-index", "--no-deps", "--no-compile", "--target",
                           root + "/installed", "./clients/python")
            installed, packed = files_below(root + "/installed"), files_below(PACKED + "/python")
            # These say who has installed it, and from where.
            info = "failback-%s.dist-info/" % VERSION
            for name in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json"):
                installed.pop(info + name, None)
            packed.pop(info + "RECORD")
            self.assertEqual(installed, packed)

    def test_pip_says_what_it_lacks(self):
        with copy_of_the_tree() as root:
            os.mkdir(root + "/bin")
            done = subprocess.run(["/usr/bin/python3", "-B", "-c", "import make_wheel; make_wheel.build_wheel('.')"], text=True,
                                  capture_output=True, check=False, cwd=root + "/clients/python",
                                  env={"PATH": root + "/bin", "PYTHONPATH": "."})
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, r"^failback: error: protoc .* apt install protobuf-compiler \S+\n$")

    def test_npm_packs_the_folder(self):
        with copy_of_the_tree() as root:
            self.run_there(root, "npm", "pack", "--offline", "./clients/node")
            self.run_there(root, "tar", "-xzf", "failback-%s.tgz" % VERSION)
            of_npm, packed = files_below(root + "/package"), files_below(PACKED + "/package")
            packages = [json.loads(files.pop("package.json")) for files in (of_npm, packed)]
            del packages[0]["scripts"]
            self.assertEqual(packages[0], packages[1])
            del packed["LICENSE"]
            self.assertEqual(of_npm, packed)

    def test_leftovers_are_not_published(self):
        with copy_of_the_tree() as root:
            os.makedirs(root + "/clients/node/node_modules/long")
            os.makedirs(root + "/clients/python/failback/__pycache__")
            for name in ("node/node_modules/long/index.js", "node/.env", "node/index.js.orig", "node/try.js",
                         "python/failback/try.py", "python/failback/__pycache__/aio.pyc"):
                with open(root + "/clients/" + name, "w", encoding="utf-8"):
                    pass
            subprocess.run([sys.executable, "-B", root + "/deploy/package/clients.py", root, VERSION, root], check=True,
                           env=dict(os.environ, SOURCE_DATE_EPOCH="1700000000"))
            with tarfile.open(root + "/failback-%s.tgz" % VERSION) as package:
                self.assertEqual(sorted(entry.name for entry in package if entry.isfile()), ["package/" + name for name in (
                    "LICENSE", "README.md", "index.d.ts", "index.js", "intents.js", "package.json",
                    "proto/failback/registry/v1/registry.proto", "proto/failback/rpc/v1/status.proto")])
            with zipfile.ZipFile(root + "/failback-%s-py3-none-any.whl" % VERSION) as wheel:
                self.assertEqual(sorted(name for name in wheel.namelist() if name.count("/") == 1 and
                                        name.startswith("failback/")), ["failback/" + name for name in (
                                            "__init__.py", "aio.py", "client.py", "intents.py", "py.typed")])


if __name__ == "__main__":
    unittest.main()
