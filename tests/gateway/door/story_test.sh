#!/usr/bin/env bash
# story_test.sh NAME.py: tests/gateway/door/NAME.py with what it imports.
set -euo pipefail
PYTHONPATH=tests/gateway/door:tests/clients:tests/util exec python3 -B "tests/gateway/door/$1" -v
