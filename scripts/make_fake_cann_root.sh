#!/usr/bin/env bash
# Lays out the emulator as an installation of CANN, so that build systems which look for CANN find it.
set -euo pipefail

usage() {
  cat <<'HELP'
usage: make_fake_cann_root.sh [--build DIR] [--profile X] ROOT

Fills ROOT (missing, empty, or filled by this script before) with headers, libraries, link stubs and set_env.sh in the places where CANN has
them. Then `source ROOT/set_env.sh`, or ASCEND_HOME_PATH=ROOT, is enough for projects that look for CANN.
  --build DIR   the build directory (default: build/release of this tree)
  --profile X   libraries of that release: 8.0, 8.1, 8.5, 9.0, 9.1, master (default: strictest)
HELP
}

tree="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
build="$tree/build/release"
profile="strictest"
while [[ $# -gt 0 ]]; do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --build | --profile)
      [[ $# -ge 2 ]] || { usage >&2; exit 2; }
      [[ "$1" == --build ]] && build="$2" || profile="$2"
      shift 2
      ;;
    -*) echo "make_fake_cann_root.sh: unknown option $1" >&2; usage >&2; exit 2 ;;
    *) break ;;
  esac
done
[[ $# -eq 1 ]] || { usage >&2; exit 2; }

libraries="$build/emulator/lib64"
[[ "$profile" == strictest ]] || libraries="$libraries-$profile"
for needed in "$libraries/libascendcl.so" "$build/emulator/lib64/libaclemu_core.so" "$build/emulator/devlib/libascendcl.so"; do
  if [[ ! -e "$needed" ]]; then
    echo "make_fake_cann_root.sh: $needed is missing (build the target aclemu_all)" >&2
    exit 2
  fi
done

mkdir -p "$1"
root="$(cd "$1" && pwd)"
host="$(uname -m)-linux"
other="aarch64-linux"
[[ "$host" != "$other" ]] || other="x86_64-linux"
# Only what an earlier run made is replaced: never a real installation, nor /usr.
marker="$root/.made_by_make_fake_cann_root"
if [[ ! -e "$marker" && -n "$(ls -A "$root")" ]]; then
  echo "make_fake_cann_root.sh: $root is not empty and was not made by this script" >&2
  exit 2
fi
touch "$marker"
for part in "$host" "$other" include lib64 devlib set_env.sh; do
  rm -rf "${root:?}/$part"
done
mkdir -p "$root/$host/lib64" "$root/$host/devlib" "$root/devlib/linux"
cp -r "$tree/emulator/ascendcl/include" "$root/$host/include"
cp "$libraries"/lib*.so "$root/$host/lib64/"
[[ "$profile" == strictest ]] || cp "$build/emulator/lib64/libaclemu_core.so" "$root/$host/lib64/"
cp "$build/emulator/devlib"/lib*.so "$root/$host/devlib/"
ln -s "$host" "$root/$other"
ln -s "$host/include" "$root/include"
ln -s "$host/lib64" "$root/lib64"
ln -s "../../$host/devlib" "$root/devlib/linux/$(uname -m)"
cat > "$root/set_env.sh" <<'ENV'
# Sourced by a shell: the variables CANN sets.
export ASCEND_HOME_PATH="$(cd "$(dirname "${BASH_SOURCE[0]:-$0}")" && pwd)"
export ASCEND_TOOLKIT_HOME="$ASCEND_HOME_PATH"
export LD_LIBRARY_PATH="$ASCEND_HOME_PATH/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
ENV
echo "$root"
