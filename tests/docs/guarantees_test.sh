#!/usr/bin/env bash
exec /usr/bin/python3 tests/docs/guarantees_test.py
