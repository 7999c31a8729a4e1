#!/usr/bin/env bash
# fuzz.sh NAME [LIBFUZZER ARGUMENTS]: builds //tests/fuzz:NAME_fuzz with clang, AddressSanitizer,
# UndefinedBehaviorSanitizer and libFuzzer, and runs it; one minute unless -max_total_time says
# otherwise. The corpus stays in .fuzz/NAME, so that a later run goes on where this one ended.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
name=$1; shift

# Bazel knows what the target is made of, and makes the protobuf code.
target=//tests/fuzz:${name}_fuzz
mapfile -t labels < <(bazel query --noshow_progress "labels(srcs, deps($target))" 2>/dev/null |
  grep -E '^//.*\.cc$')
mapfile -t generated < <(printf '%s\n' "${labels[@]}" | grep '\.pb\.cc$')
bazel build --noshow_progress --ui_event_filters=-info "${generated[@]}" >&2

out=.fuzz/$name
objects=.fuzz/objects
flags=() link=()
if [[ -n ${FUZZ_COUNTED:-} ]]; then  # steps are counted: work/steps.h
  objects=.fuzz/counted
  flags=(-fsanitize-coverage=trace-pc) link=(-Wl,--wrap=__sanitizer_cov_trace_pc)
fi
export flags_text="${flags[*]}"
mkdir -p "$out/corpus" "$objects"
# Objects are made again when their source or any header is newer.
newest_header=$({ git ls-files '*.h'; find -L bazel-bin/proto -name '*.pb.h'; } | xargs ls -t | sed -n 1p)
export newest_header
compile() {
  local source=$1 object=$2
  [[ $object -nt $source && $object -nt $newest_header ]] && return
  clang++ -std=c++17 -O1 -g -w -I. -Ibazel-bin/proto \
    -fno-sanitize-recover=all -fsanitize=fuzzer-no-link,address,undefined $flags_text \
    -c "$source" -o "$object.new.o"
  mv "$object.new.o" "$object"
}
export -f compile
linked=()
commands=()
for label in "${labels[@]}"; do
  path=${label#//}; path=${path/://}
  source=$path
  [[ $path == *.pb.cc ]] && source=bazel-bin/$path
  object=$objects/${path//\//_}.o
  linked+=("$object")
  commands+=("$source" "$object")
done
printf '%s\n' "${commands[@]}" | xargs -P "$(nproc)" -n 2 bash -c 'compile "$0" "$1"'
mapfile -t abseil < <(grep -o '"-labsl[^"]*"' third_party/failback_deps.BUILD | tr -d '"')
clang++ -fsanitize=fuzzer,address,undefined "${link[@]}" "${linked[@]}" -o "$out/${name}_fuzz" \
  -lgrpc++ -lgrpc -lgpr -lprotobuf -lsqlite3 -lyaml -lyaml-cpp -lldns -lgmock -lgtest -lssl -lcrypto "${abseil[@]}" -lpthread
exec "$out/${name}_fuzz" -max_total_time=60 -max_len=4096 -artifact_prefix="$out/" "$@" \
  "$out/corpus"
