#!/usr/bin/env bash
# Checks run_in_guest.sh itself: exit codes, output, folders, devices, and the verbs of the guest with Debian's tools.
set -euo pipefail

usage() {
  cat <<'HELP'
Usage: tests/rdma_vm/self_check.sh [--kernel K]

Starts some 15 guests, 2 to 4 minutes. Needs the packages of scripts/install_deps.sh rdma.
  --kernel K   as for run_in_guest.sh
  --help       this text
HELP
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here
kernel=auto
passed=0
failed=0

guest() { "$here/run_in_guest.sh" --quiet --kernel "$kernel" "$@"; }

# expect WHAT GOT WANTED
expect() {
  if [[ $2 == "$3" ]]; then
    passed=$((passed + 1))
    echo "ok      $1"
  else
    failed=$((failed + 1))
    echo "FAILED  $1: got '$2', not '$3'"
  fi
}

# expect_code WHAT WANTED run_in_guest's arguments...
expect_code() {
  local what=$1 wanted=$2 code=0
  shift 2
  guest "$@" >/dev/null 2>&1 || code=$?
  expect "$what" "$code" "$wanted"
}

check_exit_codes() {
  expect_code "exit code" 7 -t 90 -- sh -c 'exit 7'
  expect_code "death by a signal" 137 -t 90 -- sh -c 'kill -9 $$'
  expect_code "no such program" 127 -t 90 -- /no/such/program
  expect_code "guest that takes too long" 124 -t 15 -- sleep 600
  expect_code "guest that dies" 125 -t 90 -- sh -c 'echo c >/proc/sysrq-trigger; sleep 60'
  expect_code "unknown option" 126 --nonsense -- true
  expect_code "folder that does not exist" 126 -w /no/such/folder -- true
}

check_input_and_output() {
  local output
  # shellcheck disable=SC2016  # expanded in the guest
  output=$(guest -t 90 -e "A=b c'd" -- sh -c 'echo "$A|$1|$2|$PWD"' x 'y  z' '$Q"')
  expect "quoting, environment, working directory" "$output" "b c'd|y  z|\$Q\"|$PWD"
  output=$(guest -t 90 -- seq 1 200000 | md5sum)
  expect "1.3 MB of output is whole" "$output" "$(seq 1 200000 | md5sum)"
  echo in >"$folder/a"
  guest -t 90 -w "$folder" -- sh -c "cat $folder/a >$folder/b; echo lost >$here/lost" >/dev/null
  expect "a writable folder" "$(cat "$folder/b" 2>/dev/null)" in
  expect "nothing else is written" "$(ls "$here/lost" 2>/dev/null || true)" ""
}

check_two_guests_at_once() {
  local code first second
  { code=0; guest -t 120 -- sh -c 'sleep 2; exit 11' >/dev/null || code=$?; echo "$code" >"$folder/first"; } &
  first=$!
  { code=0; guest -t 120 -- sh -c 'sleep 2; exit 12' >/dev/null || code=$?; echo "$code" >"$folder/second"; } &
  second=$!
  wait "$first" "$second"
  expect "two guests at once" "$(cat "$folder/first" "$folder/second" | tr '\n' ' ')" "11 12 "
}

check_devices() {
  local output code=0
  # shellcheck disable=SC2016  # expanded in the guest
  output=$(guest -t 90 -n 4 -- sh -c 'ibv_devinfo | grep -c PORT_ACTIVE; echo $RXE_DEVS $RXE_IPS' | tr '\n' ' ')
  expect "4 devices" "$output" "4 rxe0 rxe1 rxe2 rxe3 10.77.0.1 10.77.0.2 10.77.1.1 10.77.1.2 "
  output=$(guest -t 300 -- "$here/self_check_verbs.sh" 2>&1) || code=$?
  echo "$output"
  expect "ping-pong on one device and over the cable, writes and reads over the cable" "$code" 0
}

main() {
  while [[ $# -gt 0 ]]; do
    case $1 in
      -h | --help) usage; exit 0 ;;
      --kernel)
        [[ $# -ge 2 ]] || { usage >&2; exit 2; }
        kernel=$2
        shift 2
        ;;
      *)
        usage >&2
        echo "self_check: unknown argument '$1'" >&2
        exit 2
        ;;
    esac
  done
  folder=$(mktemp -d)
  trap 'rm -rf -- "$folder"' EXIT
  check_exit_codes
  check_input_and_output
  check_two_guests_at_once
  check_devices
  echo "$passed passed, $failed failed"
  [[ $failed -eq 0 ]]
}

main "$@"
