#!/usr/bin/env bash
# Which files recent.sh takes for the ones that were changed last, in a repository made for it.
set -euo pipefail
recent=$PWD/tests/lint/recent.sh
cd "$(mktemp -d -p "${TEST_TMPDIR:-/tmp}")"
export HOME=$PWD GIT_CONFIG_NOSYSTEM=1
git init -q .
git config user.name lint
git config user.email lint@localhost

commit() { git add -A && git commit -q -m "$1"; }
# is LIMIT EXPECTED...
is() {
  local limit=$1 got; shift
  got=$("$recent" "$limit" | tr '\n' ' ')
  [[ $got == "$* " ]] || { echo "recent.sh $limit: got '$got', expected '$* '"; exit 1; }
}

mkdir a b
echo '1' >a/first.cc
echo '#include "a/alone.h"' >a/user.cc
commit first
echo '1' >b/second.cc
echo '1' >b/second.h
echo '1' >b/README.md
commit second
is 9 b/second.cc a/first.cc a/user.cc
is 2 b/second.cc a/first.cc

# A header counts as its own .cc, else as one that includes it; one that nothing includes as none.
echo '1' >a/alone.h
echo '1' >a/unused.h
commit third
is 1 a/user.cc
echo '2' >b/second.h
commit fourth
is 2 b/second.cc a/user.cc

# What was moved counts at its new place, and what was deleted not at all.
git mv a/user.cc b/user.cc
git rm -q b/second.cc
commit fifth
is 9 b/user.cc a/first.cc

# What is not committed comes first.
echo '2' >a/first.cc
is 1 a/first.cc
