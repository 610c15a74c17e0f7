"""A store with a DRAM tier and an Ascend NPU tier: set up, put one key, get it back.

Wants a master on 127.0.0.1:50051, port 12345 free, and build/release/python on PYTHONPATH. Without an NPU:
scripts/with_npu_emulator.sh env PYTHONPATH=build/release/python /usr/bin/python3 examples/seed_example.py
"""
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
    local_hostname="127.0.0.1",
    metadata_server="P2PHANDSHAKE",
    tiered_backend_config_json=json.dumps(tiered_backend_config),
    local_buffer_size=16 * 1024 * 1024,
    protocol="tcp",
    rdma_devices="",
    master_server_addr="127.0.0.1:50051",
    client_rpc_port=12345,
    client_rpc_thread_num=16,
)

print("setup ret =", ret)
if ret != 0:
    raise SystemExit(1)

value = b"key and value bytes of one block" * 1024
print("put ret =", store.put("example/block0", value))
same = store.get("example/block0") == value
print("get returns what was put:", same)
store.close()
raise SystemExit(0 if same else 1)
