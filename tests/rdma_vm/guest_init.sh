#!/bin/busybox sh
# First process of the guest: mounts the host's files under an overlay in memory, loads the drivers, runs the command.
# shellcheck shell=dash
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs devtmpfs /dev

fail() {
  echo "guest: $*" >/dev/console
  $b sleep 1
  $b poweroff -f
}

load() {
  while read -r module; do
    $b insmod "/modules/$module"
  done <"/modules/$1"
}

load base.list
shares=trans=virtio,version=9p2000.L
$b mount -t 9p -o $shares,msize=524288,cache=loose,ro host /host || fail "cannot mount the host's files"
$b mount -t 9p -o $shares,msize=131072,cache=none control /control || fail "cannot mount the control folder"
$b mount -t tmpfs -o size=60% upper /overlay && $b mkdir /overlay/upper /overlay/work
$b mount -t overlay -o lowerdir=/host,upperdir=/overlay/upper,workdir=/overlay/work union /union ||
  fail "cannot mount the overlay"

$b mkdir -p /union/proc /union/sys /union/dev /union/tmp /union/run
for folder in proc sys dev; do
  $b mount --move /$folder /union/$folder
done
$b mknod /dev/null c 1 3
$b mkdir -p /union/dev/shm /union/dev/pts
$b mount -t tmpfs -o size=60% shm /union/dev/shm
$b mount -t devpts pts /union/dev/pts
$b mount -t tmpfs -o size=50% run /union/run
$b chmod 1777 /union/tmp /union/dev/shm
$b ln -sf /proc/self/fd /union/dev/fd
$b ln -sf /proc/self/fd/0 /union/dev/stdin
$b ln -sf /proc/self/fd/1 /union/dev/stdout
$b ln -sf /proc/self/fd/2 /union/dev/stderr

number=0
while read -r folder; do
  $b mkdir -p "/union$folder"
  $b mount -t 9p -o $shares,msize=524288,cache=mmap writable$number "/union$folder" || fail "cannot share $folder"
  number=$((number + 1))
done </control/writable

load rdma.list
$b mkdir -p /union/run/guest
$b cp /control/network /control/command /union/run/guest/
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp TERM=dumb
$b chroot /union /bin/sh /run/guest/network >/control/network.log 2>&1 || fail "network: $($b cat /control/network.log)"
$b cut -d' ' -f1 /union/proc/uptime >/control/up

tries=0
until [ -c /union/dev/vport0p1 ]; do
  tries=$((tries + 1))
  [ $tries -lt 100 ] || fail "no port for the output"
  $b sleep 0.05
done
$b mkfifo /pipe
$b cat /pipe >/union/dev/vport0p1 &
copier=$!
$b setsid $b chroot /union /bin/bash /run/guest/command </dev/null >/pipe 2>&1
echo $? >/control/exit_code
# What the command left running may still hold the pipe: 2 s for the rest of the output.
tries=0
while $b kill -0 $copier 2>/dev/null && [ $tries -lt 40 ]; do
  tries=$((tries + 1))
  $b sleep 0.05
done
$b cut -d' ' -f1 /union/proc/uptime >/control/end
$b sync
$b poweroff -f
