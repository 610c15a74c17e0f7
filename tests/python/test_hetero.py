"""A store for clients with and without an NPU: the example, and what the engine module says about the bridge."""
import os
import subprocess

import numpy as np
import pytest
from conftest import BUILD, ROOT, run_python
from mooncake.engine import TransferEngine
from npu import Npu

MiB = 1 << 20


# A build with every USE_ASCEND_* option OFF, which plays the client that has never heard of NPUs.
OFF_BUILD = os.environ.get("MC_ASCEND_OFF_BUILD_DIR")


@pytest.mark.parametrize("dcu_build", [BUILD, OFF_BUILD], ids=["same_build", "without_ascend"])
def test_clients_of_both_kinds_exchange_values_through_one_store(dcu_build):
    if dcu_build is None:
        pytest.skip("MC_ASCEND_OFF_BUILD_DIR names no build of the preset ascend-off; run_tests.sh --ci makes one")
    environment = {name: value for name, value in os.environ.items() if name != "MC_ACL_LIBRARY"}
    result = subprocess.run([ROOT / "examples/hetero_cluster.sh", "--build", BUILD, "--dcu-build", dcu_build],
                            capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment, timeout=200)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "all bytes right" in result.stdout
    assert ("no Ascend code" in result.stdout) == (dcu_build == OFF_BUILD)
    for line in ("npu: put from-npu", "dcu: get from-npu", "dcu: put from-dcu", "npu: get from-dcu", "npu: get both-dcu",
                 "dcu: get both-npu"):
        assert line in result.stdout, line


@pytest.fixture
def engines(monkeypatch):
    monkeypatch.setenv("MC_NO_SAME_HOST", "1")
    with_npu, plain = TransferEngine(), TransferEngine()
    assert with_npu.initialize("127.0.0.1", "P2PHANDSHAKE", "ascend_rdma", "") == 0
    assert plain.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    return with_npu, plain


def test_npu_memory_reaches_a_plain_peer_and_back(engines):
    with_npu, plain = engines
    peer = f"127.0.0.1:{plain.get_rpc_port()}"
    npu = Npu()
    size = 5 * MiB + 7
    value = np.random.default_rng(5).integers(0, 256, size, dtype=np.uint8)
    remote, host = np.zeros(size, dtype=np.uint8), np.zeros(size, dtype=np.uint8)
    assert plain.register_memory(remote.ctypes.data, size) == 0
    assert with_npu.register_memory(host.ctypes.data, size) == 0
    source, target = npu.allocate(size), npu.allocate(size)
    try:
        npu.write(source, value.tobytes())
        assert with_npu.batch_register_memory([source, target], [size, size]) == 0
        write, read = TransferEngine.TransferOpcode.Write, TransferEngine.TransferOpcode.Read
        said = with_npu.explain(peer, source, remote.ctypes.data, size, write)
        assert "memory of NPU 0" in said and "ascend_rdma over tcp" in said, said
        assert "ascend_rdma" not in with_npu.explain(peer, host.ctypes.data, remote.ctypes.data, size, read)
        assert "ADDRESS_NOT_REGISTERED" in with_npu.explain(peer, source, 4096, 1, read)
        assert with_npu.transfer_sync_write(peer, source, remote.ctypes.data, size) == 0
        assert (remote == value).all()
        # Host and NPU memory in one call.
        assert with_npu.batch_transfer_sync_read(peer, [target, host.ctypes.data], [remote.ctypes.data] * 2,
                                                 [size, size]) == 0
        assert npu.read(target, size) == value.tobytes()
        assert (host == value).all()
        assert with_npu.batch_unregister_memory([source, target]) == 0
    finally:
        npu.free(source)
        npu.free(target)


def test_protocol_without_an_npu_is_refused():
    result = run_python("""
from mooncake.engine import TransferEngine
print(TransferEngine().initialize("127.0.0.1", "P2PHANDSHAKE", "ascend_rdma", ""))
print(TransferEngine().initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""))
""", env={"MC_ACL_LIBRARY": "/nowhere/libascendcl.so"})
    assert result.stdout.split() == ["-1", "0"], result.stderr
    assert "ascend_rdma" in result.stderr and "/nowhere/libascendcl.so" in result.stderr
