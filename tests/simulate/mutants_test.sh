#!/usr/bin/env bash
# Each planted bug fits the sources as they are, line by line, and is in a table of docs/testing.md.
set -euo pipefail
failed=0
for patch in tests/simulate/mutants/*.patch; do
  name=$(basename "$patch" .patch)
  patch -p1 --fuzz=0 --dry-run --follow-symlinks --silent <"$patch" ||
    { echo "$patch does not apply: mend it"; failed=1; }
  grep -q "^| \`$name\`" docs/testing.md ||
    { echo "docs/testing.md has no line for $name"; failed=1; }
done
exit "$failed"
