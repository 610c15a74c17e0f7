#!/usr/bin/env bash
# One store for clients of two kinds: one with its values on an Ascend NPU, and one that knows nothing of NPUs.
set -euo pipefail

usage() {
  cat <<'HELP'
Usage: examples/hetero_cluster.sh [--build DIR] [--dcu-build DIR] [--store-device NAME --client-device NAME] [--help]

Starts on 127.0.0.1 a master and a store with DRAM only (protocol rdma), then lets two clients exchange values through it:
  npu  puts from and gets into the memory of an (emulated) Ascend NPU: protocol ascend_rdma
  dcu  uses host memory: protocol rdma, of a build without any Ascend code
First npu puts and dcu gets, then dcu puts and npu gets, then both do both at once. Without RDMA devices tcp stands in for
rdma, and nothing takes the way over the host's shared memory, so that the bytes travel as between hosts.

  --build DIR      build of master, store and the NPU client (default: build/release); its Python package is used
  --dcu-build DIR  build of the other client, USE_ASCEND_*=OFF (default: build/ascend-off if its Python package is there,
                   else the same build; the output says which it is)
  --store-device NAME, --client-device NAME
                   the RDMA devices of the store and of both clients (default: all there are); then nothing stands in for
                   them, and at the end their packets are counted

Logs are in DIR/hetero_cluster. Exit code 0 only if every byte was right and the NPU's bytes went over the bridge.
HELP
}

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly repo python=/usr/bin/python3 ready_seconds=100 stop_seconds=20
readonly large_bytes=$((21 << 20)) transfers_of_each=8  # values that travel by themselves, and how often
readonly tiers='{"tiers":[{"type":"DRAM","capacity":"256MB","priority":10}]}'
build="$repo/build/release"
dcu_build=''
store_device=''
client_device=''
pids=()  # of our daemons, in the order of their start

die() {
  echo "hetero_cluster: $*" >&2
  exit 1
}

while [[ $# -gt 0 ]]; do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --build | --dcu-build)
      [[ $# -ge 2 && -d $2 ]] || die "$1 wants a build directory"
      if [[ $1 == --build ]]; then build=$(cd "$2" && pwd); else dcu_build=$(cd "$2" && pwd); fi
      shift 2
      ;;
    --store-device | --client-device)
      [[ $# -ge 2 && -d /sys/class/infiniband/$2 ]] || die "$1 wants an RDMA device of this host"
      if [[ $1 == --store-device ]]; then store_device=$2; else client_device=$2; fi
      shift 2
      ;;
    *) echo "hetero_cluster: unknown argument $1" >&2; usage >&2; exit 2 ;;
  esac
done
[[ -d "$build/python/mooncake" ]] || die "no Python package in $build (build the target python_package)"
[[ ${store_device:+given} == "${client_device:+given}" ]] || die "--store-device and --client-device go together"
has_package() { compgen -G "$1/python/mooncake/store*.so" >/dev/null; }
if [[ -z $dcu_build ]]; then
  dcu_build="$repo/build/ascend-off"
  has_package "$dcu_build" || dcu_build=$build
fi
has_package "$dcu_build" || die "no Python package in $dcu_build (build the target python_package)"
readonly logs="$build/hetero_cluster"
mkdir -p "$logs"
export MC_NO_SAME_HOST=1
[[ -z $store_device ]] || export MC_STRICT_PROTOCOL=1

# Ends our daemons, the store before the master, and waits for each; one that does not leave in time is killed.
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
trap cleanup EXIT

# start LOG COMMAND...: starts a daemon and waits for its ready line, which it prints.
start() {
  local log="$logs/$1.log" pipe="$logs/$1.ready" line='' fd
  shift
  rm -f -- "$pipe"
  mkfifo -- "$pipe"
  "$@" >"$pipe" 2>"$log" </dev/null &
  pids+=($!)
  exec {fd}<"$pipe"
  if ! IFS= read -r -t "$ready_seconds" line <&"$fd" || [[ $line != *ready* ]]; then
    tail -n 20 -- "$log" >&2
    die "${1##*/} did not get ready (log: $log)"
  fi
  rm -f -- "$pipe"
  echo "$line"
}

free_port() {
  "$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

npu() {
  "$repo/scripts/with_npu_emulator.sh" --build "$build" env PYTHONPATH="$build/python" MC_TE_FILTERS="$client_device" "$python" \
    "$repo/examples/hetero_client.py" npu "$master" "$@" 2>>"$logs/npu.log" || { tail -n 5 "$logs/npu.log" >&2; return 1; }
}

# Without the emulator's libraries on its path.
dcu() {
  env -u LD_LIBRARY_PATH -u MC_ACL_LIBRARY PYTHONPATH="$dcu_build/python" MC_TE_FILTERS="$client_device" "$python" \
    "$repo/examples/hetero_client.py" dcu "$master" "$@" 2>>"$logs/dcu.log" || { tail -n 5 "$logs/dcu.log" >&2; return 1; }
}

# The packets that the devices in use have sent.
packets_sent() {
  local device counter packets=0
  for device in $(printf '%s\n' "$store_device" "$client_device" | sort -u); do
    for counter in hw_counters/sent_pkts counters/port_xmit_packets; do
      [[ -r /sys/class/infiniband/$device/ports/1/$counter ]] || continue
      packets=$((packets + $(<"/sys/class/infiniband/$device/ports/1/$counter")))
      break
    done
  done
  echo "$packets"
}

rm -f -- "$logs"/*.log
if grep -q aclrtMemcpyAsync "$dcu_build/python/mooncake/libmooncake_core.so"; then
  echo "dcu client: $dcu_build, a build with Ascend code that it does not use"
else
  echo "dcu client: $dcu_build, no Ascend code"
fi
packets_before=$(packets_sent)
master=127.0.0.1:$(free_port)
readonly master
start master "$build/bin/mooncake_master" --rpc_address 127.0.0.1 --rpc_port "${master##*:}" --metrics_port 0
start store env MC_TE_FILTERS="$store_device" "$build/bin/mooncake_client" --host 127.0.0.1 --master_server_address "$master" --port 0 --http_port 0 \
  --client_rpc_port "$(free_port)" --deployment_mode P2P --metadata_server P2PHANDSHAKE --protocol rdma \
  --tiered_backend_config "$tiers"

npu put=from-npu || die "the NPU client failed"
dcu get=from-npu put=from-dcu || die "the DCU client failed"
npu get=from-dcu || die "the NPU client failed"
npu put=both-npu get=both-dcu &
npu_pid=$!
dcu put=both-dcu get=both-npu || die "the DCU client failed while both were at work"
wait "$npu_pid" || die "the NPU client failed while both were at work"

grep -q 'NPU device 0: .* slots of' "$logs/npu.log" || die "the NPU client's bytes did not go over the bridge (log: $logs/npu.log)"
if grep -q 'NPU device' "$logs/dcu.log"; then die "the DCU client used an NPU"; fi
if [[ -n $store_device ]]; then
  packets=$(($(packets_sent) - packets_before))
  # None holds more than 4096 B.
  [[ $packets -ge $((transfers_of_each * large_bytes / 4096)) ]] ||
    die "only $packets packets on $store_device and $client_device: the bytes did not go over them"
  echo "rdma: $packets packets between $store_device and $client_device"
fi
echo "hetero_cluster: all bytes right"
