"""NPU tiers and NPU pointers, on the emulated runtime."""
import json
import urllib.request

import numpy as np
import pytest
from conftest import free_port, run_python
from mooncake.store import MooncakeDistributedStore
from npu import Npu

MiB = 1 << 20
# The configuration of the feature's own document, comments included.
NPU_ONLY = """{
    "tiers": [
        {
            "type": "ASCEND_NPU",
            "capacity": 536870912,      // 512MB
            "priority": 100,            // 优先级，数值越大优先级越高
            "device_id": 0,             // Ascend设备ID
            "tags": ["npu", "fast"]     // 可选标签
        }
    ]
}"""
BOTH = [{"type": "DRAM", "capacity": 16 * MiB, "priority": 10},
        {"type": "ASCEND_NPU", "capacity": 32 * MiB, "priority": 100, "device_id": 0, "tags": ["npu", "fast"]}]


def pattern(size, seed=3):
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8).tobytes()


def test_npu_only_configuration_serves_locally_and_to_others(master, open_p2p_store, open_store):
    owner = open_p2p_store(master, NPU_ONLY)
    reader = open_store(master, global_segment_size=0)
    for size in (0, 1, 4096, 3 * MiB + 5):
        key, value = f"key {size}", pattern(size)
        assert owner.put(key, value) == 0
        assert reader.put(f"remote {size}", value) == 0
        for store in (owner, reader):
            for name in (key, f"remote {size}"):
                assert store.get(name) == value
                assert store.get_size(name) == size
                assert bytes(store.get_buffer(name)) == value
                target = np.zeros(size + 8, dtype=np.uint8)
                assert store.get_into(name, target.ctypes.data, target.nbytes) == size
                assert target[:size].tobytes() == value
    assert reader.remove("key 1") == 0
    assert owner.is_exist("key 1") == 0


@pytest.mark.parametrize("tiers", ["dram", "npu", "none"])
def test_npu_pointers_in_from_and_into(master, open_store, open_p2p_store, tiers):
    opened = open_p2p_store(master, NPU_ONLY)  # brings the runtime up, and serves the client that has no tiers
    npu = Npu()
    store = {"dram": lambda: open_store(master), "npu": lambda: opened,
             "none": lambda: open_store(master, global_segment_size=0)}[tiers]()
    size = 2 * MiB + 3
    value = pattern(size)
    source, target = npu.allocate(size), npu.allocate(size)
    try:
        npu.write(source, value)
        assert store.register_buffer(source, size) == 0
        assert store.put_from("one", source, size) == 0
        assert store.batch_put_from(["a", "b"], [source, source + 4096], [4096, 5000]) == [0, 0]
        assert store.get("one") == value and store.get("a") == value[:4096] and store.get("b") == value[4096:9096]
        assert store.get_into("one", target, size) == size
        assert npu.read(target, size) == value
        assert store.batch_get_into(["b", "none", "a"], [target, target, target + 8192], [5000, 9, 4096]) == [5000, -704, 4096]
        assert npu.read(target, 5000) == value[4096:9096]
        assert npu.read(target + 8192, 4096) == value[:4096]
        assert store.unregister_buffer(source) == 0
        assert store.get_into("a", target, 4095) == -600
    finally:
        npu.free(source)
        npu.free(target)


def test_npu_pointers_of_a_process_without_npu_tiers(master):
    """As in an engine with its own runtime and a store of DRAM: nothing of the product has opened the runtime."""
    result = run_python("""
import sys
from mooncake.store import MooncakeDistributedStore
from npu import Npu
npu = Npu()
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", 16 << 20, 0, "tcp", "", sys.argv[1], enable_http_server=False) == 0
address = npu.allocate(5000)
npu.write(address, b"x" * 5000)
assert store.put_from("key", address, 5000) == 0
npu.write(address, b"y" * 5000)
assert store.get_into("key", address, 5000) == 5000
assert npu.read(address, 5000) == store.get("key") == b"x" * 5000
npu.free(address)
""", master.address)
    assert result.returncode == 0, result.stderr


