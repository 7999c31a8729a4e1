#!/usr/bin/env bash
# A client in Node against the sidecar's Unix socket.
PYTHONPATH=tests/util exec /usr/bin/python3 -B tests/agent/sidecar/node_client_test.py -v
