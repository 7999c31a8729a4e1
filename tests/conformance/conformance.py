"""conformance.py SUBJECT [CLAUSE...]: runs the clauses against a subject, side by side, and says how each went."""

import concurrent.futures
import re
import sys
import time
import traceback

import grpc

from clauses import CLAUSES
from departures import DEPARTURES
from subjects import SUBJECTS
from world import Refusal, World

SIDE_BY_SIDE = 8


def outcome(subject, name):
    """None when the clause holds, over both ways in if it follows something, else what failed."""
    failed, subscribed = one_outcome(subject, name, watches=False)
    if failed is None and subscribed:
        failed, _ = one_outcome(subject, name, watches=True)
        failed = failed and "by Watch: " + failed
    return failed


def one_outcome(subject, name, watches):
    """(None when the clause holds, else what failed; whether it follows something)"""
    world = World(subject, subject.addresses, watches)
    return judged(world, name), world.subscribed


def judged(world, name):
    try:
        CLAUSES[name](world)
        return None
    except grpc.RpcError as error:
        where = traceback.extract_tb(error.__traceback__)
        lines = [f.lineno for f in where if f.filename.endswith("clauses.py")]
        return f"line {lines[-1] if lines else '?'}: {error.code().name}: {Refusal.of(error)}"
    except Exception as error:  # pylint: disable=broad-except
        where = traceback.extract_tb(error.__traceback__)
        lines = [f.lineno for f in where if f.filename.endswith("clauses.py")]
        return f"line {lines[-1] if lines else '?'}: {type(error).__name__}: {error}"
    finally:
        world.close()


def main():
    name, chosen = sys.argv[1], sys.argv[2:] or list(CLAUSES)
    departures = DEPARTURES[name]
    unknown = set(departures) - set(CLAUSES)
    failures = [f"departures of {name} name no clause: {sorted(unknown)}"] if unknown else []
    started = time.monotonic()
    subject = SUBJECTS[name]()
    try:
        with concurrent.futures.ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            results = dict(zip(chosen, pool.map(lambda c: outcome(subject, c), chosen)))
    finally:
        subject.close()
    for clause, failed in results.items():
        departure = departures.get(clause)
        if departure is None and failed is not None:
            failures.append(f"{clause}: {failed}")
        elif departure is not None and failed is None:
            failures.append(f"{clause}: holds, though {name} is said to depart: {departure[0]}")
        elif departure is not None and not re.search(departure[1], failed):
            failures.append(f"{clause}: departs in another way than /{departure[1]}/: {failed}")
        print(f"{'departs' if departure else 'holds' if failed is None else 'FAILS':8} {clause}")
    for failure in failures:
        print("FAILED", failure)
    print(f"{name}: {len(results)} clauses in {time.monotonic() - started:.1f} s, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
