"""docs/wheel.md tells the truth: each rule names tests, and each of them exists and is not disabled."""

import glob
import re
import sys


def rules(text):
    """The rows of the section "What is promised, and its tests": (rule, [test, ...])."""
    section = re.search(r"^## What is promised, and its tests\n(.*?)^## ", text, re.S | re.M)
    if section is None:
        return []
    rows = [line.split("|")[1:-1] for line in section.group(1).splitlines() if line.startswith("|")]
    return [(row[0].strip(), re.findall(r"`(\w+\.\w+)`", row[-1])) for row in rows[2:]]


def main():
    with open("docs/wheel.md", encoding="utf-8") as document:
        found = rules(document.read())
    tests = set()
    for path in glob.glob("tests/retry/*_test.cc"):
        with open(path, encoding="utf-8") as source:
            tests.update(".".join(test) for test in
                         re.findall(r"^TEST(?:_F|_P)?\((\w+), (\w+)\)", source.read(), re.M))
    failures = []
    if len(found) < 19:
        failures.append(f"{len(found)} rules found, 19 expected")
    if not tests:
        failures.append("no tests found")
    for rule, names in found:
        if not names:
            failures.append(f"no test named for: {rule}")
        failures += [f"{rule}: there is no test {name}" for name in names if name not in tests]
    for failure in failures:
        print(failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
