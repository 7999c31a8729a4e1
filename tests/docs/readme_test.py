"""The README tells the truth: its code is the example's, its links lead somewhere, it is short. Each page of docs/
begins with the reader that it is for."""

import glob
import os
import re
import sys


def main():
    with open("README.md", encoding="utf-8") as readme:
        text = readme.read()
    with open("examples/orders_server.cc", encoding="utf-8") as source:
        example = [line.strip() for line in source]
    failures = []

    blocks = re.findall(r"^```cpp\n(.*?)^```", text, re.S | re.M)
    if not blocks:
        failures.append("no C++ block found")
    for block in blocks:
        lines = [line.strip() for line in block.splitlines()]
        if not any(
            example[i : i + len(lines)] == lines for i in range(len(example) - len(lines) + 1)
        ):
            failures.append("a C++ block is not in examples/orders_server.cc:\n" + block)

    prose = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    for link in re.findall(r"\]\(([^)#]+)", prose):
        if not link.startswith("http") and not os.path.exists(link):
            failures.append("broken link: " + link)

    if len(text.splitlines()) > 150:
        failures.append("README.md has %d lines, 150 allowed: move detail to docs/" % len(text.splitlines()))
    pages = glob.glob("docs/*.md")
    if not pages:
        failures.append("no pages found")
    for page in pages:
        with open(page, encoding="utf-8") as file:
            heading, first = file.read().split("\n\n")[:2]
        if not heading.startswith("# ") or not first.startswith("For "):
            failures.append(page + " begins with something else than a heading and 'For …'")

    if "@@" in text:
        failures.append("a placeholder is left")
    for failure in failures:
        print(failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
