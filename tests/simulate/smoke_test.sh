#!/usr/bin/env bash
# 2,000 stories; and a seed is the same story every time, whatever was played before it.
set -euo pipefail
simulate=tests/simulate/simulate
for seed in 3 17 36; do
  "$simulate" --seed "$seed" >"$TEST_TMPDIR/first"
  "$simulate" --seed "$seed" >"$TEST_TMPDIR/second"
  cmp "$TEST_TMPDIR/first" "$TEST_TMPDIR/second"
done
exec "$simulate" --seeds 2000
