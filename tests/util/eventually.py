"""Waiting for what other processes do."""

import time

DEADLINE = 60


def eventually(condition, what):
    """Asks until `condition` returns something true, and returns that."""
    end = time.monotonic() + DEADLINE
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {DEADLINE} s")
        time.sleep(0.05)
