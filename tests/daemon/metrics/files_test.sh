#!/usr/bin/env bash
# Rules, dashboard and the page for who is paged fit together.
exec /usr/bin/python3 -B tests/daemon/metrics/files_test.py -v
