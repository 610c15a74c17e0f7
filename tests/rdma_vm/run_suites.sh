#!/usr/bin/env bash
# Runs in the guest: the test programs that need RDMA devices, one after another, with a report of each.
set -euo pipefail

usage() {
  cat <<'HELP'
Usage: tests/rdma_vm/run_suites.sh BUILD REPORTS PROGRAM...

BUILD is the build directory, REPORTS the prefix of the JUnit reports (REPORTS_PROGRAM.xml), PROGRAM names one of
BUILD/tests. All run, whatever becomes of one; exit code 0 only if all succeeded.
HELP
}

[[ $# -ge 1 && $1 != -h && $1 != --help ]] || { usage; exit 0; }
[[ $# -ge 3 ]] || { usage >&2; exit 2; }
build=$1
reports=$2
shift 2
export LD_LIBRARY_PATH="$build/emulator/lib64" MC_BUILD_DIR="$build" MC_TRANSFER_TEST_PROTOCOLS=rdma,npu_rdma,rdma_npu
failed=()
for program in "$@"; do
  echo "== guest: $program"
  code=0
  "$build/tests/$program" --gtest_output="xml:${reports}_$program.xml" || code=$?
  [[ $code -eq 0 ]] || failed+=("$program (exit code $code)")
done
if [[ ${#failed[@]} -gt 0 ]]; then
  printf 'guest: FAILED: %s\n' "${failed[@]}"
  exit 1
fi
