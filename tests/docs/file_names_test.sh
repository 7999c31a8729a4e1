#!/usr/bin/env bash
exec /usr/bin/python3 tests/docs/file_names_test.py
