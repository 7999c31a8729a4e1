#!/usr/bin/env bash
# Each planted bug fits the sources as they are, line by line, is played by its name, and is in a table
# of docs/testing.md; and all of them fit together, as ./dev simulate --mutants plants them.
set -euo pipefail
failed=0
cp -RL registry gateway "$TEST_TMPDIR"
chmod -R u+w "$TEST_TMPDIR"/{registry,gateway}
for patch in tests/simulate/mutants/*.patch; do
  name=$(basename "$patch" .patch)
  patch -p1 --fuzz=0 --dry-run --follow-symlinks --silent <"$patch" ||
    { echo "$patch does not apply: mend it"; failed=1; }
  patch -p1 --silent -d "$TEST_TMPDIR" <"$patch" ||
    { echo "$patch does not apply after those before it: mend one of them"; failed=1; }
  grep -q "Planted(\"$name\")" "$patch" || { echo "$patch does not ask Planted(\"$name\")"; failed=1; }
  grep -q "^| \`$name\`" docs/testing.md ||
    { echo "docs/testing.md has no line for $name"; failed=1; }
done
exit "$failed"
