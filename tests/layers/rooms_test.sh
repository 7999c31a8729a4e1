#!/usr/bin/env bash
exec /usr/bin/python3 -B tests/layers/rooms_test.py -v
