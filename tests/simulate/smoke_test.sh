#!/usr/bin/env bash
# 2,000 stories; and a seed is the same story every time, whatever was played before it: told line by
# line, and, by the digest of all messages, in a process of its own and in one that plays many.
set -euo pipefail
simulate=tests/simulate/simulate
for seed in 3 17 36; do
  "$simulate" --seed "$seed" >"$TEST_TMPDIR/first"
  "$simulate" --seed "$seed" >"$TEST_TMPDIR/second"
  cmp "$TEST_TMPDIR/first" "$TEST_TMPDIR/second"
done
digest() { "$simulate" --seeds 150 "$@" | sed -n 's/.*; digest //p'; }
alone=$(digest --alone --jobs 1)
[[ -n $alone && $alone == "$(digest --jobs 3)" ]] ||
  { echo "the digest of stories that are played alone is $alone, and else it is another"; exit 1; }
exec "$simulate" --seeds 2000
