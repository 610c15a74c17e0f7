#!/usr/bin/env bash
# The fake CANN root serves projects that know nothing of the emulator. Usage: fake_root_test.sh SOURCE BUILD [OPEN_NPU]
# CONSUMER_FLAGS: compiler flags the libraries demand of programs (sanitizers).
set -euo pipefail

source_dir="$1" build_dir="$2" open_npu="${3:-}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
unset LD_LIBRARY_PATH

fail() {
  echo "FAILED: $*" >&2
  exit 1
}
expect() { # expect TEXT COMMAND...: the command prints exactly the text on stdout
  local want="$1" got
  shift
  got="$("$@")" || true
  [[ "$got" == "$want" ]] || fail "$* printed '$got', not '$want'"
}
libraries_of() { # what a program needs of CANN or of the emulator
  readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -E 'ascend|acl' | sort | tr '\n' ' '
}

root="$("$source_dir/scripts/make_fake_cann_root.sh" --build "$build_dir" "$work/cann")"
arch="$(uname -m)"
for path in include/acl/acl.h include/acl/error_codes/rt_error_codes.h lib64/libascendcl.so lib64/libacl_rt.so set_env.sh \
  "$arch-linux/include/acl/acl_rt.h" x86_64-linux/lib64/libascendcl.so x86_64-linux/devlib/libacl_rt.so \
  aarch64-linux/lib64/libacl_rt.so "devlib/linux/$arch/libascendcl.so"; do
  [[ -e "$root/$path" ]] || fail "$path is missing"
done

# It may be filled again, but a directory of somebody else stays as it is.
"$source_dir/scripts/make_fake_cann_root.sh" --build "$build_dir" "$root" > /dev/null || fail "not twice"
mkdir -p "$work/usr/include" && touch "$work/usr/include/stdio.h"
if "$source_dir/scripts/make_fake_cann_root.sh" --build "$build_dir" "$work/usr" 2> /dev/null; then fail "took /usr"; fi
[[ -e "$work/usr/include/stdio.h" ]] || fail "emptied /usr"

# A CMake project and a plain compiler line, both from the variables of set_env.sh.
(
  # shellcheck source=/dev/null
  source "$root/set_env.sh"
  [[ "$ASCEND_HOME_PATH" == "$root" && "$ASCEND_TOOLKIT_HOME" == "$root" ]] || fail "set_env.sh names another root"
  export CXXFLAGS="${CONSUMER_FLAGS:-}" LDFLAGS="${CONSUMER_FLAGS:-}"
  cmake -S "$source_dir/emulator/ascendcl/test/consumer" -B "$work/build" -DCMAKE_BUILD_TYPE=Release > "$work/log"
  cmake --build "$work/build" >> "$work/log" || { cat "$work/log"; fail "the consumer does not build"; }
  # shellcheck disable=SC2086
  c++ ${CONSUMER_FLAGS:-} -I"$ASCEND_HOME_PATH/include" "$source_dir/emulator/ascendcl/test/consumer/main.cc" \
    -L"$ASCEND_HOME_PATH/$arch-linux/lib64" -lascendcl -o "$work/build/by_hand"
  for program in with_ascendcl with_acl_rt with_stub by_hand; do
    expect "acl says 0" "$work/build/$program"
  done
)

# The programs name the libraries of CANN and nothing of the emulator.
[[ "$(libraries_of "$work/build/with_ascendcl")" == "libascendcl.so " ]] || fail "with_ascendcl needs other names"
[[ "$(libraries_of "$work/build/with_acl_rt")" == "libacl_rt.so " ]] || fail "with_acl_rt needs other names"
[[ "$(libraries_of "$work/build/by_hand")" == "libascendcl.so " ]] || fail "by_hand needs other names"

# With the link stubs first on the path nothing works, and says so.
stubs="$root/$arch-linux/devlib"
for program in with_ascendcl with_acl_rt; do
  expect "acl says 100039" env LD_LIBRARY_PATH="$stubs:$root/lib64" "$work/build/$program"
done
if [[ -n "$open_npu" ]]; then
  expect "opened" env LD_LIBRARY_PATH="$root/lib64" "$open_npu"
  said="$(LD_LIBRARY_PATH="$stubs:$root/lib64" "$open_npu")" && fail "the store opened the stubs"
  [[ "$said" == *"100039 COMPILING_STUB_MODE"* ]] || fail "the store said: $said"
fi

# A root of an older release lacks what is newer.
old="$("$source_dir/scripts/make_fake_cann_root.sh" --build "$build_dir" --profile 8.1 "$work/cann-8.1")"
[[ ! -e "$old/lib64/libacl_rt.so" ]] || fail "8.1 has no libacl_rt.so"
expect "acl says 0" env LD_LIBRARY_PATH="$old/lib64" "$work/build/with_ascendcl"
names="$(nm -D "$old/lib64/libascendcl.so")"
grep -q ' T aclrtHostRegister$' <<< "$names" || fail "8.1 has aclrtHostRegister"
! grep -q ' T aclrtHostRegisterV2$' <<< "$names" || fail "8.1 has no aclrtHostRegisterV2"
echo "fake root: all good"
