#!/usr/bin/env bash
# Stock programs discover by DNS, in a network of their own: loopback alone, with all ports free, and with a
# resolv.conf that names 127.0.0.1. They are in a process namespace too, so that none outlives the test.
set -euo pipefail
here=tests/gateway/dns
resolv=$(mktemp)
trap 'rm -f "$resolv"' EXIT
echo "nameserver 127.0.0.1" > "$resolv"
((EUID == 0)) && as_root=() || as_root=(--map-root-user)
unshare "${as_root[@]}" --net --mount --pid --fork --kill-child -- bash -c '
  mount --bind "$1" /etc/resolv.conf
  mount -t tmpfs tmpfs /run
  /usr/bin/python3 -B tests/gateway/dns/loopback_up.py
  PYTHONPATH=tests/util exec /usr/bin/python3 -B "$2" -v' -- "$resolv" "$here/$1"
