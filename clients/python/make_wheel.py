"""Makes the wheel, with the generated messages inside: for pip (PEP 517: `pip install ./clients/python`), and for
`./dev package clients`. protoc makes the messages: `apt install protobuf-compiler protobuf-compiler-grpc`."""

import base64
import glob
import hashlib
import io
import os
import re
import shutil
import subprocess
import tempfile
import time
import zipfile

PROTOS = ("failback/registry/v1/registry.proto", "failback/rpc/v1/status.proto")
# By name: what else lies in the folder is not published.
FILES = ("__init__.py", "aio.py", "client.py", "intents.py", "py.typed")
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PLUGIN = "grpc_python_plugin"
# The first moment that a wheel can name.
EPOCH = 315532800
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


def stubs():
    """What protoc makes of the messages, by path."""
    programs = [shutil.which(name) for name in ("protoc", PLUGIN)]
    if None in programs:
        raise SystemExit("failback: error: protoc and %s make the messages, and are not both installed: "
                         "apt install protobuf-compiler protobuf-compiler-grpc" % PLUGIN)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [programs[0], "-I", ROOT + "/proto", "--plugin=protoc-gen-grpc_python=" + programs[1],
             "--python_out=" + folder, "--grpc_python_out=" + folder, *PROTOS], check=True)
        made = glob.glob(folder + "/**/*.py", recursive=True)
        return {os.path.relpath(path, folder): read(path) for path in made}


def wheel(version, epoch):
    """The bytes: the same for the same sources, version and epoch, which dates the files."""
    files = stubs()
    for name in FILES:
        files["failback/" + name] = read(HERE, "failback", name)
    info = "failback-%s.dist-info/" % version
    files[info + "METADATA"] = (METADATA % (version, read(HERE, "README.md").decode())).encode()
    files[info + "WHEEL"] = b"Wheel-Version: 1.0\nGenerator: failback-package\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[info + "LICENSE"] = read(ROOT, "LICENSE")
    record = "".join("%s,sha256=%s,%d\n" % (
        path, base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode(), len(data))
        for path, data in sorted(files.items()))
    files[info + "RECORD"] = (record + info + "RECORD,,\n").encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in sorted(files.items()):
            entry = zipfile.ZipInfo(path, time.gmtime(epoch)[:6])
            entry.external_attr, entry.compress_type = 0o100644 << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return out.getvalue()


def file_name(version):
    return "failback-%s-py3-none-any.whl" % version


# What pip calls.


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    source = read(HERE, "failback/__init__.py").decode()
    version = re.search(r'^__version__ = "(.*)"$', source, re.M).group(1)
    with open(os.path.join(wheel_directory, file_name(version)), "wb") as file:
        file.write(wheel(version, EPOCH))
    return file_name(version)


def build_sdist(sdist_directory, config_settings=None):
    raise NotImplementedError("the client is built in its repository, or comes as a wheel: ./dev package clients")
