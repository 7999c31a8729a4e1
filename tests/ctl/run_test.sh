#!/usr/bin/env bash
# run_test.sh FILE: a test in Python over the real programs.
PYTHONPATH=tests/util exec /usr/bin/python3 -B "$1"
