#!/usr/bin/env bash
# pack.sh PLAN PC_IN CMAKE_CONFIG CMAKE_VERSION EXPORTED OUT.tar LINK_FLAGS: makes the tree that install.bzl plans.
set -euo pipefail
plan=$1 pc=$2 cmake=$3 cmake_version=$4 exported=$5 out=$6 flags=$7
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree"/{bin,include/failback,lib/pkgconfig,lib/cmake/failback}

# One archive of all. Their objects may have the same names, so they are added, not extracted.
{
  echo "create $tree/lib/libfailback.a"
  while read -r kind file place; do
    case $kind in
      archive) echo "addlib $file" ;;
      program) install -m 755 "$file" "$tree/bin/" >&2 ;;
      header) install -D -m 644 "$file" "$tree/include/failback/$place" >&2 ;;
    esac
  done <"$plan"
  echo save
  echo end
} | ar -M
version=$(sed -n 's/.*kVersion\[\] = "\(.*\)";/\1/p' "$tree/include/failback/registry/base/version.h")
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || { echo "registry/base/version.h: '$version' is not a version" >&2; exit 1; }
# Before 1.0 the middle number says which API, and so which ABI, it is.
case $version in
  0.*) api=${version%.*} ;;
  *) api=${version%%.*} ;;
esac

# The same objects, shared: of the rest of the system it shows nothing.
# shellcheck disable=SC2086  # flags are several
g++ -shared -o "$tree/lib/libfailback.so.$version" -Wl,-soname,"libfailback.so.$api" -Wl,--version-script="$exported" \
  -Wl,-z,relro,-z,now -Wl,--as-needed -Wl,--whole-archive "$tree/lib/libfailback.a" -Wl,--no-whole-archive $flags
ln -s "libfailback.so.$version" "$tree/lib/libfailback.so.$api"
ln -s "libfailback.so.$api" "$tree/lib/libfailback.so"

fill() { sed "s|@LIBRARY@|${1:-}|; s|@LINK_FLAGS@|$flags|; s|@VERSION@|$version|; s|@API@|$api|"; }
fill "-l:libfailback.a" <"$pc" >"$tree/lib/pkgconfig/failback.pc"
fill "-lfailback" <"$pc" | sed 's|^Name: .*|&-shared|' >"$tree/lib/pkgconfig/failback-shared.pc"
fill <"$cmake_version" >"$tree/lib/cmake/failback/failbackConfigVersion.cmake"
flags=${flags// /;}
fill <"$cmake" >"$tree/lib/cmake/failback/failbackConfig.cmake"
tar -C "$tree" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX -cf "$out" bin include lib