def test_blocks_move_from_npu_to_dram_when_the_npu_is_full(master, open_p2p_store):
    store = open_p2p_store(master, BOTH)
    values = {f"key{i}": pattern(MiB, i) for i in range(40)}
    for key, value in values.items():
        assert store.put(key, value) == 0
    assert store.get_batch(list(values)) == list(values.values())


def bytes_lent(port):
    """What peers have moved through the slots of the owner's NPU."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
        lines = reply.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines
               if line.startswith("mooncake_npu_bridge_bytes_total") and 'role="target"' in line)


# A client that knows nothing of NPUs; each size of its values goes another way where the owner lends.
@pytest.mark.parametrize("protocol", ["ascend_rdma", "tcp"])
def test_large_blocks_of_an_npu_tier_are_moved_through_lent_slots(start, master, open_store, protocol):
    http_port = free_port()
    tiers = {"tiers": [{"type": "ASCEND_NPU", "capacity": 64 * MiB, "priority": 1}]}
    start("mooncake_client", "--host=127.0.0.1", "--port=0", f"--client_rpc_port={free_port()}",
          f"--http_port={http_port}", f"--tiered_backend_config={json.dumps(tiers)}", f"--protocol={protocol}",
          f"--master_server_address={master.address}", ready="ready")
    plain = open_store(master, global_segment_size=0)
    sizes = (4096, 4 * MiB, 9 * MiB + 3, 20 * MiB)
    for size in sizes:
        assert plain.put(str(size), pattern(size)) == 0
    for size in sizes:
        assert plain.get(str(size)) == pattern(size)
    large = sum(size for size in sizes if size > 4 * MiB)
    assert bytes_lent(http_port) == (2 * large if protocol == "ascend_rdma" else 0)


def test_handle_of_an_npu_object_outlives_key_and_store(master, open_p2p_store):
    store = open_p2p_store(master, NPU_ONLY)
    value = pattern(MiB)
    assert store.put("key", value) == 0
    handle = store.get_buffer("key")
    store.remove("key")
    store.close()
    assert bytes(handle) == value


def test_absent_device_is_an_error_that_names_it(master, capfd):
    store = MooncakeDistributedStore()
    config = '{"tiers": [{"type": "ASCEND_NPU", "capacity": 1048576, "priority": 1, "device_id": 99}]}'
    assert store.setup_p2p_real_client("127.0.0.1", "P2PHANDSHAKE", config, 0, "tcp", "", master.address, 0) < 0
    assert "99" in capfd.readouterr().err


# As printed in the feature's document, but for addresses and ports.
EXAMPLE = """
from mooncake.store import MooncakeDistributedStore
import json

store = MooncakeDistributedStore()

tiered_backend_config = {
    "tiers": [
        {
            "type": "DRAM",
            "capacity": 64 * 1024 * 1024,
            "priority": 10
        },
        {
            "type": "ASCEND_NPU",
            "capacity": 512 * 1024 * 1024,
            "priority": 100,
            "device_id": 0,
            "tags": ["npu", "fast"]
        }
    ]
}

ret = store.setup_p2p_real_client(
    local_hostname="HOST",
    metadata_server="P2PHANDSHAKE",
    tiered_backend_config_json=json.dumps(tiered_backend_config),
    local_buffer_size=16 * 1024 * 1024,
    protocol="tcp",
    rdma_devices="",
    master_server_addr="MASTER",
    client_rpc_port=PORT,
    client_rpc_thread_num=16,
)

print("setup ret =", ret)
"""


def test_example_of_the_document(master):
    code = EXAMPLE.replace("HOST", "127.0.0.1").replace("MASTER", master.address).replace("PORT", str(free_port()))
    result = run_python(code)
    assert (result.returncode, result.stdout) == (0, "setup ret = 0\n"), result.stderr
