#!/usr/bin/env bash
# From a fresh clone to a running cluster: packages, build, a master and two clients, the Python example, a real trace.
set -euo pipefail

usage() {
  cat <<'HELP'
Usage: ./quickstart.sh [--help]

On Debian 12: installs missing packages (scripts/install_deps.sh), builds the preset release, then starts on 127.0.0.1
  a master        on port 50051
  a client        with 1 GiB of DRAM
  a client        with 256 MiB of DRAM and 512 MiB of (emulated) Ascend NPU memory
runs examples/seed_example.py, which wants port 12345, plays examples/conversation_trace_500.jsonl with mooncake_replay,
prints what happened and how to go on by hand, and stops what it started. The first run builds for a few minutes, the
next one takes under a minute. Needs 3 GiB of free memory, and root or sudo only when packages are missing.

Logs and the replay's numbers (replay.json) are in build/quickstart. Exit code 0 only if every step worked and every
byte that was read was right.
HELP
}

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly repo build="$repo/build/release" logs="$repo/build/quickstart" python=/usr/bin/python3
readonly master=127.0.0.1:50051 ready_seconds=30 stop_seconds=20
readonly dram_tiers='{"tiers":[{"type":"DRAM","capacity":"1GB","priority":10}]}'
readonly npu_tiers='{"tiers":[{"type":"ASCEND_NPU","capacity":"512MB","priority":100,"device_id":0},
 {"type":"DRAM","capacity":"256MB","priority":10}]}'
pids=()   # of our daemons, in the order of their start

die() {
  echo "quickstart: $*" >&2
  exit 1
}

step() {
  printf '\n== %s\n' "$*"
}

# Ends our daemons, clients before the master, and waits for each; one that does not leave in time is killed.
cleanup() {
  local i pid watchdog
  for ((i = ${#pids[@]} - 1; i >= 0; i--)); do
    pid=${pids[i]}
    kill -TERM "$pid" 2>/dev/null || continue
    (timeout "$stop_seconds" tail --pid="$pid" -f /dev/null || kill -KILL "$pid") 2>/dev/null &
    watchdog=$!
    wait "$pid" 2>/dev/null || true
    wait "$watchdog" 2>/dev/null || true
  done
  pids=()
}

# start LOG COMMAND...: starts a daemon and waits for its ready line, which it prints.
start() {
  local log="$logs/$1.log" pipe="$logs/$1.ready" line='' fd
  shift
  rm -f -- "$pipe"
  mkfifo -- "$pipe"
  # In a session of its own: Ctrl-C is for us, and for the replay, which still wants to ask the cluster.
  setsid "$@" >"$pipe" 2>"$log" </dev/null &
  pids+=($!)
  exec {fd}<"$pipe"
  if ! IFS= read -r -t "$ready_seconds" line <&"$fd" || [[ $line != *ready* ]]; then
    tail -n 20 -- "$log" >&2
    die "${1##*/} did not get ready (log: $log)"
  fi
  rm -f -- "$pipe"
  # Its stdout stays open in this shell, or a later line would kill the daemon.
  echo "$line"
}

# The first free TCP port of 127.0.0.1 from $1 up.
free_port() {
  "$python" - "$1" <<'PYTHON'
import socket
import sys

for port in range(int(sys.argv[1]), int(sys.argv[1]) + 200):
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            continue
    print(port)
    break
else:
    sys.exit("quickstart: no free port")
PYTHON
}

build() {
  local log="$logs/build.log" targets=(mooncake_master mooncake_client mooncake_replay mooncake_bench python_package ascendcl acl_rt)
  cmake --preset release >"$log" 2>&1 || { tail -n 30 -- "$log" >&2; die "cmake failed (log: $log)"; }
  if [[ -t 1 ]]; then  # ninja keeps to one line here
    cmake --build --preset release --target "${targets[@]}" || die "the build failed"
  else
    cmake --build --preset release --target "${targets[@]}" >>"$log" 2>&1 || { tail -n 60 -- "$log" >&2; die "the build failed (log: $log)"; }
  fi
  echo "programs in build/release/bin, Python package in build/release/python"
}

emulated() {
  "$repo/scripts/with_npu_emulator.sh" --build "$build" "$@"
}

start_cluster() {
  local first second
  start master "$build/bin/mooncake_master" --rpc_address 127.0.0.1 --rpc_port "${master##*:}" --metrics_port 0
  first=$(free_port 12351)
  start client-dram "$build/bin/mooncake_client" --host 127.0.0.1 --master_server_address "$master" --port 0 --http_port 0 \
    --client_rpc_port "$first" --deployment_mode P2P --metadata_server P2PHANDSHAKE --tiered_backend_config "$dram_tiers"
  second=$(free_port $((first + 1)))
  start client-npu "$repo/scripts/with_npu_emulator.sh" --build "$build" "$build/bin/mooncake_client" --host 127.0.0.1 \
    --master_server_address "$master" --port 0 --http_port 0 --client_rpc_port "$second" --deployment_mode P2P \
    --metadata_server P2PHANDSHAKE --tiered_backend_config "$npu_tiers"
}

python_example() {
  local log="$logs/example.log"
  emulated env PYTHONPATH="$build/python" "$python" "$repo/examples/seed_example.py" 2>"$log" ||
    { tail -n 20 -- "$log" >&2; die "examples/seed_example.py failed (log: $log)"; }
}

go_on() {
  cat <<GO_ON

Go on by hand, from this folder (the cluster above has been stopped; each line in a terminal of its own):
  build/release/bin/mooncake_master --rpc_address 127.0.0.1
  build/release/bin/mooncake_client --host 127.0.0.1 --client_rpc_port 12351 --port 50061 --tiered_backend_config \\
    '$dram_tiers'
  scripts/with_npu_emulator.sh build/release/bin/mooncake_client --host 127.0.0.1 --client_rpc_port 12352 --port 50062 \\
    --tiered_backend_config '{"tiers":[{"type":"ASCEND_NPU","capacity":"512MB","priority":100,"device_id":0}]}'
  build/release/bin/mooncake_replay --trace examples/conversation_trace_500.jsonl --bytes_per_token 512
  scripts/with_npu_emulator.sh env PYTHONPATH=build/release/python $python examples/seed_example.py
Each program explains itself with --help. All numbers: build/quickstart/replay.json; logs: build/quickstart.
GO_ON
}

main() {
  case ${1:-} in
    '') ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; die "unknown argument '$1'" ;;
  esac
  cd "$repo"
  mkdir -p -- "$logs"
  trap cleanup EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP

  step "1/5 packages"
  scripts/install_deps.sh build test
  step "2/5 build"
  build
  step "3/5 cluster: a master and two clients"
  start_cluster
  step "4/5 Python example"
  python_example
  step "5/5 replay of 500 requests"
  local code=0
  "$build/bin/mooncake_replay" --master_server_address "$master" --host 127.0.0.1 --bytes_per_token 512 \
    --trace examples/conversation_trace_500.jsonl --json "$logs/replay.json" || code=$?
  [[ $code -eq 0 ]] || die "the replay failed with exit code $code"
  go_on
  cleanup
  printf '\nquickstart: done in %d s\n' "$SECONDS"
}

main "$@"
