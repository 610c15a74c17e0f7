#!/usr/bin/env bash
# Runs in the guest for self_check.sh: Debian's own RDMA programs between its devices, and whether the bytes took the cable.
set -euo pipefail

# pair SERVER-COMMAND... -- CLIENT-COMMAND...: the client is tried until the server listens.
pair() {
  local server=() process tries=0
  while [[ $1 != -- ]]; do
    server+=("$1")
    shift
  done
  shift
  timeout 60 "${server[@]}" >/tmp/server.log 2>&1 &
  process=$!
  until sleep 1; timeout 60 "$@" >/tmp/client.log 2>&1; do
    tries=$((tries + 1))
    if [[ $tries -ge 10 ]]; then
      kill "$process" || true
      echo "failed: $*"
      cat /tmp/server.log /tmp/client.log
      return 1
    fi
  done
  if ! wait "$process"; then
    echo "failed: ${server[*]}"
    cat /tmp/server.log
    return 1
  fi
}

received() { cat "/sys/class/net/$1/statistics/rx_bytes"; }

pair ibv_rc_pingpong -d rxe0 -g 1 -n 50 -- ibv_rc_pingpong -d rxe0 -g 1 -n 50 127.0.0.1
pair ibv_rc_pingpong -d rxe0 -g 1 -n 50 -- ibv_rc_pingpong -d rxe1 -g 1 -n 50 127.0.0.1
before=$(received veth0)
pair ib_write_bw -d rxe0 -x 1 -s 1048576 -n 20 -F -- ib_write_bw -d rxe1 -x 1 -s 1048576 -n 20 -F 127.0.0.1
grep '^ 1048576' /tmp/client.log
[[ $(($(received veth0) - before)) -gt 20000000 ]] || { echo "the packets did not take the cable"; exit 1; }
pair ib_read_bw -d rxe0 -x 1 -s 1048576 -n 20 -F -- ib_read_bw -d rxe1 -x 1 -s 1048576 -n 20 -F 127.0.0.1
grep '^ 1048576' /tmp/client.log
