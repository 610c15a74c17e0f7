#!/usr/bin/env bash
# Runs a command in a virtual machine that has RDMA devices: real verbs for tests, on hosts without an RDMA card.
set -euo pipefail

usage() {
  cat <<'HELP'
Usage: tests/rdma_vm/run_in_guest.sh [option...] [--] COMMAND [ARGUMENT...]
       tests/rdma_vm/run_in_guest.sh --prepare

Boots a Debian kernel in QEMU (emulated; KVM where the processor has vmx or svm) with Soft-RoCE (rdma_rxe) devices. The
guest sees the host's file system as it is, so that any program of the host runs with the host's libraries; what it
writes goes to memory and is lost. Some 6 s on top of the command.

  -w, --writable DIR   what the guest writes there is kept (repeatable)
  -e, --env VAR=VALUE  environment of the command (repeatable); the caller's own is not passed on
  -n, --devices N      RDMA devices rxe0 to rxe(N-1), 0 to 8 (default 2)
  -m, --memory MIB     memory of the guest (default 3072)
  -c, --cpus N         processors of the guest (default: the host's, 4 at most)
  -t, --timeout S      kill the guest after S seconds (default 600)
      --kernel K       backports, stable or a linux-image .deb (default: backports, stable where that cannot be had)
      --accel A        auto, kvm or tcg (default auto)
  -k, --kernel-log     print the guest's kernel log on stderr at the end (always done if the guest gave no result)
  -q, --quiet          no line about the run on stderr
      --prepare        only download and unpack the kernel, print the folder
  -h, --help           this text

Output: stdout and stderr of the command, merged, on stdout, as it comes. Exit code: the command's; 124 if it took too
long; 125 if the guest gave no result; 126 for wrong use or something missing on this host.

In the guest: root, the caller's working directory, no stdin. Devices come in pairs on a virtual cable:
rxe0 on veth0 10.77.0.1/24 - rxe1 on veth1 10.77.0.2/24, rxe2 on veth2 10.77.1.1/24 - rxe3 on veth3 10.77.1.2/24, ...
`ip link set veth1 down` pulls a cable. GID index 1 is RoCEv2 over IPv4. MTU 9000. RXE_VM=1,
RXE_DEVS="rxe0 rxe1" and RXE_IPS="10.77.0.1 10.77.0.2" are in the environment. The processor is emulated up to
AVX2: a program built with -march=native may die of SIGILL.

Packages: scripts/install_deps.sh rdma. The kernel's package is not installed: apt-get downloads it (some 100 MB), once,
into RDMA_VM_CACHE (default: ${XDG_CACHE_HOME:-$HOME/.cache}/mooncake_rdma_vm).
HELP
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here python=/usr/bin/python3
started=$(date +%s.%N)
quiet=false
run_folder=""
children=()  # process ids to end

die() {
  echo "run_in_guest: $*" >&2
  exit 126
}
note() { $quiet || echo "run_in_guest: $*" >&2; }
seconds_since_start() { awk -v from="$started" -v to="$(date +%s.%N)" 'BEGIN { printf "%.1f", to - from }'; }

# shellcheck source=tests/rdma_vm/kernel.sh
source "$here/kernel.sh"

# shellcheck disable=SC2317  # called by the trap
clean_up() {
  local child
  for child in "${children[@]}"; do
    kill -KILL "$child" 2>/dev/null || true
  done
  [[ -z $run_folder ]] || rm -rf -- "$run_folder"
}

require_tools() {
  local tool
  [[ $(uname -m) == x86_64 ]] || die "needs an x86_64 host"
  for tool in qemu-system-x86_64 busybox cpio modprobe depmod xz "$python" dpkg-deb apt-get flock; do
    command -v "$tool" >/dev/null || die "no program $tool (scripts/install_deps.sh rdma)"
  done
  [[ $1 -eq 0 ]] || command -v rdma >/dev/null || die "no program rdma (scripts/install_deps.sh rdma)"
  [[ $1 -eq 0 || -e /etc/libibverbs.d/rxe.driver ]] || die "no rxe driver for libibverbs (scripts/install_deps.sh rdma)"
}

# Sets `cache`, an existing folder.
choose_cache() {
  cache=${RDMA_VM_CACHE:-}
  if [[ -z $cache ]]; then
    cache=${XDG_CACHE_HOME:-${HOME:-$here/../../build}/.cache}/mooncake_rdma_vm
  fi
  mkdir -p "$cache" || die "cannot make the cache folder '$cache' (RDMA_VM_CACHE)"
  cache=$(realpath "$cache")
}

# Fills the folder that the guest reads its orders from and writes its results to.
write_control_folder() {
  local control=$run_folder/control number
  mkdir "$control"
  printf '%s\n' "${writable[@]}" | sed '/^$/d' >"$control/writable"
  { echo "devices=$devices"; cat "$here/guest_network.sh"; } >"$control/network"
  local names=() addresses=() variable
  for ((number = 0; number < devices; number++)); do
    names+=("rxe$number")
    addresses+=("10.77.$((number / 2)).$((number % 2 + 1))")
  done
  {
    printf 'export RXE_VM=1 RXE_DEVS=%q RXE_IPS=%q\n' "${names[*]}" "${addresses[*]}"
    for variable in "${environment[@]}"; do printf 'export %q\n' "$variable"; done
    echo 'ulimit -l unlimited; ulimit -n 65536; ulimit -c 0'
    printf 'cd %q || exit 126\nexec' "$PWD"
    printf ' %q' "$@"
    echo
  } >"$control/command"
}

# The kernel's modules with this tree's init on top of them.
write_initramfs() {
  local tree=$run_folder/initramfs
  mkdir "$tree"
  install -m 755 "$here/guest_init.sh" "$tree/init"
  { cat "$kernel_folder/modules.gz"; (cd "$tree" && echo init | cpio -o -H newc --quiet | gzip -1); } >"$run_folder/initramfs.gz"
}

# Boots and waits for the end of the guest, at most `timeout` seconds; its output goes to stdout meanwhile.
run_guest() {
  local machine shares=() number=0 folder guest tail_process watchdog
  # secretmem: for the emulated NPUs' page-locked memory, which no network device may have.
  local parameters="console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off nokaslr audit=0 tsc=reliable"
  parameters+=" random.trust_cpu=1 nmi_watchdog=0 secretmem.enable=1"
  case $accel in
    kvm) machine=(-accel kvm -cpu host) ;;
    tcg) machine=(-accel "tcg,thread=multi" -cpu max) ;;
  esac
  share() {
    shares+=(-fsdev "local,id=$1,path=${2//,/,,},security_model=none,multidevs=remap$3" -device "virtio-9p-pci,fsdev=$1,mount_tag=$1")
  }
  share host / ,readonly=on
  share control "$run_folder/control" ""
  for folder in "${writable[@]}"; do
    share "writable$number" "$folder" ""
    number=$((number + 1))
  done
  : >"$run_folder/output"
  : >"$run_folder/kernel.log"
  qemu-system-x86_64 -M q35 "${machine[@]}" -smp "$cpus" -m "$memory" \
    -nodefaults -no-user-config -no-reboot -display none \
    -kernel "$kernel_folder/vmlinux" -initrd "$run_folder/initramfs.gz" \
    -append "$parameters" \
    -serial "file:$run_folder/kernel.log" \
    -device virtio-serial-pci -chardev "file,id=output,path=$run_folder/output" -device virtserialport,chardev=output,name=output \
    -device virtio-rng-pci "${shares[@]}" </dev/null >"$run_folder/qemu.log" 2>&1 &
  guest=$!
  children+=("$guest")
  tail -c +1 -s 0.2 -f --pid="$guest" "$run_folder/output" &
  tail_process=$!
  children+=("$tail_process")
  timeout --foreground "$timeout" tail -s 0.5 -f --pid="$guest" /dev/null >/dev/null 2>&1 &
  watchdog=$!
  children+=("$watchdog")
  local code=0
  wait "$watchdog" || code=$?
  if [[ $code -eq 124 ]]; then
    : >"$run_folder/timed_out"
    kill -KILL "$guest" 2>/dev/null || true
  fi
  { wait "$guest"; } 2>/dev/null || true
  wait "$tail_process" 2>/dev/null || true
  children=()
}

