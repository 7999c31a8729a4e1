"""docs/guarantees.md tells the truth: each promise names tests or a verb, and what it names exists."""

import glob
import re
import sys

FOLDERS = ["tests/daemon", "tests/daemon/admin", "tests/daemon/http", "tests/fault", "tests/fuzz/work",
           "tests/gateway/xds", "tests/integration", "tests/registry", "tests/registry/base",
           "tests/registry/client", "tests/registry/etcd", "tests/registry/failback", "tests/registry/model",
           "tests/registry/process", "tests/registry/rpc", "tests/registry/security", "tests/registry/server",
           "tests/registry/store", "tests/registry/store/sqlite", "tests/registry/watch"]


def promises(text):
    """(promise, cell with the tests) of each row of each table."""
    text = text.split("## Clause by clause")[0]  # of which the suite itself keeps the table
    for section in re.split(r"^## ", text, flags=re.M)[1:]:
        rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("|")]
        for row in rows[2:]:
            yield row[0].strip(), row[-1]


def matches(name, tests):
    """Whether `Name`, `Suite.Name`, `Suite.*` or `Beginning…` is one of the tests."""
    pattern = re.escape(name).replace(r"\*", r"\w+").replace("…", r"\w+")
    if "." not in name:
        pattern = r"\w+\." + pattern
    return any(re.fullmatch(pattern, test) for test in tests)


def main():
    with open("docs/guarantees.md", encoding="utf-8") as document:
        found = list(promises(document.read()))
    files = set()
    tests = set()
    for folder in FOLDERS:
        for path in glob.glob(f"{folder}/*_test.cc"):
            files.add(re.sub(r".*/(\w+)\.cc", r"\1", path))
            with open(path, encoding="utf-8") as source:
                tests.update(".".join(test) for test in
                             re.findall(r"^TEST(?:_F|_P)?\((\w+), (\w+)\)", source.read(), re.M))
    failures = []
    if len(found) < 50:
        failures.append(f"{len(found)} promises found, 50 expected")
    for promise, cell in found:
        names = re.findall(r"`([^`]+)`", cell)
        if not names:
            failures.append(f"nothing named for: {promise}")
        for name in names:
            known = (name in files if name.endswith("_test") else
                     name.startswith("./dev ") or name.startswith("tests/") and name in FOLDERS or
                     matches(name, tests))
            if not known:
                failures.append(f"{promise}: there is no {name}")
    for failure in failures:
        print(failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
