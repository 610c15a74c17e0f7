#!/usr/bin/env bash
# Installs the Debian 12 packages that building and testing need. The only place of this tree that installs anything.
set -euo pipefail

usage() {
  cat <<'HELP'
Usage: scripts/install_deps.sh [--list] [GROUP...]

Installs what is missing and does nothing when all is there. Needs Debian 12, and root or sudo when something is missing.

Groups (default: build test):
  build    compiler, CMake and the libraries the store is built on
  test     gtest, pytest and the tools the tests call
  lint     clang-format, clang-tidy and clang's sanitizer runtime
  chroot   debootstrap, for scripts/fresh_check.sh
  rdma     QEMU and what goes into its guest, for tests/rdma_vm

Options:
  --list   print the packages of the groups, one a line, and install nothing
  --help   this text
HELP
}

# shellcheck disable=SC2034  # the groups are read by name
build_packages=(
  g++ cmake ninja-build pkg-config git ca-certificates
  libasio-dev libmsgpack-cxx-dev nlohmann-json3-dev libspdlog-dev libfmt-dev libgflags-dev libxxhash-dev
<<<<<<< HEAD
  prometheus-cpp-dev libcpp-httplib-dev libhiredis-dev
=======
  prometheus-cpp-dev libcpp-httplib-dev libibverbs-dev
>>>>>>> rdma
  pybind11-dev python3 python3-dev
)
# shellcheck disable=SC2034
test_packages=(libgtest-dev libgmock-dev python3-pytest python3-pytest-timeout python3-numpy procps iproute2 curl
  ibverbs-providers)
# shellcheck disable=SC2034
lint_packages=(clang-19 clang-tidy-19 clang-format-19 libclang-rt-19-dev)
# shellcheck disable=SC2034
chroot_packages=(debootstrap)
# shellcheck disable=SC2034
rdma_packages=(
  qemu-system-x86 busybox-static cpio kmod xz-utils iproute2 ibverbs-providers ibverbs-utils perftest
)

die() {
  echo "install_deps: $*" >&2
  exit 1
}

# Prints those of the given packages that are not installed.
missing_of() {
  local package status
  for package in "$@"; do
    # No such package is an answer here, not an error.
    status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
    [[ $status == installed ]] || echo "$package"
  done
}

require_debian_12() {
  [[ -r /etc/os-release ]] || die "no /etc/os-release: this script knows Debian 12 only"
  local name
  # shellcheck disable=SC1091
  name=$(. /etc/os-release && echo "${ID:-?} ${VERSION_ID:-?}")
  [[ $name == "debian 12" ]] ||
    die "this is '$name', the package names are those of Debian 12 (see --list for what to install by hand)"
}

main() {
  local groups=() packages=() list_only=false argument
  for argument in "$@"; do
    case $argument in
      -h | --help) usage; exit 0 ;;
      --list) list_only=true ;;
      build | test | lint | chroot | rdma) groups+=("$argument") ;;
      *) usage >&2; die "unknown argument '$argument'" ;;
    esac
  done
  [[ ${#groups[@]} -gt 0 ]] || groups=(build test)

  local group
  for group in "${groups[@]}"; do
    local -n of_group="${group}_packages"
    packages+=("${of_group[@]}")
  done
  if $list_only; then
    printf '%s\n' "${packages[@]}"
    exit 0
  fi

  require_debian_12
  local missing
  mapfile -t missing < <(missing_of "${packages[@]}")
  if [[ ${#missing[@]} -eq 0 ]]; then
    echo "install_deps: ${#packages[@]} packages of ${groups[*]} are installed"
    exit 0
  fi

  local as_root=()
  if [[ $EUID -ne 0 ]]; then
    command -v sudo >/dev/null || die "not root and no sudo; install by hand: ${missing[*]}"
    as_root=(sudo)
  fi
  echo "install_deps: installing ${missing[*]}"
  local log
  log=$(mktemp)
  if ! "${as_root[@]}" apt-get update -q >"$log" 2>&1; then
    cat "$log" >&2
    die "apt-get update failed: check the package sources and the network (log: $log)"
  fi
  if ! "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install --yes -q --no-install-recommends \
    -o Dpkg::Use-Pty=0 "${missing[@]}" >"$log" 2>&1 </dev/null; then
    cat "$log" >&2
    die "apt-get install failed for: ${missing[*]} (log: $log)"
  fi
  rm -f -- "$log"
  echo "install_deps: done"
}

main "$@"
