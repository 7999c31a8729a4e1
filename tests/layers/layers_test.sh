#!/usr/bin/env bash
# The arrows of the architecture: agent -> registry -> retry -> Abseil, and what //:agent links.
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
# The timers know nothing of services.
only retry_dependencies '^(//:retry|//retry:.*|@failback_deps//:abseil)$'
# The library brings neither xDS nor etcd messages along, which a host may have of its own.
if grep -E '^//(xds:|registry/etcd:|proto:(failback/)?(xds|etcd))' agent_dependencies; then
  echo "^ not allowed in agent_dependencies"
  failed=1
fi
only xds_dependencies '^(//xds:.*|//registry(/[a-z]+)*:.*|//retry:.*|//proto:.*)$'
# Nothing depends on the agent, nor on tests.
only registry_dependencies '^(//:registry|//registry(/[a-z]+)*:.*|//retry:.*|//proto:.*)$'
exit $failed
