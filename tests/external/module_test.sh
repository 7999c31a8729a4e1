#!/usr/bin/env bash
exec /usr/bin/python3 -B tests/external/module_test.py
