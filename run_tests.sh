#!/usr/bin/env bash
# Sets the machine up, builds the store and runs its tests. The last lines are ctest's and pytest's own summaries.
set -euo pipefail

usage() {
  cat <<'HELP'
Usage: ./run_tests.sh [--ci] [--full] [--mutations]

Without options: installs missing packages (scripts/install_deps.sh), builds the presets release and asan, runs ctest in
both (address and undefined-behaviour sanitizers with leak detection in asan) and pytest against build/release/python.
Meant to stay under 35 minutes on 2 cores (--ci: 75).

Options, which combine:
  --ci         also: clang-format and clang-tidy, the threaded suites under the thread sanitizer, the build with every
               USE_ASCEND_* option OFF and its tests. A skipped or disabled test is a failure here.
  --full       also: both commands of the README in a freshly made minimal Debian 12 (scripts/fresh_check.sh; needs root)
  --mutations  break the code in one line at a time and show that a test notices (tests/mutations).
               Alone it runs only this; with other options it is added to them.
  --help       this text

Logs are in build/logs. Exit code 0 only if every stage passed and every runner ran at least one test.
To run less, use the build directories by hand: see CONTRIBUTING.md.
HELP
}

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly repo logs="$repo/build/logs" python=/usr/bin/python3
readonly threaded_suites='^(rpc_test|device_test|device_acl_test|tiered_cache_test|client_test|master_test|transfer_engine_test|transfer_metadata_test|acl_emulator_test|acl_emulator_modes_test|acl_shared_test)$'
jobs=$(nproc)
skip_rule=()   # --no-skips with --ci
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
  MC_BUILD_DIR="$repo/build/release" "$python" -m pytest --color=no -ra "--junit-xml=$report" tests/python &&
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

run_suites() {
  local ci=$1
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

  printf '\n== stages (logs in build/logs)\n'
  printf '%s\n' "${stages[@]}"
  printf 'total %d min %d s\n' $((SECONDS / 60)) $((SECONDS % 60))
  if [[ ${#failed[@]} -gt 0 ]]; then
    printf 'run_tests: FAILED:'
    printf ' [%s]' "${failed[@]}"
    printf '\n'
  fi
  echo
  print_summaries
  [[ ${#failed[@]} -eq 0 ]]
}

main "$@"
