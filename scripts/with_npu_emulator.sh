#!/usr/bin/env bash
# Runs a program with the ACL emulator in place of CANN: its libraries come first on LD_LIBRARY_PATH.
set -euo pipefail

usage() {
  cat <<'HELP'
usage: with_npu_emulator.sh [--build DIR] [--profile X] COMMAND [ARGUMENT...]

Runs COMMAND with libascendcl.so and libacl_rt.so of the emulator first on LD_LIBRARY_PATH.
  --build DIR   the build directory (default: build/release of this tree)
  --profile X   behave as that CANN release, with its functions only: 8.0, 8.1, 8.5, 9.0, 9.1, master
                (default: strictest, every function and the rules of all releases together)

Environment (docs/emulator.md explains each):
  ACLEMU_PROFILE=strictest             other rules than those of the chosen libraries (never of an older release)
  ACLEMU_SOC=a2|a3|310p|310b|910|950   the chip: its name, padding of allocations, limits
  ACLEMU_DEVICES=2                     number of devices, 1 to 64
  ACLEMU_HBM=1G                        memory of each device (bytes, or with K, M, G, T)
  ACLEMU_KEEP=256M                     freed device memory that stays resident; more goes back to the system
  ACLEMU_SCHED=eager|lazy|random:SEED|timed|manual
                                       when stream tasks run: as they come, when something waits for them, late at random,
                                       by the time model, when a test steps them
  ACLEMU_VIOLATION=return|abort|log    what happens when a rule of use is broken
  ACLEMU_PAGEABLE=refuse|sync          asynchronous copies of pageable memory: error, or as CANN 8.5
  ACLEMU_HOSTMEM=auto|plain|secret     memory behind aclrtMallocHost
  ACLEMU_POISON=1|0                    fill new and freed memory with patterns
  ACLEMU_FAULT="aclrtMalloc@5=207001"  the 5th call returns that code; several with ';'; the manual has all forms:
                                       H2D@%0.01=partial, D2H@every:3=delay:5, dev1@t2000=lost, ...
  ACLEMU_REPORT=stderr|FILE            JSON at exit: counters, violations, leaks
  ACLEMU_CONFIG=FILE                   JSON with "faults" and "model"
  ACLEMU_TIME=off|model|virtual        calls and copies take the time of a device; virtual: on a clock of its own
  ACLEMU_MODEL=a2|a3|bench[,NAME=VALUE...]
                                       numbers of the time model
  ACLEMU_RACE=1                        find changed sources, early reads and missing synchronizes
  ACLEMU_WATCHDOG=30s                  abort with a dump when a wait without a timeout makes no progress; 0: never
  ACLEMU_STACK=1                       call stacks in the report
  ACLEMU_TRACE=FILE                    one line per call
  ACLEMU_POISON_OUT=1                  failed calls fill their outputs with a pattern
  ACLEMU_LEAK_FATAL=1                  exit code 23 if memory, streams or events are live at exit
  ACLEMU_DIR=/dev/shm/NAME             devices shared by all processes with this directory; remove it afterwards
  ACLEMU_HBM_RESERVED=0                part of each device that is never free
  ACLEMU_CACHE=1                       free memory moves in steps of up to 36 MiB, as with the real driver
  ACLEMU_SEGV=0                        do not explain a host access to device memory
  ASCEND_RT_VISIBLE_DEVICES=0,1        as on a real host
HELP
}

profile="strictest"
build="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/build/release"
while [[ $# -gt 0 ]]; do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --build)
      [[ $# -ge 2 ]] || { usage >&2; exit 2; }
      build="$2"
      shift 2
      ;;
    --profile)
      [[ $# -ge 2 ]] || { usage >&2; exit 2; }
      profile="$2"
      shift 2
      ;;
    --) shift; break ;;
    -*) echo "with_npu_emulator.sh: unknown option $1" >&2; usage >&2; exit 2 ;;
    *) break ;;
  esac
done
[[ $# -gt 0 ]] || { usage >&2; exit 2; }

libraries="$build/emulator/lib64"
case "$profile" in
  strictest) ;;
  8.0 | 8.1 | 8.5 | 9.0 | 9.1 | master) libraries="$libraries-$profile" ;;
  *) echo "with_npu_emulator.sh: unknown profile $profile" >&2; usage >&2; exit 2 ;;
esac
# Before 8.5 there is no libacl_rt.so.
if [[ ! -e "$libraries/libascendcl.so" ]]; then
  echo "with_npu_emulator.sh: no emulator in $libraries (build the targets ascendcl, acl_rt, aclemu_profiles)" >&2
  exit 2
fi
libraries="$(cd "$libraries" && pwd)"
export LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
exec "$@"
