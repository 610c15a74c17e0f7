#!/usr/bin/env bash
# Sets the machine up, builds the store and runs its tests. The last lines are ctest's and pytest's own summaries.
set -euo pipefail

usage() {
  cat <<'HELP'
Usage: ./run_tests.sh [--ci] [--full] [--mutations]

Without options: installs missing packages (scripts/install_deps.sh), builds the presets release and asan, runs ctest in
both (address and undefined-behaviour sanitizers with leak detection in asan), pytest against build/release/python, and
the RDMA suites in a virtual machine with Soft-RoCE devices (tests/rdma_vm), which is left out, with the reason, where
QEMU or the machine's kernel cannot be had. Meant to stay under 35 minutes on 2 cores (--ci: 75).

Options, which combine:
  --ci         also: clang-format and clang-tidy, the threaded suites under the thread sanitizer, the build with every
               USE_ASCEND_* option OFF and its tests, the RDMA suites with the address sanitizer. A skipped or disabled
               test is a failure here, and so is a virtual machine that cannot be had.
  --full       also: both commands of the README in a freshly made minimal Debian 12 (scripts/fresh_check.sh; needs root),
               the self-check of tests/rdma_vm, 10 minutes of transfers among processes that are killed and started, and
               10 minutes of transfers of NPU memory with failing copies, lost devices and killed peers
  --mutations  break the code in one line at a time and show that a test notices (tests/mutations).
               Alone it runs only this; with other options it is added to them.
  --help       this text

Logs are in build/logs. Exit code 0 only if every stage passed and every runner ran at least one test.
To run less, use the build directories by hand: see CONTRIBUTING.md.
HELP
}

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly repo logs="$repo/build/logs" python=/usr/bin/python3
readonly threaded_suites='^(rpc_test|device_test|device_acl_test|tiered_cache_test|client_test|coordination_test|master_test|transfer_engine_test|transfer_ascend_test|transfer_ascend_rdma_test|transfer_local_test|transfer_metadata_test|transfer_rdma_test|transfer_shm_test|transfer_tcp_test|capi_test|acl_emulator_test|acl_emulator_modes_test|acl_shared_test)$'
readonly guest_suites=(rdma_device_test transfer_contract_test hetero_cluster)  # what runs in the virtual machine
jobs=$(nproc)
skip_rule=()   # --no-skips with --ci
off_build=()   # names the build without Ascend code, which --ci makes first
stages=()      # table rows
failed=()      # names

# stage NAME live|quiet COMMAND...: runs a command with its output in build/logs (and on the terminal when live).
# A failure is noted and returned, and the run goes on with what does not depend on it.
stage() {
  local name=$1 mode=$2 log="$logs/${1// /_}.log" start=$SECONDS verdict=ok
  shift 2
  echo "== $name"
  if [[ $mode == live ]]; then
    "$@" </dev/null 2>&1 | tee "$log" || verdict=FAILED
  elif ! "$@" </dev/null >"$log" 2>&1; then
    verdict=FAILED
    echo "   ... end of $log:"
    tail -n 60 "$log"
  fi
  stages+=("$(printf '%-20s %-7s %5d s' "$name" "$verdict" $((SECONDS - start)))")
  if [[ $verdict != ok ]]; then
    failed+=("$name")
    return 1
  fi
}

not_run() {
  stages+=("$(printf '%-20s %-7s' "$1" "not run")")
  failed+=("$1")
}

build() {
  cmake --preset "$1" && cmake --build --preset "$1" -j "$jobs"
}

# run_ctest PRESET [ctest option...]
run_ctest() {
  local preset=$1 report="$logs/ctest_$1.xml" wrapper=()
  shift
  rm -f "$report"
  # The thread sanitizer of GCC 12 dies at start when the kernel spreads mappings wider than it knows.
  if [[ $preset == tsan ]] && setarch --addr-no-randomize true 2>/dev/null; then
    wrapper=(setarch --addr-no-randomize)
  fi
  "${wrapper[@]}" ctest --test-dir "build/$preset" -j "$jobs" --output-on-failure --no-tests=error --timeout 240 \
    --no-label-summary --output-junit "$report" "$@" &&
    "$python" scripts/check_junit.py "${skip_rule[@]}" "$report"
}

run_pytest() {
  local report="$logs/pytest.xml"
  rm -f "$report"
  env MC_BUILD_DIR="$repo/build/release" "${off_build[@]}" \
    "$python" -m pytest --color=no -ra "--junit-xml=$report" tests/python &&
    "$python" scripts/check_junit.py "${skip_rule[@]}" "$report"
}

lint() {
  "$python" tests/lint/lint.py includes style format && "$python" scripts/clang_tidy.py
}

# build_and_test PRESET [ctest option...]
build_and_test() {
  local preset=$1
  if stage "build $preset" quiet build "$preset"; then
    stage "ctest $preset" live run_ctest "$@" || true
  else
    not_run "ctest $preset"
  fi
}

# The packages and the kernel of the virtual machine; what is missing is the last line.
prepare_guest() {
  scripts/install_deps.sh rdma && tests/rdma_vm/run_in_guest.sh --prepare
}

