"""image.py DEBS VERSION ARCH OUT: an OCI image, made by hand of the .debs in the folder DEBS: nothing but the
programs, the libraries that they load, and who they are from. No shell, no package manager; as root nothing runs.

Two layers, so that a new version of the programs is a small download. The archive is an OCI layout that `docker
load` takes, too."""

import gzip
import json
import os
import subprocess
import sys
import tempfile

import contents

USER = 65532
PROGRAMS = ("failback-registry", "failback-agent", "failbackctl")

PASSWD = """root:x:0:0:root:/root:/sbin/nologin
failback:x:%d:%d:Failback:/var/lib/failback:/sbin/nologin
""" % (USER, USER)
GROUP = """root:x:0:
failback:x:%d:
""" % USER


def add_library(layer, name, path):
    """Below /usr, at the place where the loader looks for that name."""
    place = path if path.startswith("/usr/") else "/usr" + path
    layer.copy(os.path.join(os.path.dirname(place), name)[1:], os.path.realpath(path), 0o755)


def certificates():
    """Of the authorities that Debian ships, as its ca-certificates.crt has them: none of this machine's own."""
    found = b""
    for path in sorted(contents.run("dpkg", "-L", "ca-certificates").split("\n")):
        if path.endswith(".crt"):
            with open(path, "rb") as file:
                found += file.read().rstrip(b"\n") + b"\n"
    return found


def debian_layer(programs):
    """What Debian gives."""
    layer = contents.Tree()
    for name in ("lib", "lib64"):
        layer.link(name, "usr/" + name)
    layer.folder("tmp", 0o1777)
    libraries = contents.libraries(programs)
    for name, path in libraries.items():
        add_library(layer, name, path)
    layer.data("etc/ssl/certs/ca-certificates.crt", certificates())
    packages = contents.packages([*libraries.values(), *contents.HEADERS])
    for name in ("base-files", "ca-certificates"):
        packages[name] = contents.Package(name)
    packages = dict(sorted(packages.items()))
    for package in packages.values():
        layer.copy(package.copyright[1:], package.copyright)
    for name in os.listdir("/usr/share/common-licenses"):
        layer.copy("usr/share/common-licenses/" + name, "/usr/share/common-licenses/" + name)
    layer.copy("usr/lib/os-release", "/usr/lib/os-release")
    layer.link("etc/os-release", "../usr/lib/os-release")
    layer.text("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")
    return layer, packages


def failback_layer(unpacked, status, debian, packages, version):
    """What the two packages of the programs give."""
    layer = contents.Tree()
    for name in PROGRAMS:
        layer.copy("usr/bin/" + name, os.path.join(unpacked, "usr/bin", name), 0o755)
    for name in ("failback-registry", "failback-agent"):
        place = "usr/share/doc/%s/copyright" % name
        layer.copy(place, os.path.join(unpacked, place))
    layer.text("etc/passwd", PASSWD)
    layer.text("etc/group", GROUP)
    for folder in ("var/lib/failback", "run/failback"):
        layer.folder(folder, 0o750, USER)
    layer.text("var/lib/dpkg/status", "\n".join([p.status for p in packages.values()] + status))
    layer.data("usr/share/doc/failback/failback.spdx.json", contents.spdx(
        "failback", version, packages, {**debian.files(), **layer.files()}))
    return layer


def status_of(deb):
    """As dpkg would note the package."""
    fields = contents.run("dpkg-deb", "--field", deb).rstrip("\n").split("\n")
    return "\n".join([fields[0], "Status: install ok installed"] + fields[1:]) + "\n"


class Layout:
    """An OCI image layout, to be archived."""

    def __init__(self):
        self.tree = contents.Tree()
        self.tree.text("oci-layout", '{"imageLayoutVersion":"1.0.0"}')

    def blob(self, data, kind):
        digest = contents.sha256(data)
        self.tree.data("blobs/sha256/" + digest, data)
        return {"mediaType": kind, "digest": "sha256:" + digest, "size": len(data)}

    def json(self, value, kind):
        return self.blob(json.dumps(value, sort_keys=True, separators=(",", ":")).encode(), kind)


def write_image(layers, version, arch, path):
    created = contents.run("date", "-u", "-d", "@%d" % contents.EPOCH, "+%FT%TZ").strip()
    layout = Layout()
    tars = [layer.tar() for layer in layers]
    blobs = [layout.blob(gzip.compress(tar, 9, mtime=0), "application/vnd.oci.image.layer.v1.tar+gzip")
             for tar in tars]
    labels = {
        "org.opencontainers.image.title": "failback",
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.created": created,
    }
    config = layout.json({
        "created": created, "architecture": arch, "os": "linux",
        "config": {
            "User": "%d:%d" % (USER, USER), "Env": ["PATH=/usr/bin"], "Cmd": ["failbackctl", "--help"],
            "WorkingDir": "/", "Labels": labels, "StopSignal": "SIGTERM",
            "ExposedPorts": {"7070/tcp": {}, "7071/tcp": {}},
        },
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + contents.sha256(tar) for tar in tars]},
        "history": [{"created": created, "created_by": "failback-package", "comment": comment}
                    for comment in ("libraries of Debian 12", "Failback " + version)],
    }, "application/vnd.oci.image.config.v1+json")
    manifest = layout.json({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config, "layers": blobs, "annotations": labels,
    }, "application/vnd.oci.image.manifest.v1+json")
    tag = version.replace("+", "-")
    # The whole name as containerd has it is what `ctr images import`, podman and Docker name the image by: pods that ask
    # for `failback:TAG` find it.
    manifest["annotations"] = {"org.opencontainers.image.ref.name": tag,
                               "io.containerd.image.name": "docker.io/library/failback:" + tag}
    manifest["platform"] = {"architecture": arch, "os": "linux"}
    layout.tree.text("index.json", json.dumps({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [manifest]}))

    def place(blob):
        return blob["digest"].replace("sha256:", "blobs/sha256/")

    # What `docker load` before Docker 25 reads.
    layout.tree.text("manifest.json", json.dumps([{
        "Config": place(config), "RepoTags": ["failback:" + tag], "Layers": [place(blob) for blob in blobs]}]))
    contents.write(path, layout.tree.tar())


def main():
    folder, version, arch, out = sys.argv[1:]
    debs = [os.path.join(folder, "%s_%s_%s.deb" % (name, version, arch))
            for name in ("failback-registry", "failback-agent")]
    with tempfile.TemporaryDirectory() as unpacked:
        for deb in debs:
            subprocess.run(["dpkg-deb", "-x", deb, unpacked], check=True)
        debian, packages = debian_layer([os.path.join(unpacked, "usr/bin", name) for name in PROGRAMS])
        ours = failback_layer(unpacked, [status_of(deb) for deb in debs], debian, packages, version)
    size = sum(len(data) for layer in (debian, ours) for data in layer.files().values())
    write_image([debian, ours], version, arch, os.path.join(out, "failback-%s-%s.oci.tar" % (version, arch)))
    print("image: %.1f MB unpacked, %d Debian packages" % (size / 1e6, len(packages)), file=sys.stderr)


if __name__ == "__main__":
    main()
