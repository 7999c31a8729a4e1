#!/usr/bin/env bash
# Runs the commands of docs/security.md in their order, and compares what the last one says.
set -euo pipefail
root=$PWD
PATH=$root/registry:$root/agent:$PATH
work=$(mktemp -d)
cd "$work"
trap 'jobs -p | xargs -r kill; rm -rf "$work"' EXIT
# Keeps the port for this test until it ends.
coproc HOLDER {
  PYTHONPATH=$root/tests/util exec python3 -Bc \
    'import ports, sys; print(ports.reserved_port(), flush=True); sys.stdin.read()'
}
read -r port <&"${HOLDER[0]}"

failback-registry() { command failback-registry "$@" > ready; }
failbackctl() {
  for ((i = 0; i < 600; ++i)); do
    if grep -q listening ready 2>/dev/null; then
      command failbackctl "$@"
      return
    fi
    sleep 0.05
  done
  echo "the registry did not start" >&2
  return 9
}
sed -n '/^```sh$/,/^```$/p' "$root/docs/security.md" | grep -v '^```' |
  sed "s/127.0.0.1:7070/127.0.0.1:$port/" > commands.sh
[[ -s commands.sh ]] || { echo "no commands found"; exit 1; }
set -x
source ./commands.sh 2> stderr || { status=$?; cat stderr; exit $status; }
set +x
said=$(grep '^failbackctl: ' stderr)
expected=$(grep '^failbackctl: register: PERMISSION_DENIED' "$root/docs/security.md")
[[ $said == "$expected" ]] || { echo "said:     $said"; echo "expected: $expected"; exit 1; }
[[ $(stat -c %s tokens.yaml) -gt 80 ]]
failback-registry --validate-config --store memory: --known-tokens-file tokens.yaml
