#!/usr/bin/env bash
# Runs NAME.py of its arguments with what it imports.
set -euo pipefail
exec env PYTHONPATH="tests/util:tests/gateway/json" python3 -B "tests/gateway/json/$1"
