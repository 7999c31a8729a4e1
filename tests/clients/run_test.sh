#!/usr/bin/env bash
# run_test.sh NAME: tests/clients/NAME_test.py, with Debian's interpreter and grpcio, on the packages as people get them:
# the wheel in $PACKED/python, the npm package in $PACKED/package.
set -euo pipefail
export PACKED=$TEST_TMPDIR/packed
mkdir -p "$PACKED"
version=$(sed -n 's/^ *"version": "\(.*\)",$/\1/p' clients/node/package.json)
SOURCE_DATE_EPOCH=1700000000 /usr/bin/python3 -B deploy/package/clients.py . "$version" "$PACKED"
/usr/bin/python3 -m zipfile -e "$PACKED"/*.whl "$PACKED/python"
tar -xzf "$PACKED"/*.tgz -C "$PACKED"
PYTHONPATH=$PACKED/python:tests/clients:tests/util exec /usr/bin/python3 -B "tests/clients/$1_test.py" -v