# Prints what there is to say and returns the exit code.
conclude() {
  local control=$run_folder/control code=""
  [[ ! -s $control/exit_code ]] || code=$(<"$control/exit_code")
  if [[ -z $code ]]; then
    if [[ -e $run_folder/timed_out ]]; then
      code=124
      echo "run_in_guest: killed after $timeout s" >&2
    else
      code=125
      echo "run_in_guest: the guest gave no result" >&2
    fi
    grep -v '^qemu: module ui' "$run_folder/qemu.log" >&2 || true
    kernel_log=true
  fi
  ! $kernel_log || tail -n 200 "$run_folder/kernel.log" | sed 's/\r$//; s/^/guest kernel: /' >&2
  note "Linux $(<"$kernel_folder/version"), $accel: up after $(cat "$control/up" 2>/dev/null || echo '?') s," \
    "command ended at $(cat "$control/end" 2>/dev/null || echo '?') s by the guest's clock, $(seconds_since_start) s in all;" \
    "exit code $code"
  return "$code"
}

main() {
  local memory=3072 timeout=600 devices=2 accel=auto kernel=auto kernel_log=false prepare_only=false
  local writable=() environment=() cpus number
  cpus=$(nproc)
  [[ $cpus -le 4 ]] || cpus=4
  while [[ $# -gt 0 ]]; do
    case $1 in
      -h | --help) usage; exit 0 ;;
      -k | --kernel-log) kernel_log=true; shift; continue ;;
      -q | --quiet) quiet=true; shift; continue ;;
      --prepare) prepare_only=true; shift; continue ;;
      --) shift; break ;;
      -[wenmct] | --writable | --env | --devices | --memory | --cpus | --timeout | --kernel | --accel)
        [[ $# -ge 2 ]] || die "$1 needs a value"
        ;;
      -*) usage >&2; die "unknown option '$1'" ;;
      *) break ;;
    esac
    case $1 in
      -w | --writable)
        [[ -d $2 ]] || die "no folder '$2'"
        writable+=("$(realpath -- "$2")")
        ;;
      -e | --env) environment+=("$2") ;;
      -n | --devices) devices=$2 ;;
      -m | --memory) memory=$2 ;;
      -c | --cpus) cpus=$2 ;;
      -t | --timeout) timeout=$2 ;;
      --kernel) kernel=$2 ;;
      --accel) accel=$2 ;;
    esac
    shift 2
  done
  $prepare_only || [[ $# -gt 0 ]] || { usage >&2; die "no command"; }
  for number in "$memory" "$cpus" "$timeout" "$devices"; do
    [[ $number =~ ^[0-9]{1,6}$ ]] || die "not a number: '$number'"
  done
  [[ $devices -le 8 && $cpus -ge 1 && $timeout -ge 1 ]] || die "--devices takes 0 to 8, --cpus and --timeout at least 1"
  [[ $accel =~ ^(auto|kvm|tcg)$ ]] || die "--accel takes auto, kvm or tcg, not '$accel'"
  if [[ $accel == auto ]]; then
    accel=tcg
    ! { [[ -w /dev/kvm ]] && grep -qwE 'vmx|svm' /proc/cpuinfo; } || accel=kvm
  fi

  require_tools "$devices"
  choose_cache
  choose_kernel "$kernel"
  if $prepare_only; then
    echo "$kernel_folder"
    exit 0
  fi
  trap clean_up EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  run_folder=$(mktemp -d -- "${TMPDIR:-/tmp}/rdma_vm.XXXXXX")
  write_control_folder "$@"
  write_initramfs
  run_guest
  conclude
}

main "$@"
