"""NPU memory for tests, through the same runtime library as the product's."""
import ctypes
import os

HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2


class Npu:
    """One device of the process; every call checks its code."""

    def __init__(self, device=0):
        self._acl = ctypes.CDLL(os.environ["MC_ACL_LIBRARY"])
        self._acl.aclInit(None)  # may have been called before in this process
        self._device = device
        self._call("aclrtSetDevice", ctypes.c_int32(device))

    def _call(self, name, *args):
        code = getattr(self._acl, name)(*args)
        assert code == 0, f"{name}: {code}"

    def allocate(self, size):
        address = ctypes.c_void_p()
        self._call("aclrtMalloc", ctypes.byref(address), ctypes.c_size_t(size), 0)
        return address.value

    def free(self, address):
        self._call("aclrtFree", ctypes.c_void_p(address))

    def write(self, address, data):
        self._call("aclrtMemcpy", ctypes.c_void_p(address), ctypes.c_size_t(len(data)), ctypes.c_char_p(bytes(data)),
                   ctypes.c_size_t(len(data)), HOST_TO_DEVICE)

    def read(self, address, size):
        target = ctypes.create_string_buffer(size)
        self._call("aclrtMemcpy", target, ctypes.c_size_t(size), ctypes.c_void_p(address), ctypes.c_size_t(size),
                   DEVICE_TO_HOST)
        return target.raw
