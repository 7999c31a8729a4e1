#!/usr/bin/env bash
# However `contained` ends, the daemons of what it runs end, and its folder is removed where it can.
set -euo pipefail
((EUID == 0)) || exec unshare --user --map-root-user "$0" "$@"
cd "$TEST_TMPDIR"
contained=$TEST_SRCDIR/$TEST_WORKSPACE/tests/package/contained

# It passes on what it runs: words, standard input, exit status.
status=0
said=$("$contained" bash -c 'read -r line; echo "$line $1"; exit 7' bash words <<<"input") || status=$?
[[ $status == 7 && $said == "input words" ]] || { echo "exit status $status: $said"; exit 1; }

for signal in TERM INT KILL; do
  touch "lock.$signal"
  # A daemon without a parent that waits holds the lock. A shell's background has no SIGINT, unlike a terminal's foreground.
  setsid env --default-signal=INT "$contained" bash -c '
    setsid flock "lock.$1" bash -c "echo \"$SCRATCH\" >scratch.$1; sleep 600" &
    sleep 600' bash "$signal" &
  outer=$!
  timeout 60 bash -c "until [[ -s scratch.$signal ]]; do sleep 0.1; done"
  if flock --nonblock "lock.$signal" true; then echo "the daemon does not run"; exit 1; fi
  kill -"$signal" "$outer"
  flock --timeout 60 "lock.$signal" true || { echo "the daemon outlives SIG$signal"; exit 1; }
  wait "$outer" && exit 1
  scratch=$(<"scratch.$signal")
  if [[ $signal == KILL ]]; then
    rm -rf "$scratch"
  elif [[ -e $scratch ]]; then
    echo "$scratch outlives SIG$signal"
    exit 1
  fi
done
