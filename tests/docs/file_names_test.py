"""The source files that comments of the product and pages of docs/ name exist."""

import glob
import os
import re
import sys

FILE = r"[\w./-]*\w\.(?:cc|h)"


# About tests, whose files are not here.
PAGES_OF_TESTS = ["docs/testing.md"]


def product_files():
    """Every C++ file of the product and of the examples, as //tests/docs:product collects them."""
    folders = ["agent", "daemon", "examples", "gateway", "registry", "retry"]
    return sorted(path for folder in folders for path in glob.glob(folder + "/**/*", recursive=True)
                  if path.endswith((".cc", ".h")))


def comment_faults(path, text, exists):
    """Names in the comments of the file `path`: below its own folder, registry/ or the project's root."""
    for number, line in enumerate(text.splitlines(), 1):
        comment = re.search(r"(?:^|\s)//(.*)", line)
        for name in re.findall(FILE + r"\b", comment.group(1)) if comment else []:
            if not any(map(exists, [os.path.join(os.path.dirname(path), name), name, "registry/" + name])):
                yield f"{path}:{number}: there is no {name}"


def page_faults(path, text, exists, base_names):
    """Names in backquotes on a page: a path below registry/ or the project's root, or a file's name alone. Tests are
    left to other tests of documents."""
    for number, line in enumerate(text.splitlines(), 1):
        for name in re.findall(f"`({FILE})`", line):
            if name.endswith("_test.cc") or name.startswith("tests/"):
                continue
            if not (any(map(exists, [name, "registry/" + name])) if "/" in name else name in base_names):
                yield f"{path}:{number}: there is no {name}"


def main():
    files = product_files()
    exists = set(os.path.normpath(file) for file in files).__contains__
    base_names = {os.path.basename(file) for file in files}
    failures = []
    if len(files) < 300:
        failures.append(f"{len(files)} files of the product found, 300 expected")
    # What is looked for is found.
    planted = "//   gone_with_the_wind.cc   what was in it\n// retry/clock.h, clock.h\n"
    if len(list(comment_faults("retry/clock.h", planted, exists))) != 1:
        failures.append("a comment that names a file which is not there passes")
    if len(list(page_faults("docs/page.md", "`gone.h` `registry/gone.h` `clock.h`", exists, base_names))) != 2:
        failures.append("a page that names a file which is not there passes")
    for path in files:
        with open(path, encoding="utf-8") as file:
            failures += comment_faults(path, file.read(), exists)
    for path in sorted(set(glob.glob("docs/*.md")) - set(PAGES_OF_TESTS)):
        with open(path, encoding="utf-8") as file:
            failures += page_faults(path, file.read(), exists, base_names)
    for failure in failures:
        print(failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
