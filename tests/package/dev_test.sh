#!/usr/bin/env bash
# ./dev takes paths as the folder of its caller has them, and builds only what a verb needs.
set -euo pipefail
dev=$TEST_SRCDIR/$TEST_WORKSPACE/dev
cd "$TEST_TMPDIR"
mkdir -p checkout/bazel-bin/deploy/install elsewhere bin tree/lib
install -m 755 "$dev" checkout/dev
tar -C tree -cf checkout/bazel-bin/deploy/install/failback.tar lib
# What the verbs run says how it was called. All packages are there.
for script in deploy/package/run tests/package/run tests/compat/run tests/bench/wheel/run tests/simulate/run; do
  install -D -m 755 /dev/stdin "checkout/$script" <<<'#!/bin/sh
echo "$@"'
done
install -m 755 /dev/stdin bin/dpkg-query <<<'#!/bin/sh
echo install ok installed'
install -m 755 /dev/stdin bin/bazel <<<'#!/bin/sh
echo "bazel $*" >>"$TEST_TMPDIR/bazel.log"'
export PATH=$PWD/bin:$PATH
there=$PWD/elsewhere
failed=0

# expect WORDS ARGS...: what `./dev ARGS` hands on, called from another folder.
expect() {
  local words=$1 said; shift
  said=$(cd elsewhere && ../checkout/dev "$@" 2>dev.log) || { said="exit status $?"; cat elsewhere/dev.log; }
  [[ $said == "$words" ]] || { echo "dev $*: '$said' instead of '$words'"; failed=1; }
}

expect "" install prefix
[[ -d elsewhere/prefix/lib && ! -e checkout/prefix ]] || { echo "install: not in the caller's folder"; failed=1; }
expect "dist debs --previous $there/old" chroot debs --previous old
expect "dist --previous=$there/old debs" chroot --previous=old debs
expect "--json $there/lines.json --only x" bench wheel --json lines.json --only x
expect "--json /lines.json" bench wheel --json /lines.json
expect "--old-bin $there/old --new-bin $there/../new" compat --old-bin old --new-bin ../new
expect "--accumulate $there/seeds --seeds 5" simulate --accumulate seeds --seeds 5

# The clients alone are packed without the programs.
rm -f bazel.log
expect "bazel-bin/deploy/install/failback.tar dist clients" package clients
[[ ! -e bazel.log ]] || { echo "package clients: $(<bazel.log)"; failed=1; }
expect "bazel-bin/deploy/install/failback.tar dist clients deb" package clients deb
grep -q "//deploy/install:failback" bazel.log || { echo "package clients deb: the programs are not built"; failed=1; }

# What is missing is named with the purpose that it has, and installed at once.
install -m 755 /dev/stdin bin/dpkg-query <<<'#!/bin/sh
for package; do :; done
case $package in g++ | etcd-server | etcd-client) exit 1 ;; esac
echo install ok installed'
install -m 755 /dev/stdin bin/sudo <<<'#!/bin/sh
exec "$@"'
install -m 755 /dev/stdin bin/apt-get <<<'#!/bin/sh
echo "apt-get $*" >>"$TEST_TMPDIR/apt.log"'
for program in dpkg tee chmod; do install -m 755 /dev/stdin "bin/$program" <<<'#!/bin/sh'; done
install -D -m 755 /dev/stdin checkout/tests/demo/etcd/run <<<'#!/bin/sh'
expect "" demo etcd
for words in "installing with apt to compile the programs (compiler, Bazel, libraries): g++" \
  "installing with apt to run etcd as a store: etcd-server etcd-client"; do
  grep -q "$words\$" elsewhere/dev.log || { echo "demo etcd: no word '$words'"; cat elsewhere/dev.log; failed=1; }
done
grep -q "^apt-get install .* g++$" apt.log && grep -q "^apt-get install .* etcd-server etcd-client$" apt.log ||
  { echo "demo etcd: $(<apt.log)"; failed=1; }
exit $failed
