"""deploy/package/clients.py: what lies in the clients' folders by accident is not published, and does not hinder packing."""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile


class Packing(unittest.TestCase):
    def test_leftovers_are_not_published(self):
        with tempfile.TemporaryDirectory() as root:
            for name in ("clients", "deploy", "proto"):
                shutil.copytree(name, root + "/" + name)
            shutil.copy("LICENSE", root)
            os.makedirs(root + "/clients/node/node_modules/long")
            os.makedirs(root + "/clients/python/failback/__pycache__")
            for name in ("node/node_modules/long/index.js", "node/.env", "node/index.js.orig", "node/try.js",
                         "python/failback/try.py", "python/failback/__pycache__/aio.pyc"):
                with open(root + "/clients/" + name, "w", encoding="utf-8"):
                    pass
            subprocess.run([sys.executable, "-B", root + "/deploy/package/clients.py", root, "0.1.0", root], check=True,
                           env=dict(os.environ, SOURCE_DATE_EPOCH="1700000000"))
            with tarfile.open(root + "/failback-0.1.0.tgz") as package:
                self.assertEqual(sorted(entry.name for entry in package if entry.isfile()), ["package/" + name for name in (
                    "LICENSE", "README.md", "index.d.ts", "index.js", "intents.js", "package.json",
                    "proto/failback/registry/v1/registry.proto", "proto/failback/rpc/v1/status.proto")])
            with zipfile.ZipFile(root + "/failback-0.1.0-py3-none-any.whl") as wheel:
                self.assertEqual(sorted(name for name in wheel.namelist() if name.count("/") == 1 and
                                        name.startswith("failback/")), ["failback/" + name for name in (
                                            "__init__.py", "aio.py", "client.py", "intents.py", "py.typed")])


if __name__ == "__main__":
    unittest.main()
