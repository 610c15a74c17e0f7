#!/usr/bin/env bash
# Runs in the guest: the test programs that need RDMA devices, one after another, with a report of each.
set -euo pipefail

usage() {
  cat <<'HELP'
Usage: tests/rdma_vm/run_suites.sh BUILD REPORTS PROGRAM...

BUILD is the build directory, REPORTS the prefix of the JUnit reports (REPORTS_PROGRAM.xml), PROGRAM names one of
BUILD/tests, or is hetero_cluster: examples/hetero_cluster.sh with the devices rxe1 and rxe0, its other client of the
build MC_ASCEND_OFF_BUILD_DIR if that is set. All run, whatever becomes of one; exit code 0 only if all succeeded.
HELP
}

[[ $# -ge 1 && $1 != -h && $1 != --help ]] || { usage; exit 0; }
[[ $# -ge 3 ]] || { usage >&2; exit 2; }
build=$1
reports=$2
shift 2
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export LD_LIBRARY_PATH="$build/emulator/lib64" MC_BUILD_DIR="$build" MC_TRANSFER_TEST_PROTOCOLS=rdma,npu_rdma,rdma_npu
export ACLEMU_HOSTMEM=secret  # no network device can have it, as on a real host

# run_example REPORT: the store and two clients over rdma.
run_example() {
  local code=0 problem=''
  "$repo/examples/hetero_cluster.sh" --build "$build" --dcu-build "${MC_ASCEND_OFF_BUILD_DIR:-$build}" \
    --store-device rxe1 --client-device rxe0 || code=$?
  [[ $code -eq 0 ]] || problem="<failure message=\"exit code $code\"/>"
  printf '<testsuite name="guest"><testcase classname="guest" name="hetero_cluster">%s</testcase></testsuite>\n' \
    "$problem" >"$1"
  return "$code"
}

failed=()
for program in "$@"; do
  echo "== guest: $program"
  code=0
  if [[ $program == hetero_cluster ]]; then
    run_example "${reports}_$program.xml" || code=$?
  else
    "$build/tests/$program" --gtest_output="xml:${reports}_$program.xml" || code=$?
  fi
  [[ $code -eq 0 ]] || failed+=("$program (exit code $code)")
done
if [[ ${#failed[@]} -gt 0 ]]; then
  printf 'guest: FAILED: %s\n' "${failed[@]}"
  exit 1
fi
