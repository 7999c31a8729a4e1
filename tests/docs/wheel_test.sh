#!/usr/bin/env bash
exec /usr/bin/python3 tests/docs/wheel_test.py
