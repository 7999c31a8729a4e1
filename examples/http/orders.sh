#!/usr/bin/env bash
# An instance that is registered while this script runs, with curl. Usage: orders.sh [http://127.0.0.1:7062]
set -euo pipefail
base=${1:-http://127.0.0.1:7062}
instance=$base/v1/services/orders/instances/orders-$$
body='{"address": "127.0.0.1", "port": 8080}'

trap 'curl -sS -X DELETE "$instance"; echo' EXIT
trap exit INT TERM
curl -sS --fail-with-body -X PUT "$instance?ttl=30s" -d "$body"
echo
while sleep 10; do
  # 404: the daemon has restarted. Register again.
  curl -sS --fail -o /dev/null -X POST "$instance/renew" ||
    curl -sS --fail-with-body -X PUT "$instance?ttl=30s" -d "$body" || true
done
