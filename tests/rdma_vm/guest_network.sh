# Makes the guest's RDMA devices rxe0..rxe($devices - 1), in pairs on veth pairs. Runs in the guest, in the overlay.
# shellcheck shell=sh
: "${devices:?}"

# Both ends of a pair live in one network namespace, as the driver knows no other: packets must take the wire all the
# same, and not the short cut through the loopback device.
for scope in all default; do
  echo 1 >/proc/sys/net/ipv4/conf/$scope/accept_local
  echo 0 >/proc/sys/net/ipv4/conf/$scope/rp_filter
  echo 1 >/proc/sys/net/ipv4/conf/$scope/arp_ignore
  echo 2 >/proc/sys/net/ipv4/conf/$scope/arp_announce
  echo 0 >/proc/sys/net/ipv6/conf/$scope/accept_dad 2>/dev/null
done

make_pair() {
  ip link add "veth$1" mtu 9000 type veth peer name "veth$2" mtu 9000 || exit 1
  ip addr add "10.77.$3.1/24" dev "veth$1" && ip link set "veth$1" up || exit 1
  ip addr add "10.77.$3.2/24" dev "veth$2" && ip link set "veth$2" up || exit 1
  # No ARP: it would cost the first connection seconds.
  ip neigh replace "10.77.$3.2" lladdr "$(cat "/sys/class/net/veth$2/address")" dev "veth$1" nud permanent
  ip neigh replace "10.77.$3.1" lladdr "$(cat "/sys/class/net/veth$1/address")" dev "veth$2" nud permanent
}

# The GID of the IPv4 address comes a moment after the device.
await_device() {
  tries=0
  until grep -q ffff:0a4d "/sys/class/infiniband/$1/ports/1/gids/"* 2>/dev/null &&
    grep -q ACTIVE "/sys/class/infiniband/$1/ports/1/state"; do
    tries=$((tries + 1))
    [ $tries -lt 200 ] || { echo "$1 does not come up"; exit 1; }
    sleep 0.05
  done
}

ip link set lo up
hostname guest 2>/dev/null
number=0
while [ $number -lt "$devices" ]; do
  make_pair $number $((number + 1)) $((number / 2))
  number=$((number + 2))
done
number=0
while [ $number -lt "$devices" ]; do
  rdma link add rxe$number type rxe netdev veth$number || exit 1
  number=$((number + 1))
done
number=0
while [ $number -lt "$devices" ]; do
  await_device rxe$number
  number=$((number + 1))
done
exit 0
