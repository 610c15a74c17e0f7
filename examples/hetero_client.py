"""One client of examples/hetero_cluster.sh: puts values and gets those of another client, from NPU or host memory.

hetero_client.py npu|dcu MASTER (put|get)=PREFIX...

npu: source and target of every call are device memory, which this file allocates with the ACL runtime as an inference engine would.
dcu: host memory; an ascend-off build is all it needs. "get" waits for the other client's keys. Exit code 0 only if every
byte was right.
"""
import ctypes
import os
import random
import sys
import time

from mooncake.store import MooncakeDistributedStore

KiB, MiB = 1 << 10, 1 << 20
# Small ones travel with the call that puts them, large ones are written into the owner's memory.
SIZES = [1, 4 * KiB, 100_001, 2 * MiB, 5 * MiB + 3, 16 * MiB]
WAIT_S = 100
RPC_FAIL = -900  # also of a call that has run out of its 10 s, on a machine as slow as an emulated one


def patiently(call):
    """Result of a call, which is repeated as long as it runs out of time."""
    deadline = time.monotonic() + WAIT_S
    code = call()
    while code == RPC_FAIL and time.monotonic() < deadline:
        code = call()
    return code


def value(key, size):
    return random.Random(f"{key}/{size}").randbytes(size)


class HostMemory:
    protocol = "rdma"

    def allocate(self, size):
        self._buffer = ctypes.create_string_buffer(size)
        return ctypes.addressof(self._buffer)

    def write(self, address, data):
        ctypes.memmove(address, data, len(data))

    def read(self, address, size):
        return ctypes.string_at(address, size)


class NpuMemory:
    protocol = "ascend_rdma"
    HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2

    def __init__(self):
        self._acl = ctypes.CDLL(os.environ.get("MC_ACL_LIBRARY", "libascendcl.so"))
        self._acl.aclInit(None)
        self._call("aclrtSetDevice", ctypes.c_int32(0))

    def _call(self, name, *arguments):
        code = getattr(self._acl, name)(*arguments)
        if code != 0:
            raise SystemExit(f"{name}: {code}")

    def allocate(self, size):
        address = ctypes.c_void_p()
        self._call("aclrtMalloc", ctypes.byref(address), ctypes.c_size_t(size), 0)
        return address.value

    def _copy(self, target, source, size, kind):
        size = ctypes.c_size_t(size)
        self._call("aclrtMemcpy", target, size, source, size, kind)

    def write(self, address, data):
        self._copy(ctypes.c_void_p(address), ctypes.c_char_p(data), len(data), self.HOST_TO_DEVICE)

    def read(self, address, size):
        data = ctypes.create_string_buffer(size)
        self._copy(data, ctypes.c_void_p(address), size, self.DEVICE_TO_HOST)
        return data.raw


class Client:
    def __init__(self, memory, master):
        self._memory = memory
        self._store = MooncakeDistributedStore()
        code = self._store.setup(local_hostname="127.0.0.1", metadata_server="P2PHANDSHAKE", global_segment_size=0,
                                 local_buffer_size=0, protocol=memory.protocol, rdma_devices="",
                                 master_server_addr=master)
        if code != 0:
            raise SystemExit(f"setup with protocol {memory.protocol}: {code}")
        self._buffer = memory.allocate(max(SIZES))
        if self._store.register_buffer(self._buffer, max(SIZES)) != 0:
            raise SystemExit("register_buffer failed")

    def put(self, prefix):
        for size in SIZES:
            key = f"{prefix}/{size}"
            self._memory.write(self._buffer, value(key, size))
            code = patiently(lambda: self._store.put_from(key, self._buffer, size))
            if code != 0:
                raise SystemExit(f"put of {key}: {code}")

    def get(self, prefix):
        deadline = time.monotonic() + WAIT_S
        for size in SIZES:
            key = f"{prefix}/{size}"
            while self._store.is_exist(key) != 1:
                if time.monotonic() > deadline:
                    raise SystemExit(f"nobody put {key}")
                time.sleep(0.02)  # the store tells nobody of new keys
            self._memory.write(self._buffer, bytes(size))
            code = patiently(lambda: self._store.get_into(key, self._buffer, size))
            if code != size:
                raise SystemExit(f"get of {key}: {code}")
            if self._memory.read(self._buffer, size) != value(key, size):
                raise SystemExit(f"get of {key}: other bytes than were put")

    def close(self):
        self._store.unregister_buffer(self._buffer)
        self._store.close()


def main(role, master, *steps):
    if role not in ("npu", "dcu"):
        raise SystemExit(f"role {role}: npu or dcu")
    client = Client(NpuMemory() if role == "npu" else HostMemory(), master)
    for step in steps:
        what, prefix = step.split("=")
        {"put": client.put, "get": client.get}[what](prefix)
        print(f"{role}: {what} {prefix}: {len(SIZES)} values of 1 B to {max(SIZES) // MiB} MiB right", flush=True)
    client.close()


if __name__ == "__main__":
    if len(sys.argv) < 4:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
