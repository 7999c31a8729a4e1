#!/usr/bin/env bash
# pack.sh PLAN PC_IN CMAKE_CONFIG CMAKE_VERSION OUT.tar LINK_FLAGS: makes the tree that install.bzl plans.
set -euo pipefail
plan=$1 pc=$2 cmake=$3 cmake_version=$4 out=$5 flags=$6
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
sed "s|@LINK_FLAGS@|$flags|; s|@VERSION@|$version|" "$pc" >"$tree/lib/pkgconfig/failback.pc"
sed "s|@VERSION@|$version|" "$cmake_version" >"$tree/lib/cmake/failback/failbackConfigVersion.cmake"
sed "s|@LINK_FLAGS@|${flags// /;}|" "$cmake" >"$tree/lib/cmake/failback/failbackConfig.cmake"
tar -C "$tree" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf "$out" bin include lib
