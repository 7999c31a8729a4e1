#!/usr/bin/env bash
# conformance_test.sh PROGRAM ARGUMENT...: a program of the suite with Debian's Python and the stubs made by the build.
set -euo pipefail
PYTHONPATH="tests/conformance/python:tests/conformance:tests/util" PYTHONDONTWRITEBYTECODE=1 \
  exec /usr/bin/python3 "tests/conformance/$1" "${@:2}"
