#!/usr/bin/env bash
# stock_test.sh ROOM: tests/gateway/ROOM/stock_test.py, with Debian's interpreter.
set -euo pipefail
PYTHONPATH=tests/gateway/door:tests/clients:tests/util exec /usr/bin/python3 -B "tests/gateway/$1/stock_test.py" -v
