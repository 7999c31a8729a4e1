#!/usr/bin/env bash
# Everything that waits for time to pass waits on the wheel. Finds every other sleep, timed wait,
# poll with a timeout and timer in the programs' code, and holds it against the list below, where
# each has its reason. Fails for one that is not listed, and for a line of the list that is no
# longer needed.
#
# Not looked for: what a gRPC call does until its own deadline, and flock-like calls without a timeout.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

words=(
  'SleepFor' 'sleep_for' 'sleep_until' 'sleep\(' 'nanosleep' 'usleep' # sleeping threads
  '[.>]WaitFor\(' 'wait_for\(' 'wait_until\(' '[a-z]WithTimeout\(' '[a-z]WithDeadline\(' # timed waits
  'timedwait' 'clockwait' 'timedlock' 'try_lock_for' 'try_lock_until'
  '[^_a-z]poll\(' 'ppoll\(' 'epoll_wait' 'epoll_pwait' '[^_a-z.]select\(' 'AsyncNext'
  'grpc::Alarm' 'timerfd' 'timer_create' 'setitimer' '[^_a-z]alarm\(' # other timers
  'steady_timer' 'deadline_timer' 'busy_timeout'
)

# FILE: WORD: why it is not on the wheel.
allowed() {
  sed 's/^ *//; /^$/d' <<'LIST'
    retry/mutex.h: wait_for(: the wait that the wheel's own driver sleeps in
    retry/timer_core.cc: WaitFor: the driver of the wheel: the one thread that sleeps
    registry/store/sqlite/sqlite_database.cc: busy_timeout: SQLite's wait for a file that another process has locked
    agent/discovery_channel.cc: WaitFor: a call of the application that waits, until its own deadline, on its own thread
    registry/failback/intent_journal.cc: SleepFor: Open, on its caller's thread, waits for a file that another process has locked
    registry/server/connection_acceptor.cc: poll(: the thread that accepts, out of descriptors, waits to be stopped or to try again
    registry/server/registry_server.cc: SleepFor: the end of a server, on the thread that ends it: callers hear of it first
    agent/ctl/context.cc: poll(: failbackctl in the foreground looks whether a server listens at its target
    agent/ctl/context.cc: SleepFor: failbackctl in the foreground pauses between two questions
    agent/ctl/subscribe_command.cc: WithTimeout(: failbackctl in the foreground, which has no wheel, says once that nothing has come
    agent/ctl/agent_commands.cc: WithTimeout(: failbackctl in the foreground draws how far a drain has come
    agent/ctl/status_commands.cc: SleepFor: failbackctl in the foreground, with one thread and nothing else to do
    agent/ctl/subscribe_command.cc: SleepFor: the same, before the next attempt of --watch
    gateway/dns/dns_server.cc: steady_timer: the loop of the DNS server's own thread, which waits for its sockets: a tick for queries that wait, a pause before the next accept
    examples/orders_client.cc: wait_for(: an application's own wait for its first list, with a deadline
LIST
}

# Comments, RPC fields that share a word, and polls without a timeout do not wait for time to pass.
found() {
  local pattern; pattern=$(IFS='|'; echo "${words[*]}")
  git grep -nE "$pattern" -- '*.cc' '*.h' ':!tests' |
    grep -vE '^[^:]+:[0-9]+: *(//|\*)|poll\(.*, -1\)' | grep -vE '(set_|[a-z]\.|->)wait_for\(\)|set_wait_for\(|(int|IntentState) wait_for\(\) const'
}

failed=0
list=$(allowed)
hits=$(found || true)
[[ -n $hits ]] || { echo "timers: the search finds nothing, not even the wheel's own wait"; exit 1; }
used=()
while IFS= read -r hit; do
  file=${hit%%:*}
  ok=
  while IFS= read -r line; do
    [[ ${line%%: *} == "$file" ]] || continue
    rest=${line#*: }
    [[ ${hit#*:*:} == *"${rest%%: *}"* ]] && { ok=1; used+=("$line"); }
  done <<<"$list"
  [[ $ok ]] || { echo "timers: $hit: use the HashedWheelTimer, or say in tests/lint/timers.sh why not"; failed=1; }
done <<<"$hits"
while IFS= read -r line; do
  printf '%s\n' "${used[@]}" | grep -qxF -- "$line" || { echo "timers: no longer found: $line"; failed=1; }
done <<<"$list"
((failed == 0)) && echo "timers: $(wc -l <<<"$hits") waits, all known"
exit $failed
