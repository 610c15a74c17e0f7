#!/usr/bin/env bash
# Proves that the two commands of the README work on a machine with nothing on it: a minimal Debian 12 made for the purpose.
set -euo pipefail

usage() {
  cat <<'HELP'
Usage: scripts/fresh_check.sh [--only quickstart|tests] [--command CMD] [--dir DIR] [--mirror URL] [--keep]

Makes a minimal Debian 12 with debootstrap, clones the last commit into it, runs ./quickstart.sh and then ./run_tests.sh
there as root, prints a verdict for each and removes everything. Needs root, some 10 GB and a Debian mirror.
Files, processes and mounts are apart from the host's; the loopback network is shared, so ports of running servers clash.

  --only X       run only quickstart or only tests
  --command CMD  run this shell command in the clone instead of the two
  --dir DIR      where to make the temporary folder (default: $TMPDIR or the system's)
  --mirror URL   Debian mirror (default: the one apt on this host uses for bookworm)
  --keep         leave the system there and say how to enter it
  --help         this text
HELP
}

readonly suite=bookworm
readonly clone=/srv/mooncake  # inside the new system
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=""
child=""  # the running in_namespace
keep=false

die() {
  echo "fresh_check: $*" >&2
  exit 1
}
say() { echo "fresh_check: $*"; }

# Lines "mirror|suite|component|key file" of what apt on this host uses for Debian 12.
host_sources() {
  # shellcheck disable=SC2016  # apt expands these, not the shell
  apt-get indextargets --format '$(CREATED_BY)|$(SITE)|$(RELEASE)|$(COMPONENT)|$(SIGNED_BY)' |
    sed -n "s/^Packages|\(.*|${suite}[^|]*|main|.*\)$/\1/p" | sort -u
}

# Mounts live in a namespace of their own and processes too: both end with the command, whatever kills it.
# Usage: in_namespace SHELL_TEXT [ARGUMENT...]
in_namespace() {
  # In the background, so that a signal to this script is acted on at once and not when the command ends.
  unshare --mount --propagation private --pid --fork --kill-child -- bash -euo pipefail -c "$@" </dev/null &
  child=$!
  local code=0
  wait "$child" || code=$?
  child=""
  return "$code"
}

# Runs a shell command in the new system, in the clone.
in_system() {
  # shellcheck disable=SC2016  # expanded inside
  in_namespace '
    root=$1 clone=$2 command=$3
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount -o remount,bind,ro "$root/sys"
    mount --bind /dev "$root/dev"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
    cd "$root$clone"
    # Not exec: this shell is process 1 here and has to reap what the command leaves behind.
    chroot "$root" /usr/bin/env --ignore-environment HOME=/srv LANG=C.UTF-8 CI=true \
      PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
      ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} \
      bash -c "cd \"\$1\" && eval \"\$2\"" command "$clone" "$command"
  ' in_system "$work/root" "$clone" "$1"
}

# shellcheck disable=SC2317  # called by the trap
clean_up() {
  if [[ -n $child ]]; then
    # unshare does not listen to TERM; its process 1, and with it all others in there, is killed when it dies.
    kill -KILL "$child" || true
    wait "$child" || true
  fi
  [[ -n $work && -d $work ]] || return 0
  if $keep; then
    say "kept: chroot '$work/root' (clone in $clone; mount proc in it before use), remove '$work' when done"
    return 0
  fi
  # Nothing can be mounted here outside of the namespaces; look all the same before removing a tree with /dev in it.
  if grep -qF " $work/" /proc/self/mountinfo; then
    say "something is still mounted under '$work'; not removing it" >&2
    return 0
  fi
  # Killed processes may still be on their way out.
  rm -rf --one-file-system -- "$work" || { sleep 2 && rm -rf --one-file-system -- "$work"; }
}

make_system() {
  local sources mirror=$1
  sources=$(host_sources)
  if [[ -z $mirror ]]; then
    mirror=$(awk -F'|' -v suite="$suite" '$2 == suite { print $1; exit }' <<<"$sources")
    [[ -n $mirror ]] || die "apt on this host has no $suite source; name a mirror with --mirror"
    # apt may know a proxy that the environment does not.
    local proxy=""
    eval "$(apt-config shell proxy Acquire::http::Proxy)"
    [[ -z $proxy || $proxy == DIRECT ]] || export http_proxy=$proxy
  else
    sources="$mirror|$suite|main|"
  fi

  say "making a minimal $suite in $work/root"
  local include=()
  [[ $mirror != https:* ]] || include=(--include=ca-certificates)
  # shellcheck disable=SC2016  # expanded inside
  in_namespace 'exec debootstrap "$@"' debootstrap --variant=minbase "${include[@]}" "$suite" "$work/root" "$mirror" \
    >"$work/debootstrap.log" 2>&1 || {
    tail -n 20 "$work/debootstrap.log" >&2
    die "debootstrap failed"
  }

  local site release component key
  while IFS='|' read -r site release component key; do
    if [[ -n $key && -f $key ]]; then
      install -D -m 644 -- "$key" "$work/root$key"
      echo "deb [signed-by=$key] $site $release $component"
    else
      echo "deb $site $release $component"
    fi
  done <<<"$sources" >"$work/root/etc/apt/sources.list"
  cp -L /etc/resolv.conf /etc/hosts "$work/root/etc/"

  git clone --quiet --no-hardlinks "$repo" "$work/root$clone"
  git -C "$work/root$clone" remote remove origin
  say "cloned $(git -C "$work/root$clone" log -1 --format='%h %s')"
  [[ -z $(git -C "$repo" status --porcelain) ]] || say "note: uncommitted changes are not part of this check"
}

verdicts=()
failed=0
check() {
  local name=$1 command=$2 verdict=PASS start=$SECONDS
  say "running in the new system: $command"
  in_system "$command" || { verdict="FAIL (exit $?)"; failed=1; }
  verdicts+=("$(printf '%-12s %-16s %4d s   %s' "$name" "$verdict" $((SECONDS - start)) "$command")")
}

main() {
  local only="" command="" parent=${TMPDIR:-/tmp} mirror=""
  while [[ $# -gt 0 ]]; do
    case $1 in
      -h | --help) usage; exit 0 ;;
      --keep) keep=true; shift ;;
      --only | --command | --dir | --mirror)
        [[ $# -ge 2 ]] || die "$1 needs a value"
        case $1 in
          --only) only=$2 ;;
          --command) command=$2 ;;
          --dir) parent=$2 ;;
          --mirror) mirror=$2 ;;
        esac
        shift 2
        ;;
      *) usage >&2; die "unknown argument '$1'" ;;
    esac
  done
  [[ $only =~ ^(quickstart|tests|)$ ]] || die "--only takes quickstart or tests, not '$only'"
  [[ $EUID -eq 0 ]] || die "needs root (chroot, mounts)"
  "$repo/scripts/install_deps.sh" chroot

  work=$(mktemp -d -- "$parent/fresh_check.XXXXXXXX")
  work=$(cd "$work" && pwd -P)  # mountinfo shows real paths
  trap clean_up EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  local start=$SECONDS
  make_system "$mirror"
  say "system ready after $((SECONDS - start)) s"

  if [[ -n $command ]]; then
    check command "$command"
  else
    [[ $only == tests ]] || check quickstart ./quickstart.sh
    [[ $only == quickstart ]] || check tests ./run_tests.sh
  fi
  printf '\n'
  printf 'fresh_check: %s\n' "${verdicts[@]}"
  exit "$failed"
}

main "$@"
