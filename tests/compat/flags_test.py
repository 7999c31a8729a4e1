"""Every command, flag and named value of a flag that a released version took is taken today."""

import json
import os
import sys

from flags import flags_of
from programs import Programs

DATA = "tests/compat/data"


def missing(then, now):
    for command, flags in then.items():
        if command not in now:
            yield f"{command} is gone"
            continue
        for flag, values in flags.items():
            if flag not in now[command]:
                yield f"{command} {flag} is gone"
            elif not set(values.split("|")) <= set(now[command][flag].split("|")) | {""}:
                yield f"{command} {flag} took {values}, and takes {now[command][flag]}"


def main():
    now = flags_of(Programs("today's", os.environ.get("FAILBACK_COMPAT_BIN", ".")))
    failures, versions = 0, sorted(os.listdir(DATA))
    for version in versions:
        with open(os.path.join(DATA, version, "flags.json"), encoding="utf-8") as file:
            then = json.load(file)
        for what in missing(then, now):
            failures += 1
            print(f"{version}: {what}")
        print(f"{version}: {sum(map(len, then.values()))} flags of {len(then)} commands")
    return 1 if failures or not versions else 0


if __name__ == "__main__":
    sys.exit(main())
