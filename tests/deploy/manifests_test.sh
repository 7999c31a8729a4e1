#!/usr/bin/env bash
# Every manifest in deploy/, parsed, checked and run.
PYTHONPATH=tests/util exec /usr/bin/python3 -B tests/deploy/manifests_test.py -v
