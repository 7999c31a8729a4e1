#!/usr/bin/env bash
# run_test.sh NAME: tests/deploy/NAME_test.py.
PYTHONPATH=tests/util exec /usr/bin/python3 -B "tests/deploy/$1_test.py" -v
