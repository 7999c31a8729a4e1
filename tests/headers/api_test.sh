#!/usr/bin/env bash
# The headers that docs/library.md calls the API are those of the public targets.
set -euo pipefail
diff <(sed 's|^//||; s|:|/|; s|^/||' tests/headers/api | sort) \
  <(sed -n 's/^| `\/\/:[a-z]*` | //p' docs/library.md | grep -o '[a-z_/]*\.h' | sort) >&2 ||
  { echo "< a public target gives it; > docs/library.md names it" >&2; exit 1; }
