#!/usr/bin/env bash
exec /usr/bin/python3 -B tests/docs/pages_test.py
