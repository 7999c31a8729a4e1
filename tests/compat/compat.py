"""compat.py --old-bin DIR --new-bin DIR: programs of two versions against each other, and a table of how it went."""

import argparse
import concurrent.futures
import functools
import itertools
import os
import shutil
import sys
import tempfile
import time
import traceback

import stories
from programs import Failed, Programs, Stage

SIDE_BY_SIDE = 4


def plan(old, new, smoke):
    """[(row of the table, the story with its programs)]"""
    versions = [new] if smoke else [old, new]
    rows = [(f"everyday: registry {r.name}, agent {a.name}, failbackctl {c.name}",
             functools.partial(stories.everyday, registry=r, agent=a, ctl=c))
            for r, a, c in itertools.product(versions, repeat=3)]
    pairs = [(new, new)] if smoke else [(old, new), (new, old)]
    for before, after in pairs:
        for companion in versions:
            rows += [
                (f"registry {before.name} to {after.name}, agent and failbackctl {companion.name}",
                 functools.partial(stories.registry_changes, before=before, after=after, companion=companion)),
                (f"agent {before.name} to {after.name}, registry and failbackctl {companion.name}",
                 functools.partial(stories.agent_changes, before=before, after=after, companion=companion)),
                (f"agent {before.name} to {after.name} and back, registry and failbackctl {companion.name}",
                 functools.partial(stories.agent_comes_back, before=before, after=after, companion=companion)),
                (f"over etcd: registries {before.name} and {after.name}, agent and failbackctl {companion.name}",
                 functools.partial(stories.over_etcd, first=before, second=after, companion=companion)),
            ]
        rows.append((f"at etcd: agents {before.name} and {after.name}",
                     functools.partial(stories.agents_at_etcd, first=before, second=after, companion=new)))
    return rows


def outcome(story, folder):
    """(it holds, a word about it)"""
    try:
        with Stage(folder) as stage:
            return True, story(stage) or "holds"
    except Failed as failed:
        line = next(f.lineno for f in reversed(traceback.extract_tb(failed.__traceback__))
                    if f.filename.endswith("stories.py"))
        return False, f"stories.py:{line}: {failed}"
    except Exception as error:  # pylint: disable=broad-except
        return False, "".join(traceback.format_exception(error))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--old-bin", help="folder of the older programs")
    parser.add_argument("--new-bin", required=True, help="folder of the newer programs")
    parser.add_argument("--only", default="", help="only rows of the table with this text")
    parser.add_argument("--smoke", action="store_true", help="the newer programs against themselves, each story once")
    parser.add_argument("--keep", action="store_true", help="leave the folders with stores and logs")
    args = parser.parse_args()
    if not args.smoke and not args.old_bin:
        parser.error("--old-bin is needed, or --smoke")
    try:
        new = Programs("new", args.new_bin)
        old = new if args.smoke else Programs("old", args.old_bin)
    except FileNotFoundError as error:
        parser.error(str(error))
    if not args.smoke:
        print(f"old is {old.version()}, {args.old_bin}; new is {new.version()}, {args.new_bin}", flush=True)
    rows = [row for row in plan(old, new, args.smoke) if args.only in row[0]]
    if not rows:
        parser.error(f"--only {args.only!r}: no row has it")
    # Memory, where there is: what is tested is not the disk. Paths of a program's own have to be short.
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = tempfile.mkdtemp(prefix="failback-compat-", dir=where)
    started = time.monotonic()
    failed = 0
    try:
        with concurrent.futures.ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            results = [pool.submit(outcome, story, os.path.join(folder, str(n))) for n, (_, story) in enumerate(rows)]
            width = max(len(title) for title, _ in rows)
            for n, ((title, _), result) in enumerate(zip(rows, results)):
                holds, word = result.result()
                failed += not holds
                print(f"{title:{width}}  {'ok' if holds else 'FAILED'}  {word}", flush=True)
                if not holds and args.keep:
                    print(f"{'':{width}}          see {folder}/{n}")
    finally:
        if not args.keep:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"{len(rows) - failed} of {len(rows)} hold, in {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
