#!/usr/bin/env bash
# run_test.sh LANGUAGE: with Debian's interpreter, which sees Debian's grpcio, and the stubs made by the build.
set -euo pipefail
PYTHONPATH=clients/python:tests/conformance/python:tests/clients:tests/util exec /usr/bin/python3 -B \
  "tests/clients/$1_test.py" -v
