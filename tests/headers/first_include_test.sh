#!/usr/bin/env bash
# A source includes its own header before anything else: if that one needs more than it includes, the source does
# not compile.
set -euo pipefail
checked=0 wrong=0
while read -r header; do
  source=${header%.h}.cc
  [[ -e $source ]] || continue
  checked=$((checked + 1))
  first=$(grep -m1 '^#include' "$source")
  if [[ $first != "#include \"${header#./}\"" ]]; then
    echo "$source: includes ${first#\#include } before its own header"
    wrong=1
  fi
done < <(find . -name '*.h' -not -path './external/*' | sort)
echo "$checked headers"
((checked > 150 && !wrong))
