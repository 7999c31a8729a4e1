#!/usr/bin/env bash
# A real Prometheus scrapes both daemons.
PYTHONPATH=tests/util exec /usr/bin/python3 -B tests/daemon/metrics/prometheus_test.py -v
