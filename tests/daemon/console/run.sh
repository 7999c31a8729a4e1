#!/usr/bin/env bash
# Runs a test of the console with Node. Chromium keeps a socket in its temporary folder, whose path has to
# be shorter than Bazel's are.
TMPDIR=$(mktemp -d /tmp/fb-XXXXXX)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
node "$1"
