#!/usr/bin/env bash
# Against an installed tree that was moved: the example is built with CMake, the C++ of docs/library.md
# with the page's own commands, and both programs run against the installed registry.
set -euo pipefail
page() { python3 -B tests/install/page.py docs/library.md "$1"; }
prefix=$TEST_TMPDIR/moved/prefix
mkdir -p "$prefix"
tar -xf deploy/install/failback.tar -C "$prefix"
mkdir "$TEST_TMPDIR/with-cmake"
cp -L tests/install/orders.cc "$TEST_TMPDIR/with-cmake"
page cmake >"$TEST_TMPDIR/with-cmake/CMakeLists.txt"
page program >"$TEST_TMPDIR/orders.cc"
page commands | sed "s|PREFIX|$prefix|" >"$TEST_TMPDIR/commands.sh"
cd "$TEST_TMPDIR"

cmake -S with-cmake -B build -DCMAKE_PREFIX_PATH="$prefix" >cmake.log || { cat cmake.log; exit 1; }
cmake --build build >build.log 2>&1 || { cat build.log; exit 1; }
bash -euo pipefail commands.sh

# The shared library, which shows namespace failback alone.
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
g++ -o orders-shared build/CMakeFiles/orders.dir/orders.cc.o $(pkg-config --libs failback-shared) -Wl,-rpath,"$prefix/lib"
shown=$(nm -D --defined-only --demangle "$prefix/lib/libfailback.so" | cut -d' ' -f3-)
grep -q '^failback::Agent::Create(' <<<"$shown"
if grep -vE '\bfailback::|^descriptor_table_failback_' <<<"$shown"; then echo "is shown by libfailback.so"; exit 1; fi
# The static one defines only that too, and etcd's messages.
defined=$(nm --defined-only --extern-only --demangle "$prefix/lib/libfailback.a" 2>/dev/null | sed -n 's/^[0-9a-f]* [TDBR] //p')
if grep -vE '\bfailback::|^(descriptor_table|TableStruct)_|\b(etcdserverpb|mvccpb)::' <<<"$defined"; then
  echo "is defined by libfailback.a"
  exit 1
fi
# Of these a process has one copy, the system's.
needed=$(readelf -d "$prefix/lib/libfailback.so" | grep NEEDED)
for library in grpc++ protobuf absl_time absl_status; do
  grep -q "\[lib$library\.so" <<<"$needed" || { echo "libfailback.so does not load lib$library"; exit 1; }
done
# What the page calls the API is there.
headers=$(cd "$OLDPWD" && sed -n 's/^| `\/\/:[a-z]*` | //p' docs/library.md | grep -o '[a-z_/]*\.h')
(($(wc -l <<<"$headers") > 10))
for header in $headers; do [[ -e $prefix/include/failback/$header ]] || { echo "$header is not installed"; exit 1; }; done

# One version, of the programs and of what builds against the library.
version=$("$prefix/bin/failbackctl" --version | cut -d' ' -f2)
[[ $version == "$(pkg-config --modversion failback)" ]]
finds() {
  mkdir -p "find-$1"
  printf 'cmake_minimum_required(VERSION 3.18)\nproject(find NONE)\nfind_package(failback %s REQUIRED)\n' "$1" \
    >"find-$1/CMakeLists.txt"
  cmake -S "find-$1" -B "find-$1" -DCMAKE_PREFIX_PATH="$prefix" &>find.log
}
finds "$version" && finds "${version%.*}" || { cat find.log; exit 1; }
for other in 99.0 0.99; do
  if finds "$other"; then echo "$version is taken for $other"; exit 1; fi
done

# A socket's path has to be short.
sockets=$(mktemp -d /tmp/fb-XXXXXX)
"$prefix/bin/failback-registry" --listen "unix:$sockets/r.sock" --store memory: >registry.out &
registry=$!
trap 'kill $registry; rm -rf "$sockets"' EXIT
timeout 60 bash -c "until grep -q 'listening on' registry.out; do sleep 0.1; done"
"$prefix/bin/failbackctl" --target "unix:$sockets/r.sock" wait-ready
for program in build/orders ./orders ./orders-shared; do
  "$program" "unix:$sockets/r.sock" | tee orders.out
  grep -q '^registered orders-1, pending ' orders.out
  # The page's client has waited for its channel.
  [[ $program != ./orders ]] || grep -q ', channel OK$' orders.out
done
