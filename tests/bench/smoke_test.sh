#!/usr/bin/env bash
# smoke_test.sh BENCHMARK WORKLOAD... : a quick run ends well, shows a table, and writes JSON lines
# with every key for each workload. Asks nothing of the speed.
set -euo pipefail
benchmark=$1
shift
json=$TEST_TMPDIR/lines.json
"$benchmark" --quick --revision smoke --json "$json" >"$TEST_TMPDIR/table" 2>"$TEST_TMPDIR/log" || {
  cat "$TEST_TMPDIR/table" "$TEST_TMPDIR/log"
  exit 1
}
keys='"workload":"[^"]+","subject":"[^"]+","metric":"[^"]+","value":-?[0-9.e+-]+,"unit":"[^"]*"'
failed=0
if grep -vE "^\{$keys,\"rounds\":[1-9].*,\"machine\":\".+\",\"date\":\".+\",\"compiler\":\".+\",\"revision\":\"smoke\"" "$json"; then
  echo "^ lines without all keys"
  failed=1
fi
for workload in "$@"; do
  grep -q "^{\"workload\":\"$workload\"," "$json" || { echo "no line of $workload"; failed=1; }
  grep -q "^$workload$" "$TEST_TMPDIR/table" || { echo "$workload is not in the table"; failed=1; }
done
exit $failed
