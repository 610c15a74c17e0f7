"""Set-up: arguments, configuration errors, ports, the master's absence."""
import socket
import urllib.request

import pytest
from conftest import SETUP_DEFAULTS, free_port, run_python, start_python
from mooncake.store import MooncakeDistributedStore

INVALID = -600
NOT_BUILT = -2
RPC_FAIL = -900
DRAM = '{"tiers": [{"type": "DRAM", "capacity": "16MB", "priority": 10}]}'

POSITIONAL = ("127.0.0.1", "P2PHANDSHAKE", 16 << 20, 0, "tcp", "")
P2P_POSITIONAL = ("127.0.0.1", "P2PHANDSHAKE", DRAM, 0, "tcp", "")


@pytest.fixture
def store():
    store = MooncakeDistributedStore()
    yield store
    store.close()


def test_seven_positional_arguments(master, store):
    assert store.setup(*POSITIONAL, master.address) == 0
    assert store.health_check() == 0


def test_contract_keywords_at_their_defaults(master, store):
    assert store.setup(*POSITIONAL, master.address, None, enable_offload=False, enable_ssd_offload=False,
                       ssd_offload_path="", tenant_id="default", enable_client_http_server=False, client_http_port=9300,
                       runtime_config="", enable_metric_collection=True, metric_report_interval_seconds=60,
                       heartbeat_rpc_port=0) == 0


P2P_ALL = {
    "client_rpc_port": 0, "client_rpc_thread_num": 16, "lock_shard_count": 1024, "route_cache_max_memory": 314572800,
    "route_cache_ttl_ms": 60000, "local_transfer_mode": "te", "local_memcpy_async_worker_num": 32, "http_port": 9003,
    "enable_http_server": True, "async_sender_thread_count": 4, "async_max_batch_size": 2000,
    "async_route_queue_size": 0, "p2p_key_lease_duration_ms": 5000, "p2p_key_lease_scan_interval_ms": 1000,
    "p2p_transfer_direction_mode": "reverse", "engine": None, "runtime_config": "", "enable_metric_collection": True,
    "metric_report_interval_seconds": 60, "heartbeat_rpc_port": 0,
}


def test_all_27_parameters_by_name_and_by_position(master):
    by_name, by_position = MooncakeDistributedStore(), MooncakeDistributedStore()
    try:
        assert by_name.setup_p2p_real_client(
            local_hostname="127.0.0.1", metadata_server="P2PHANDSHAKE", tiered_backend_config_json=DRAM,
            local_buffer_size=16 << 20, protocol="tcp", rdma_devices="", master_server_addr=master.address,
            **{**P2P_ALL, "http_port": free_port()}) == 0
        assert by_position.setup_p2p_real_client(*P2P_POSITIONAL, master.address,
                                                 *{**P2P_ALL, "http_port": free_port()}.values()) == 0
        assert by_name.put("key", b"v") == 0
        assert by_position.get("key") == b"v"
    finally:
        by_name.close()
        by_position.close()


def test_dict_forms(master, store):
    config = {"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "master_server_addr": master.address,
              "global_segment_size": "16MB", "enable_http_server": "off", "engine": None, "wait": "3"}
    assert store.setup(config) == 0
    assert store.put("key", b"v") == 0
    store.close()
    config = {"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "master_server_addr": master.address,
              "tiered_backend_config": DRAM, "rpc_thread_num": 2, "client_rpc_port": "0", "enable_http_server": False,
              "route_cache_max_memory_bytes": 1 << 20, "redis_cluster_id": "c"}
    assert store.setup_p2p_real_client(config=config) == 0
    assert store.put("key", b"v") == 0


@pytest.mark.parametrize("call", ["setup", "setup_p2p_real_client"])
def test_incomplete_dict_is_invalid(store, call, capfd):
    assert getattr(store, call)({}) == INVALID
    assert getattr(store, call)({"local_hostname": "127.0.0.1"}) == INVALID
    assert "lacks 'metadata_server'" in capfd.readouterr().err


def test_dict_with_bad_values(store, capfd):
    good = {"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE"}
    assert store.setup({**good, "global_segment_size": "many"}) == INVALID
    assert store.setup({**good, "http_port": "-1"}) == INVALID
    assert store.setup({**good, "enable_http_server": "perhaps"}) == INVALID
    err = capfd.readouterr().err
    assert "global_segment_size" in err and "http_port" in err and "perhaps" in err
    with pytest.raises(TypeError, match="no_such_key"):
        store.setup({**good, "no_such_key": 1})
    with pytest.raises(TypeError, match="http_port"):
        store.setup({**good, "http_port": [9003]})


