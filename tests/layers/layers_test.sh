#!/usr/bin/env bash
# What public targets link; the arrows between rooms are rooms_test's.
set -euo pipefail
cd tests/layers
failed=0

# only FILE ALLOWED_REGEX: every line of FILE matches, and there is at least one.
only() {
  [[ -s $1 ]] || { echo "$1 is empty: the query found nothing"; failed=1; }
  if grep -vE "$2" "$1"; then
    echo "^ not allowed in $1; allowed: $2"
    failed=1
  fi
}

# The library needs gRPC (with the OpenSSL beneath it), Protobuf, Abseil and SQLite, nothing else.
only agent_libraries '^@failback_deps//:(grpc\+\+|openssl|protobuf|abseil|sqlite3|bin/protoc|bin/grpc_cpp_plugin)$'
# The timers need Abseil alone.
only retry_libraries '^@failback_deps//:abseil$'
# The library brings neither xDS nor etcd messages along, which a host may have of its own, and nothing of the daemons.
[[ -s agent_dependencies ]] || { echo "agent_dependencies is empty: the query found nothing"; failed=1; }
if grep -E '^//(gateway|daemon|registry/(store|server|etcd):|proto:(failback/)?(xds|etcd))' agent_dependencies; then
  echo "^ not allowed in agent_dependencies"
  failed=1
fi
exit $failed
