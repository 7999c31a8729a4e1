#!/usr/bin/env bash
# Writes C++ that holds files: `embed.sh FILE… > files.inc`, a list of {name, tag, content}. The tag
# changes with the content. A raw string has a length limit in some compilers, so each file is small.
set -euo pipefail
for file in "$@"; do
  tag=$(sha256sum "$file" | cut -c1-16)
  printf '{"%s", "%s", R"~~~~(%s\n)~~~~"},\n' "$(basename "$file")" "$tag" "$(cat "$file")"
done