def test_unknown_keyword_is_named_and_no_other(store):
    for call, positional in ((store.setup, POSITIONAL), (store.setup_p2p_real_client, P2P_POSITIONAL)):
        with pytest.raises(TypeError) as error:
            call(*positional, "127.0.0.1:1", no_such_keyword=1)
        assert str(error.value).endswith("got an unexpected keyword argument 'no_such_keyword'")


def test_wrong_arguments_are_type_errors(store):
    for call in [
        lambda: store.setup(),
        lambda: store.setup(*POSITIONAL),
        lambda: store.setup(*POSITIONAL, "127.0.0.1:1", local_hostname="again"),
        lambda: store.setup(*POSITIONAL, "127.0.0.1:1", None, 1, 2),
        lambda: store.setup(*POSITIONAL[:2], "16MB", *POSITIONAL[3:], "127.0.0.1:1"),
        lambda: store.setup(*POSITIONAL[:2], -1, *POSITIONAL[3:], "127.0.0.1:1"),
        lambda: store.setup(None, *POSITIONAL[1:], "127.0.0.1:1"),
        lambda: store.setup(*POSITIONAL, "127.0.0.1:1", enable_http_server="yes"),
        lambda: store.setup(config=5),
        lambda: store.setup_p2p_real_client(*P2P_POSITIONAL),
    ]:
        with pytest.raises(TypeError):
            call()


@pytest.mark.parametrize("changes", [
    {"engine": object()}, {"enable_offload": True}, {"enable_ssd_offload": True}, {"tenant_id": "t"},
    {"runtime_config": "{}"},
])
def test_what_is_not_built_is_refused_by_name(store, changes, capfd):
    assert store.setup(**{**SETUP_DEFAULTS, "master_server_addr": "127.0.0.1:1", **changes}) == NOT_BUILT
    assert next(iter(changes)) in capfd.readouterr().err


@pytest.mark.parametrize("changes", [
    {"master_server_addr": "127.0.0.1:notaport"}, {"master_server_addr": "redis://127.0.0.1:6379"}, {"http_port": 70000}, {"client_rpc_port": 65536},
    {"client_rpc_thread_num": 0}, {"lock_shard_count": 0}, {"async_max_batch_size": 0},
])
def test_values_out_of_range_are_invalid(store, changes, capfd):
    arguments = dict(zip(("local_hostname", "metadata_server", "tiered_backend_config_json", "local_buffer_size",
                          "protocol", "rdma_devices"), P2P_POSITIONAL))
    assert store.setup_p2p_real_client(**{**arguments, "master_server_addr": "127.0.0.1:1", **changes}) == INVALID
    assert str(next(iter(changes.values()))) in capfd.readouterr().err


def test_values_without_effect_are_named_once(master, store, capfd):
    assert store.setup_p2p_real_client(*P2P_POSITIONAL, master.address, client_rpc_port=0, enable_http_server=False,
                                       route_cache_ttl_ms=5, heartbeat_rpc_port=7) == 0
    lines = [line for line in capfd.readouterr().err.splitlines() if "without effect" in line]
    assert len(lines) == 1 and "route_cache_ttl_ms, heartbeat_rpc_port" in lines[0]


# --- tier configuration ---

@pytest.mark.parametrize("config, parts", [
    ('{"tiers": [{"type": "DRAM",\n "capacitty": 5}]}', [":2:", "capacitty", "capacity"]),
    ('{"tiers": [{"type": "DRAM", "capacity": -5}]}', [":1:", "$.tiers[0].capacity"]),
    ('{"tiers": [', [":1:"]),
    ("/no/such/file.json", ["/no/such/file.json"]),
])
def test_bad_tier_configuration_raises_with_its_place(store, config, parts):
    with pytest.raises(RuntimeError) as error:
        store.setup_p2p_real_client("127.0.0.1", "P2PHANDSHAKE", config, 0, "tcp", "", "127.0.0.1:1")
    for part in parts:
        assert part in str(error.value)
    assert store.health_check() == 1


@pytest.mark.parametrize("name", ["local_transfer_mode", "p2p_transfer_direction_mode"])
def test_bad_mode_word_raises(store, name):
    with pytest.raises(RuntimeError, match=name):
        store.setup_p2p_real_client(*P2P_POSITIONAL, "127.0.0.1:1", **{name: "sideways"})


