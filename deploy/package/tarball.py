"""tarball.py TREE VERSION ARCH OUT: the programs with the libraries that they load, but for glibc's own, to be
unpacked anywhere on a Linux with this glibc or a later one."""

import gzip
import os
import subprocess
import sys
import tempfile

import contents

PROGRAMS = ("failback-registry", "failback-agent", "failbackctl")
# Of the system: they have to be of one build with its loader.
GLIBC = ("ld-linux", "libc.so", "libm.so", "libdl.so", "libpthread.so", "librt.so", "libresolv.so")

README = """Failback %(version)s

    bin/failback-registry --store sqlite://$HOME/registry.db &
    bin/failback-agent --listen 127.0.0.1:7060 --registry grpc://127.0.0.1:7070 &
    bin/failbackctl register orders --address 10.0.0.7 --port 8080 --wait acknowledged
    bin/failbackctl list

Nothing has to be installed: the programs find what they load in lib/failback, beside bin/. They need a Linux
with glibc %(glibc)s or later.

etc/          configuration files with comments
systemd/      units, for programs in /usr/bin and users of the programs' names
completions/  of failbackctl, for bash, zsh and fish
man/          manual pages: man -l man/failbackctl.1
licenses/     of what is in here; failback.spdx.json is the list
"""


def main():
    tree, version, arch, out = sys.argv[1:]
    top = "failback-%s-linux-%s" % (version, arch)
    programs = [os.path.join(tree, "bin", name) for name in PROGRAMS]
    libraries = {name: path for name, path in contents.libraries(programs).items()
                 if not name.startswith(GLIBC)}
    packages = contents.packages([*libraries.values(), *contents.HEADERS])

    archive = contents.Tree()
    with tempfile.TemporaryDirectory() as folder:
        for name, program in zip(PROGRAMS, programs):
            copy = os.path.join(folder, name)
            subprocess.run(["strip", "-o", copy, program], check=True)
            # Not RUNPATH: the libraries look for each other there, too.
            subprocess.run(["patchelf", "--force-rpath", "--set-rpath", "$ORIGIN/../lib/failback", copy], check=True)
            archive.copy(top + "/bin/" + name, copy, 0o755)
    for name, path in libraries.items():
        archive.copy(top + "/lib/failback/" + name, os.path.realpath(path))
    for folder in ("etc", "completions", "man"):
        for name in os.listdir(os.path.join(tree, folder)):
            archive.copy("%s/%s/%s" % (top, folder, name), os.path.join(tree, folder, name))
    for name in ("failback-registry.service", "failback-agent.service"):
        archive.copy(top + "/systemd/" + name, os.path.join(tree, "debian", name))
    for name in ("LICENSE", "CHANGELOG.md"):
        archive.copy(top + "/" + name, os.path.join(tree, name))
    for package in packages.values():
        archive.copy("%s/licenses/%s" % (top, package.name), package.copyright)
    for name in os.listdir("/usr/share/common-licenses"):
        archive.copy("%s/licenses/common-licenses/%s" % (top, name), "/usr/share/common-licenses/" + name)
    glibc = contents.run("ldd", "--version").split("\n", 1)[0].rsplit(" ", 1)[1]
    archive.text(top + "/README", README % {"version": version, "glibc": glibc})
    archive.data(top + "/failback.spdx.json", contents.spdx("failback", version, packages, {
        path[len(top) + 1:]: data for path, data in archive.files().items()}))

    contents.write(os.path.join(out, top + ".tar.gz"), gzip.compress(archive.tar(), 9, mtime=0))


if __name__ == "__main__":
    main()
