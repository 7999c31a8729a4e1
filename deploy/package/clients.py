"""clients.py ROOT VERSION OUT: the clients of clients/ as their languages' tools install them: a wheel for pip, with
the generated messages inside, and a package for npm, with the .proto files."""

import base64
import glob
import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile

import contents

PROTOS = ("failback/registry/v1/registry.proto", "failback/rpc/v1/status.proto")
# By name: what else lies in the folders is not published.
PYTHON_FILES = ("__init__.py", "aio.py", "client.py", "intents.py", "py.typed")
NODE_FILES = ("README.md", "index.d.ts", "index.js", "intents.js")
METADATA = """Metadata-Version: 2.1
Name: failback
Version: %s
Summary: Keeps a service registered, and follows others, through Failback's sidecar
License: Apache-2.0
Requires-Python: >=3.8
Requires-Dist: grpcio>=1.51
Requires-Dist: protobuf>=3.20.2
Description-Content-Type: text/markdown

%s"""


def read(*path):
    with open(os.path.join(*path), "rb") as file:
        return file.read()


def stubs(root):
    """What protoc makes of the messages, by path."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["protoc", "-I", root + "/proto", "--plugin=protoc-gen-grpc_python=/usr/bin/grpc_python_plugin",
             "--python_out=" + folder, "--grpc_python_out=" + folder, *PROTOS], check=True)
        made = glob.glob(folder + "/**/*.py", recursive=True)
        return {os.path.relpath(path, folder): read(path) for path in made}


def wheel(root, version):
    files = stubs(root)
    for name in PYTHON_FILES:
        files["failback/" + name] = read(root, "clients/python/failback", name)
    info = "failback-%s.dist-info/" % version
    files[info + "METADATA"] = (METADATA % (version, read(root, "clients/python/README.md").decode())).encode()
    files[info + "WHEEL"] = b"Wheel-Version: 1.0\nGenerator: failback-package\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[info + "LICENSE"] = read(root, "LICENSE")
    record = "".join("%s,sha256=%s,%d\n" % (
        path, base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode(), len(data))
        for path, data in sorted(files.items()))
    files[info + "RECORD"] = (record + info + "RECORD,,\n").encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in sorted(files.items()):
            entry = zipfile.ZipInfo(path, time.gmtime(contents.EPOCH)[:6])
            entry.external_attr, entry.compress_type = 0o100644 << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return out.getvalue()


def node_package(root, version):
    tree = contents.Tree()
    for name in NODE_FILES:
        tree.data("package/" + name, read(root, "clients/node", name))
    package = json.loads(read(root, "clients/node/package.json"))
    package["version"] = version
    tree.text("package/package.json", json.dumps(package, indent=2) + "\n")
    for path in PROTOS:
        tree.data("package/proto/" + path, read(root, "proto", path))
    tree.data("package/LICENSE", read(root, "LICENSE"))
    return gzip.compress(tree.tar(), 9, mtime=0)


def main():
    root, version, out = sys.argv[1:]
    for name, data in (("failback-%s-py3-none-any.whl" % version, wheel(root, version)),
                       ("failback-%s.tgz" % version, node_package(root, version))):
        with open(os.path.join(out, name), "wb") as file:
            file.write(data)


if __name__ == "__main__":
    main()
