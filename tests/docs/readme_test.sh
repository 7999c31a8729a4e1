#!/usr/bin/env bash
exec /usr/bin/python3 tests/docs/readme_test.py
