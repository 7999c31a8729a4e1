#!/usr/bin/env bash
# session_test.sh PAGE: the commands of a page do what it says.
PYTHONPATH=tests/util exec /usr/bin/python3 -B tests/docs/session_test.py "$1"