# run_guest PRESET: the RDMA suites of that build in the virtual machine; of asan, only those of the transport itself.
run_guest() {
  local preset=$1 reports="$logs/rdma_guest_$1" suites=("${guest_suites[@]}") suite result=0 variable environment=()
  for variable in "${off_build[@]}"; do environment+=(--env "$variable"); done
  if [[ $preset == asan ]]; then suites=(rdma_device_test); fi
  rm -f -- "$reports"_*.xml
  tests/rdma_vm/run_in_guest.sh --devices 4 --timeout 1800 --writable "$logs" \
    --env ASAN_OPTIONS="$ASAN_OPTIONS" --env UBSAN_OPTIONS="$UBSAN_OPTIONS" "${environment[@]}" \
    -- tests/rdma_vm/run_suites.sh "$repo/build/$preset" "$reports" "${suites[@]}" || result=1
  for suite in "${suites[@]}"; do
    "$python" scripts/check_junit.py "${skip_rule[@]}" "${reports}_$suite.xml" || result=1
  done
  return "$result"
}

# test_in_guest PRESET...
test_in_guest() {
  local ci=$1 preset
  shift
  if ! $ci && ! prepare_guest >"$logs/rdma_kernel.log" 2>&1; then
    echo "== rdma guest: skipped: $(tail -n 1 "$logs/rdma_kernel.log")"
    stages+=("$(printf '%-20s %-7s' "rdma guest" skipped)")
    return
  fi
  # With --ci the reason is that of a failed stage.
  if $ci && ! stage "rdma kernel" quiet prepare_guest; then
    not_run "rdma guest"
    return
  fi
  for preset in "$@"; do
    stage "rdma guest $preset" live run_guest "$preset" || true
  done
}

run_suites() {
  local ci=$1 presets=(release)
  if $ci; then
    if stage "configure release" quiet cmake --preset release; then
      stage lint live lint || true
    else
      not_run lint
    fi
    build_and_test ascend-off
    build_and_test tsan -L "$threaded_suites"
  fi
  build_and_test asan
  build_and_test release
  # Without the package pytest fails by itself, which is the right answer to a failed build too.
  stage pytest live run_pytest || true
  if $ci; then presets+=(asan); fi
  test_in_guest "$ci" "${presets[@]}"
}

# A log of continuous integration shows only the end: what failed has to stand there by name.
print_failed_tests() {
  local name report test
  for name in "${failed[@]}"; do
    for report in "$logs/${name// /_}"*.xml; do
      [[ -f $report ]] || continue
      while IFS= read -r test; do
        printf '  [%s] %s\n' "$name" "$test"
      done < <("$python" scripts/check_junit.py --list-failed "$report")
    done
  done
}

# The runners' own words: from the log of the release tests and of pytest.
print_summaries() {
  if [[ -f $logs/ctest_release.log ]]; then
    sed -n '/^[0-9]*% tests passed/,$p' "$logs/ctest_release.log"
  fi
  if [[ -f $logs/pytest.log ]]; then
    grep -E '^=+ .* in [0-9.]+s.* =+$' "$logs/pytest.log" | tail -n 1 || tail -n 1 "$logs/pytest.log"
  fi
}

main() {
  local ci=false full=false mutations=false suites=true argument groups=(build test)
  for argument in "$@"; do
    case $argument in
      -h | --help) usage; exit 0 ;;
      --ci) ci=true ;;
      --full) full=true ;;
      --mutations) mutations=true ;;
      *)
        usage >&2
        echo "run_tests: unknown option '$argument'" >&2
        exit 2
        ;;
    esac
  done
  if $mutations && ! $ci && ! $full; then suites=false; fi
  if $ci; then
    groups+=(lint)
    skip_rule=(--no-skips)
    off_build=(MC_ASCEND_OFF_BUILD_DIR="$repo/build/ascend-off")
  fi

  cd "$repo"
  rm -rf -- "$logs"
  mkdir -p "$logs"
  # Settings of the caller's own store must not reach the tests.
  unset "${!MOONCAKE_@}" "${!MC_@}"
  export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
  export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 PYTHONDONTWRITEBYTECODE=1
  stage packages live scripts/install_deps.sh "${groups[@]}" || { echo "run_tests: FAILED: packages"; exit 1; }
  scripts/fetch_test_servers.sh || echo "run_tests: tests that need real metadata servers are skipped"
  if command -v ccache >/dev/null; then
    export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_BASEDIR=$repo CCACHE_NOHASHDIR=1
  fi

  if $mutations; then stage mutations live "$python" tests/mutations/mutations.py || true; fi
  if $full; then stage "fresh check" live scripts/fresh_check.sh || true; fi
  if $suites; then run_suites "$ci"; fi
  if $full; then
    stage "rdma vm check" live tests/rdma_vm/self_check.sh || true
    stage "transfer soak" live build/release/tests/transfer_soak --seconds 600 || true
    stage "bridge soak" live scripts/with_npu_emulator.sh build/release/tests/bridge_soak --seconds 600 || true
  fi

  printf '\n== stages (logs in build/logs)\n'
  printf '%s\n' "${stages[@]}"
  printf 'total %d min %d s\n' $((SECONDS / 60)) $((SECONDS % 60))
  if [[ ${#failed[@]} -gt 0 ]]; then
    printf 'run_tests: FAILED:'
    printf ' [%s]' "${failed[@]}"
    printf '\n'
    print_failed_tests
  fi
  echo
  print_summaries
  [[ ${#failed[@]} -eq 0 ]]
}

main "$@"
