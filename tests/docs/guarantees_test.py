"""docs/guarantees.md is right: each promise names code, and tests or a verb, and what it names exists."""

import glob
import os
import re
import sys

FOLDERS = ["tests/daemon", "tests/daemon/admin", "tests/gateway/door", "tests/gateway/http", "tests/fault", "tests/fuzz/work",
           "tests/gateway/dns", "tests/gateway/xds", "tests/integration", "tests/registry", "tests/registry/base",
           "tests/registry/client", "tests/registry/etcd", "tests/registry/failback", "tests/registry/model",
           "tests/registry/process", "tests/registry/rpc", "tests/registry/security", "tests/registry/server",
           "tests/registry/store", "tests/registry/store/sqlite", "tests/registry/watch",
           "tests/simulate/disk"]


# What keeps a promise and is no program: data that is recorded, and fuzzers.
OTHER_CODE = ["tests/compat/data", "tests/fuzz"]


def promises(text):
    """(promise, cell with the code, cell with the tests) of each row of each table."""
    text = text.split("## Clause by clause")[0]  # of which the suite itself keeps the table
    for section in re.split(r"^## ", text, flags=re.M)[1:]:
        rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("|")]
        for row in rows[2:]:
            yield row[0].strip(), row[1].strip(), row[-1]


def matches(name, tests):
    """Whether `Name`, `Suite.Name`, `Suite.*` or `Beginning…` is one of the tests."""
    pattern = re.escape(name).replace(r"\*", r"\w+").replace("…", r"\w+")
    if "." not in name:
        pattern = r"\w+\." + pattern
    return any(re.fullmatch(pattern, test) for test in tests)


def code_faults(cell, last):
    """What is wrong with a cell such as "`store/leases.cc` `Renew`", and the last file that it names. A path is below
    registry/ or the project's root; a function is one of the file before it. `last` is the file of the row before,
    which "the same" repeats."""
    faults = []
    path = last if cell.startswith("the same") else None
    for name in re.findall(r"`([^`]+)`", cell):
        if name.startswith("tests/"):  # a folder of tests that are the code: recorded data, fuzzers
            if name not in OTHER_CODE:
                faults.append(f"there is no {name}")
            path = path or name
        elif "/" in name or name.endswith((".cc", ".h")):
            path = next((known for known in ("registry/" + name, name) if os.path.isfile(known)), None)
            if not path:
                faults.append(f"there is no {name}")
        elif path:
            with open(path, encoding="utf-8") as source:
                if not re.search(rf"\b{re.escape(name)}\(", source.read()):
                    faults.append(f"{path} has no {name}")
    if not path and not faults and cell != "all of it":
        faults.append(f"no file is named for it: {cell!r}")
    return faults, path


def test_faults(cell, tests):
    """What is wrong with a cell such as "`leases_test`: `GuardTest.*`; process: `tests/fault` `AStory…`". A test is in
    the file named before it, `tests` having those of each; after a folder it is in any."""
    faults = []
    names = re.findall(r"`([^`]+)`", cell)
    if not names:
        faults.append("nothing named for it")
    file = None
    for name in names:
        if name.endswith("_test"):
            file = name
            if file not in tests:
                faults.append(f"there is no {file}")
        elif name.startswith(("./dev ", "tests/")):
            file = None
            if name.startswith("tests/") and name not in FOLDERS:
                faults.append(f"there is no {name}")
        elif not matches(name, tests.get(file, ()) if file else set().union(*tests.values())):
            faults.append(f"there is no {name} in {file or 'any file'}")
    return faults


def main():
    with open("docs/guarantees.md", encoding="utf-8") as document:
        found = list(promises(document.read()))
    tests = {}  # by file
    for folder in FOLDERS:
        for path in glob.glob(f"{folder}/*_test.cc"):
            with open(path, encoding="utf-8") as source:
                tests.setdefault(re.sub(r".*/(\w+)\.cc", r"\1", path), set()).update(
                    ".".join(test) for test in
                    re.findall(r"^TEST(?:_F|_P)?\((\w+), (\w+)\)", source.read(), re.M))
    failures = []
    if len(found) < 50:
        failures.append(f"{len(found)} promises found, 50 expected")
    path = None
    for promise, code, cell in found:
        faults, path = code_faults(code, path)
        faults += test_faults(cell, tests)
        failures += [f"{promise}: {fault}" for fault in faults]
    for failure in failures:
        print(failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
