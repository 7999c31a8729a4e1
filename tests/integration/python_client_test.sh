#!/usr/bin/env bash
# Runs examples/python with Debian's interpreter, which sees Debian's grpcio, and the stubs made by the build.
set -euo pipefail
here="$TEST_SRCDIR/$TEST_WORKSPACE"
PYTHONPATH="$here/tests/conformance/python:$here/examples/python:$here/tests/util" PYTHONDONTWRITEBYTECODE=1 \
  exec /usr/bin/python3 "$here/tests/integration/python_client_test.py" registry/failback-registry
