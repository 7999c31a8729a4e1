"""clients.py ROOT VERSION OUT: the clients of clients/ as their languages' tools install them: a wheel for pip, with
the generated messages inside, and a package for npm, with the .proto files."""

import gzip
import json
import os
import sys

import contents


def node_package(root, version, protos):
    def read(*path):
        with open(os.path.join(root, *path), "rb") as file:
            return file.read()

    tree = contents.Tree()
    package = json.loads(read("clients/node/package.json"))
    # By name: what else lies in the folder is not published.
    for name in ["README.md", *package["files"]]:
        if name != "proto":
            tree.data("package/" + name, read("clients/node", name))
    package["version"] = version
    # They fetch the messages from the repository.
    del package["scripts"]
    tree.text("package/package.json", json.dumps(package, indent=2) + "\n")
    for path in protos:
        tree.data("package/proto/" + path, read("proto", path))
    tree.data("package/LICENSE", read("LICENSE"))
    return gzip.compress(tree.tar(), 9, mtime=0)


def main():
    root, version, out = sys.argv[1:]
    sys.path.insert(0, os.path.join(root, "clients/python"))
    import make_wheel  # pylint: disable=import-outside-toplevel
    for name, data in ((make_wheel.file_name(version), make_wheel.wheel(version, contents.EPOCH)),
                       ("failback-%s.tgz" % version, node_package(root, version, make_wheel.PROTOS))):
        with open(os.path.join(out, name), "wb") as file:
            file.write(data)


if __name__ == "__main__":
    main()
