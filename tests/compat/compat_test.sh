#!/usr/bin/env bash
# compat_test.sh PROGRAM ARGUMENT...: a program of this folder with Debian's Python and the stubs made by the build.
set -euo pipefail
PYTHONPATH="tests/conformance/python:tests/conformance:tests/util" PYTHONDONTWRITEBYTECODE=1 \
  exec /usr/bin/python3 "tests/compat/$1" "${@:2}"
