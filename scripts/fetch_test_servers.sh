#!/usr/bin/env bash
# Unpacks Debian's redis-server and etcd-server for the tests that talk to real ones. Nothing is installed or started.
set -euo pipefail

usage() {
  cat <<'HELP'
Usage: scripts/fetch_test_servers.sh

Downloads the packages of redis-server and etcd-server and unpacks them into build/test_servers, where the tests find
them; without them those tests are skipped. Does nothing when they are there. Needs Debian 12 and its package sources.
HELP
}

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly repo target="$repo/build/test_servers"
# With what redis-server needs beyond a system on which this tree can be built.
readonly packages=(redis-server redis-tools libjemalloc2 liblzf1 etcd-server)

die() {
  echo "fetch_test_servers: $*" >&2
  exit 1
}

# Whether both programs of a folder start.
complete() {
  local libraries
  libraries=$(echo "$1"/usr/lib/*-linux-gnu*)
  LD_LIBRARY_PATH=$libraries "$1/usr/bin/redis-server" --version >/dev/null 2>&1 &&
    "$1/usr/bin/etcd" --version >/dev/null 2>&1
}

download() {
  (cd "$1" && apt-get download -q "${packages[@]}") >"$1/log" 2>&1
}

main() {
  case ${1:-} in
    "") ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; die "unknown argument '$1'" ;;
  esac
  if complete "$target"; then
    echo "fetch_test_servers: redis-server and etcd are in build/test_servers"
    exit 0
  fi
  command -v apt-get >/dev/null || die "no apt-get: this script knows Debian only"
  echo "fetch_test_servers: downloading ${packages[*]}"
  mkdir -p "$repo/build"
  local work package
  work=$(mktemp -d "$repo/build/test_servers.XXXXXX")
  # shellcheck disable=SC2064  # the folder of this run
  trap "rm -rf -- '$work'" EXIT
  # The lists may be old, or not there yet.
  if ! download "$work" && { ! apt-get update -q >>"$work/log" 2>&1 || ! download "$work"; }; then
    cat "$work/log" >&2
    die "download failed: check the package sources and the network"
  fi
  mkdir "$work/tree"
  for package in "$work"/*.deb; do dpkg -x "$package" "$work/tree"; done
  complete "$work/tree" || die "the unpacked servers do not start: $(ldd "$work/tree/usr/bin/redis-server" | grep 'not found' || true)"
  rm -rf -- "$target"
  mv "$work/tree" "$target"
  echo "fetch_test_servers: done"
}

main "$@"
