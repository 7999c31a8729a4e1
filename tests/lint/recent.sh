#!/usr/bin/env bash
# `recent.sh N`: the .cc files that were changed last, at most N, newest change first: what is not committed, then
# commit by commit. A changed header stands for its own .cc, or for the first that includes it.
set -euo pipefail
limit=$1

declare -A listed=()
while IFS= read -r file; do
  ((${#listed[@]} < limit)) || break
  case $file in
    *.cc) source=$file ;;
    *.h)
      source=${file%.h}.cc
      [[ -e $source ]] || source=$(git grep -lF "#include \"$file\"" -- '*.cc' | sed -n 1p) || source=
      ;;
    *) continue ;;
  esac
  [[ -n $source && -e $source && -z ${listed[$source]:-} ]] || continue
  listed[$source]=1
  echo "$source"
done < <(
  git diff --name-only HEAD
  git log --format= --name-only
)