def test_empty_configuration_comes_from_the_environment(master, store, monkeypatch):
    monkeypatch.setenv("MOONCAKE_TIRED_CONFIG", DRAM)
    monkeypatch.setenv("MOONCAKE_TIERED_CONFIG", "/no/such/file")
    arguments = ("127.0.0.1", "P2PHANDSHAKE", "", 0, "tcp", "", master.address, 0)
    assert store.setup_p2p_real_client(*arguments, enable_http_server=False) == 0
    store.close()
    monkeypatch.delenv("MOONCAKE_TIRED_CONFIG")
    with pytest.raises(RuntimeError, match="/no/such/file"):
        store.setup_p2p_real_client(*arguments)


def test_configuration_from_a_file_and_from_the_default_path(master, tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/tiered_backend.json").write_text("// comment\n" + DRAM)
    code = """
import sys
from mooncake.store import MooncakeDistributedStore
common = dict(local_hostname="127.0.0.1", metadata_server="P2PHANDSHAKE", master_server_addr=sys.argv[1],
              client_rpc_port=0, enable_http_server=False)
for given in ({}, {"tiered_backend_config": "conf/tiered_backend.json"}):
    store = MooncakeDistributedStore()
    assert store.setup_p2p_real_client({**common, **given}) == 0
    assert store.put("key", b"v") == 0
    store.close()
"""
    result = run_python(code, master.address, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


# --- master ---

def test_absent_master_is_a_code_and_a_reason(store, capfd):
    port = free_port()
    assert store.setup(*POSITIONAL, f"127.0.0.1:{port}", wait=0) == RPC_FAIL
    err = capfd.readouterr().err
    assert err.count("setup: RPC_FAIL (-900)") == 1 and str(port) in err
    assert store.health_check() == 1
    assert store.put("key", b"v") == INVALID


def test_set_up_waits_for_a_master_that_starts_later(start_master, store):
    port = free_port()
    waiting = start_python("""
import sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
print("waiting", flush=True)
print(store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", sys.argv[1], enable_http_server=False, wait=60), flush=True)
""", f"127.0.0.1:{port}")
    assert waiting.stdout.readline() == "waiting\n"
    start_master(port=port)
    assert waiting.communicate(timeout=60)[0] == "0\n"


def test_lost_and_returning_master(start_master, open_store):
    master = start_master()
    store = open_store(master)
    assert store.put("key", b"v") == 0
    master.kill()
    store.put("during", b"v")
    assert store.health_check() == 2
    assert store.get("key") == b"v"
    other = open_store(start_master(port=int(master.address.split(":")[1])), global_segment_size=0)
    while other.get("key") != b"v" or other.get("during") != b"v":  # both are announced anew; pytest's time-out bounds it
        pass
    assert store.health_check() == 0


# --- ports and names ---

def test_hostname_of_plain_setup(master, open_store):
    host, port = open_store(master, local_hostname="localhost").get_hostname().split(":")
    assert host == "localhost" and 12300 <= int(port) <= 14300


def test_port_of_the_hostname_is_used(master, open_store):
    name = f"127.0.0.1:{free_port()}"
    assert open_store(master, local_hostname=name).get_hostname() == name


def test_taken_port_is_an_error_that_names_it(master, store, capfd):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert store.setup_p2p_real_client(*P2P_POSITIONAL, master.address, port, enable_http_server=False) < 0
        assert str(port) in capfd.readouterr().err
        assert store.setup_p2p_real_client(*P2P_POSITIONAL, master.address, 0, http_port=port) < 0
        assert str(port) in capfd.readouterr().err
    assert store.setup_p2p_real_client(*P2P_POSITIONAL, master.address, port, enable_http_server=False) == 0
    assert store.get_hostname() == f"127.0.0.1:{port}"


def test_ports_are_free_again_after_close(master, store):
    port, http_port = free_port(), free_port()
    for _ in range(3):
        assert store.setup_p2p_real_client(*P2P_POSITIONAL, master.address, port, http_port=http_port) == 0
        with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/health", timeout=10) as reply:
            assert reply.read().strip() in (b"FULL", b"SYNCING")
        store.put("key", b"v")
        kept = store.get_buffer("key")
        assert store.close() == 0
        assert bytes(kept) == b"v"


def test_default_http_port_moves_on(master, open_store):
    stores = [open_store(master, global_segment_size=0, enable_http_server=True) for _ in range(3)]
    assert all(store.health_check() == 0 for store in stores)


