#!/usr/bin/env bash
PYTHONDONTWRITEBYTECODE=1 exec /usr/bin/python3 tests/package/debs_test.py
