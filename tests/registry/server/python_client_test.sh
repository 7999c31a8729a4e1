#!/usr/bin/env bash
# Runs the Python client with Debian's interpreter, which sees Debian's grpcio, and the stubs made by the build.
set -euo pipefail
here="$TEST_SRCDIR/$TEST_WORKSPACE/tests/registry/server"
PYTHONPATH="$TEST_SRCDIR/$TEST_WORKSPACE/tests/conformance/python" PYTHONDONTWRITEBYTECODE=1 \
  exec /usr/bin/python3 "$here/python_client_test.py" \
  registry/failback-registry agent/failback-agent
