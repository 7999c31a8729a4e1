#!/usr/bin/env bash
# The example is built with CMake and with pkg-config against an installed tree that was moved, and
# both programs run against the installed registry.
set -euo pipefail
prefix=$TEST_TMPDIR/moved/prefix
mkdir -p "$prefix"
tar -xf deploy/install/failback.tar -C "$prefix"
cp -L tests/install/{CMakeLists.txt,orders.cc} "$TEST_TMPDIR"
cd "$TEST_TMPDIR"

cmake -S . -B build -DCMAKE_PREFIX_PATH="$prefix" >cmake.log || { cat cmake.log; exit 1; }
cmake --build build >build.log 2>&1 || { cat build.log; exit 1; }

# The same object, linked with what pkg-config says; and its compile flags find the headers.
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
g++ $(pkg-config --cflags failback) -fsyntax-only -x c++ - <<<'#include "agent/discovery_channel.h"'
g++ build/CMakeFiles/orders.dir/orders.cc.o -o orders $(pkg-config --libs failback)

# A socket's path has to be short.
sockets=$(mktemp -d /tmp/fb-XXXXXX)
"$prefix/bin/failback-registry" --listen "unix:$sockets/r.sock" --store memory: >registry.out &
registry=$!
trap 'kill $registry; rm -rf "$sockets"' EXIT
timeout 60 bash -c "until grep -q 'listening on' registry.out; do sleep 0.1; done"
"$prefix/bin/failbackctl" --target "unix:$sockets/r.sock" wait-ready
for program in build/orders ./orders; do
  "$program" "unix:$sockets/r.sock" | tee orders.out
  grep -q '^registered orders-1, pending ' orders.out
done
