"""What programs are made of: the libraries that they load, the Debian packages that these are from, and a list of
all that as SPDX. And archives of it that are the same bytes for the same input."""

import hashlib
import io
import json
import os
import re
import subprocess
import tarfile

# The epoch that every file and document is dated with.
EPOCH = int(os.environ["SOURCE_DATE_EPOCH"])
# Of each package whose headers are all that there is of it, one: its code is in the programs, and in no library that
# they load. debian/copyright has their licences.
HEADERS = ("/usr/include/CLI/CLI.hpp", "/usr/include/boost/version.hpp", "/usr/include/nlohmann/json.hpp")


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def libraries(programs):
    """The files that the dynamic linker loads for the programs, by the name that they ask for."""
    found = {}
    for line in run("ldd", *programs).splitlines():
        asked = re.match(r"\s+(\S+) => (/\S+) \(", line) or re.match(r"\s+((/\S+)) \(", line)
        if asked:
            found[os.path.basename(asked.group(1))] = asked.group(2)
        elif "not found" in line:
            raise SystemExit("package: error: " + line.strip())
    return dict(sorted(found.items()))


def owners(paths):
    """The installed Debian packages that files are from."""
    real = {os.path.realpath(path) for path in paths}
    # A package may have listed a file before /lib was /usr/lib.
    names = {name: path for path in real
             for name in (path, path[len("/usr"):] if path.startswith("/usr/") else "/usr" + path)}
    found = {}
    for line in subprocess.run(["dpkg-query", "-S", *names], capture_output=True, text=True,
                               check=False).stdout.splitlines():
        package, name = line.rsplit(": ", 1)
        if name in names and not line.startswith("diversion "):
            found[names[name]] = package.split(",")[0]
    if real - set(found):
        raise SystemExit("package: error: no package has " + " ".join(sorted(real - set(found))))
    return set(found.values())


class Package:
    """An installed package."""

    def __init__(self, name):
        self.status = run("dpkg-query", "-s", name)
        fields = dict(re.findall(r"^(\S+): (.*)$", self.status, re.M))
        self.name, self.version, self.arch = (fields[k] for k in ("Package", "Version", "Architecture"))
        self.homepage = fields.get("Homepage", "NOASSERTION")
        self.copyright = "/usr/share/doc/%s/copyright" % self.name


def packages(paths):
    """The packages of the files, by name."""
    return {p.name: p for p in map(Package, sorted(owners(paths)))}


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def spdx(name, version, others, files):
    """An SPDX document: the product, which contains the packages and the files (path: bytes)."""
    def identifier(kind, text):
        return "SPDXRef-%s-%s" % (kind, re.sub(r"[^A-Za-z0-9.-]", "-", text))

    product = {
        "SPDXID": identifier("Package", name), "name": name, "versionInfo": version,
        "downloadLocation": "NOASSERTION", "licenseConcluded": "Apache-2.0", "licenseDeclared": "Apache-2.0",
        "copyrightText": "2026 the Failback contributors", "filesAnalyzed": False,
        "primaryPackagePurpose": "APPLICATION",
    }
    inside = [{
        "SPDXID": identifier("Package", p.name), "name": p.name, "versionInfo": p.version,
        "supplier": "Organization: Debian", "downloadLocation": "NOASSERTION", "homepage": p.homepage,
        "licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION",
        "licenseComments": "the copyright file of the package is included", "copyrightText": "NOASSERTION",
        "filesAnalyzed": False,
        "externalRefs": [{
            "referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
            "referenceLocator": "pkg:deb/debian/%s@%s?arch=%s&distro=debian-12" % (
                p.name.replace("+", "%2B"), p.version.replace("+", "%2B").replace(":", "%3A"), p.arch)}],
    } for p in others.values()]
    listed = [{
        "SPDXID": identifier("File", path), "fileName": "./" + path, "licenseConcluded": "NOASSERTION",
        "copyrightText": "NOASSERTION",
        "checksums": [{"algorithm": "SHA1", "checksumValue": hashlib.sha1(data).hexdigest()},
                      {"algorithm": "SHA256", "checksumValue": sha256(data)}],
    } for path, data in sorted(files.items())]
    created = run("date", "-u", "-d", "@%d" % EPOCH, "+%FT%TZ").strip()
    related = [("SPDXRef-DOCUMENT", "DESCRIBES", product["SPDXID"])]
    related += [(product["SPDXID"], "CONTAINS", item["SPDXID"]) for item in inside + listed]
    content = sha256("".join(f["checksums"][1]["checksumValue"] for f in listed).encode())
    return (json.dumps({
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
        "name": "%s-%s" % (name, version),
        "documentNamespace": "https://failback.dev/spdx/%s-%s-%s" % (name, version, content[:16]),
        "creationInfo": {"created": created, "creators": ["Organization: Failback", "Tool: failback-package"]},
        "packages": [product] + inside, "files": listed,
        "relationships": [{"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": b}
                          for a, kind, b in related],
    }, indent=1) + "\n").encode()


def write(path, data):
    """The whole file, or none of its name."""
    with open(path + ".part", "wb") as file:
        file.write(data)
    os.replace(path + ".part", path)


class Tree:
    """Files to be archived: sorted, with one date, of the owner that is named for each."""

    def __init__(self):
        self.entries = {}

    def _add(self, path, kind, mode, owned=0, data=b"", target=""):
        for parent in (os.path.dirname(path),):
            if parent and parent not in self.entries:
                self.folder(parent)
        info = tarfile.TarInfo(path)
        info.type, info.mode, info.uid, info.gid, info.mtime = kind, mode, owned, owned, EPOCH
        info.size, info.linkname = len(data), target
        self.entries[path] = (info, data)

    def folder(self, path, mode=0o755, owned=0):
        self._add(path, tarfile.DIRTYPE, mode, owned)

    def text(self, path, text, mode=0o644):
        self.data(path, text.encode(), mode)

    def data(self, path, data, mode=0o644):
        self._add(path, tarfile.REGTYPE, mode, data=data)

    def copy(self, path, source, mode=0o644):
        with open(source, "rb") as file:
            self.data(path, file.read(), mode)

    def link(self, path, target):
        self._add(path, tarfile.SYMTYPE, 0o777, target=target)

    def files(self):
        return {path: data for path, (info, data) in self.entries.items() if info.isreg()}

    def tar(self):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for path in sorted(self.entries):
                info, data = self.entries[path]
                archive.addfile(info, io.BytesIO(data))
        return out.getvalue()
