"""What users, operators and strangers get wrong: each costs one clear line, nothing hangs, nothing is corrupted."""
import ctypes
import json
import mmap
import os
import socket
import subprocess
import urllib.error
import urllib.request

import pytest

from conftest import BUILD, ROOT, free_port, start_python

DRAM = '{"tiers":[{"type":"DRAM","capacity":"16MB","priority":1}]}'
TRACE = ROOT / "examples/conversation_trace_500.jsonl"


def client_flags(*flags, config=DRAM):
    return ["--host=127.0.0.1", "--port=0", f"--client_rpc_port={free_port()}", "--http_port=0",
            f"--tiered_backend_config={config}", *flags]


def refusal(program):
    """The one line a program that refuses to start prints."""
    assert program.wait() not in (0, -6, -11)
    lines = program.output.splitlines()
    assert len(lines) == 1, program.output
    return lines[0]


@pytest.mark.parametrize("flag", ["--rpc_thread_num=-1", "--rpc_thread_num=1000000", "--max_threads=0",
                                  "--max_threads=-1", "--rpc_address="])
def test_master_refuses_a_value_and_names_its_flag(start, flag):
    line = refusal(start("mooncake_master", "--rpc_address=127.0.0.1", "--metrics_port=0", flag))
    assert flag.partition("=")[0] in line


@pytest.mark.parametrize("flag", ["--threads=0", "--threads=-1", "--threads=1000000", "--lock_shard_count=1000000000",
                                  "--rpc_thread_num=1000000", "--port=-1", "--port=70000"])
def test_client_refuses_a_value_before_anything_starts(start, flag):
    line = refusal(start("mooncake_client", *client_flags(flag)))
    assert flag.partition("=")[0] in line


@pytest.mark.parametrize("address", ["127.0.0.1:0", "http://127.0.0.1:50051", "redis://127.0.0.1:6379"])
def test_client_refuses_a_master_address_that_cannot_be_one(start, address):
    assert address in refusal(start("mooncake_client", *client_flags(f"--master_server_address={address}")))


@pytest.mark.parametrize("flag", ["port", "client_rpc_port"])
def test_taken_port_is_named_with_its_flag_and_nothing_stays_registered(start, master, flag):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        program = start("mooncake_client", *client_flags(f"--{flag}={number}", f"--master_server_address={master.address}"))
        assert program.wait() == 1
    assert f"{flag} {number}: cannot listen" in program.output.splitlines()[-1]
    http = int(master.wait_for(r"http 127\.0\.0\.1:(\d+)").group(1))
    with urllib.request.urlopen(f"http://127.0.0.1:{http}/get_all_segments") as reply:
        assert reply.read() == b""


def test_master_reports_its_clients_and_keys(start, master):
    http = int(master.wait_for(r"http 127\.0\.0\.1:(\d+)").group(1))

    def ask(path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{http}{path}") as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    start("mooncake_client", *client_flags(f"--master_server_address={master.address}"), ready="registered")
    tiers = json.loads(ask("/tiers")[1])
    assert [tier["capacity"] for client in tiers["clients"] for tier in client["tiers"]] == [16 << 20]
    assert tiers["clients"][0]["suspect"] is False and tiers["key_count"] == 0
    assert "Clients: 1 " in ask("/metrics/summary")[1]
    assert ask("/role") == (200, "leader\n") and ask("/leader") == (200, f"{master.address}\n")
    assert ask("/query_key?key=nobody")[0] == 404
    assert json.loads(ask("/batch_query_keys?keys=a,,b")[1])["data"] == {
        "a": {"ok": False, "values": []}, "b": {"ok": False, "values": []}}
    for path in ("/query_key", "/query_key?key=", "/query_key?k=a", "/batch_query_keys", "/batch_query_keys?keys="):
        assert ask(path)[0] == 400, path


@pytest.mark.parametrize("flags", [["--enable_ha"], ["--etcd_endpoints=127.0.0.1:2379"],
                                   ["--enable_ha", "--etcd_endpoints=127.0.0.1:x"],
                                   ["--enable_ha", "--etcd_endpoints=127.0.0.1:1", "--election_backend=redis"],
                                   ["--enable_ha", "--etcd_endpoints=127.0.0.1:1", "--cluster_id="]])
def test_master_refuses_an_election_that_cannot_be_held(start, flags):
    line = refusal(start("mooncake_master", "--rpc_address=127.0.0.1", "--port=0", "--metrics_port=0", *flags))
    assert "etcd" in line or "cluster_id" in line


def test_fraction_of_a_byte_is_no_capacity(start):
    config = '{"tiers":[{"type":"DRAM","capacity":"1.5","priority":1}]}'
    assert "$.tiers[0].capacity" in refusal(start("mooncake_client", *client_flags(config=config)))


def test_pipe_nobody_writes_to_is_refused_as_configuration(start, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert str(pipe) in refusal(start("mooncake_client", *client_flags(config=pipe)))


def test_configuration_is_read_from_a_pipe():
    command = f"exec {BUILD}/bin/mooncake_client {' '.join(client_flags(config='')[:-1])} --tiered_backend_config <(echo '{DRAM}')"
    process = subprocess.Popen(["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert "ready" in process.stdout.readline()
    finally:
        process.terminate()
        process.wait(20)


def test_unknown_log_level_is_said(start):
    program = start("mooncake_client", *client_flags(), ready="ready", env={"MC_LOG_LEVEL": "loud"})
    program.stop()
    assert "MC_LOG_LEVEL='loud'" in program.output


def test_client_with_closed_streams_keeps_them_off_its_descriptors(master):
    port = free_port()
    flags = [flag for flag in client_flags() if not flag.startswith("--client_rpc_port")]
    process = subprocess.Popen(["bash", "-c", 'exec "$@" <&- >&- 2>&-', "_", BUILD / "bin/mooncake_client", *flags,
                                f"--client_rpc_port={port}", f"--master_server_address={master.address}"])
    try:
        http = int(master.wait_for(r"http 127\.0\.0\.1:(\d+)").group(1))
        while f"127.0.0.1:{port} " not in urllib.request.urlopen(f"http://127.0.0.1:{http}/get_all_segments").read().decode():
            assert process.poll() is None  # pytest's time-out bounds it
        for fd in range(3):
            assert os.readlink(f"/proc/{process.pid}/fd/{fd}") == "/dev/null"
    finally:
        process.terminate()
        process.wait(20)


def test_store_in_a_process_without_streams_keeps_its_bytes(master):
    code = """
import os, sys
from mooncake.store import MooncakeDistributedStore
out = os.dup(1)
for fd in range(3): os.close(fd)
store = MooncakeDistributedStore()
assert store.setup_p2p_real_client("127.0.0.1", "P2PHANDSHAKE", sys.argv[2], 0, "tcp", "", sys.argv[1], client_rpc_port=0,
                                   enable_http_server=False) == 0
value = bytes(range(256)) * 4096
assert store.put("key", value) == 0
for _ in range(8): store.get_into("key", 1, 1)          # each logs a line, or tries to
names = [os.readlink(f"/proc/self/fd/{fd}") for fd in range(3) if os.path.exists(f"/proc/self/fd/{fd}")]
os.write(out, b"kept" if store.get("key") == value and not any("memfd" in name for name in names) else b"lost")
os._exit(0)
"""
    process = start_python(code, master.address, DRAM)
    output, _ = process.communicate(timeout=60)
    assert output == "kept"


def test_replay_says_at_once_that_its_result_file_cannot_be_written(start, tmp_path):
    program = start("mooncake_replay", f"--trace={TRACE}", f"--json={tmp_path}/none/result.json")
    assert program.wait() == 2
    assert "--json" in program.output and "blocks of" not in program.output


@pytest.mark.parametrize("size", [1, 7, 4096, 65536, 1 << 20])
def test_read_ends_exactly_at_the_end_of_a_mapping(master, open_p2p_store, open_store, size):
    owner = open_p2p_store(master, [{"type": "DRAM", "capacity": "16MB", "priority": 1}])
    reader = open_store(master, global_segment_size=0)
    value = os.urandom(size)
    assert owner.put("key", value) == 0
    room = (size + mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    memory = mmap.mmap(-1, room + mmap.PAGESIZE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert libc.mprotect(ctypes.c_void_p(base + room), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    for store in (owner, reader):
        assert store.get_into("key", base + room - size, size) == size
        assert ctypes.string_at(base + room - size, size) == value
        if size > 1:
            assert store.get_into("key", base + room - size, size - 1) < 0
    assert libc.mprotect(ctypes.c_void_p(base + room), ctypes.c_size_t(mmap.PAGESIZE), mmap.PROT_READ | mmap.PROT_WRITE) == 0


def test_silent_and_half_requests_do_not_keep_health_checks_waiting(start_master):
    master = start_master()
    port = int(master.wait_for(r"http 127\.0\.0\.1:(\d+)").group(1))
    sockets = []
    try:
        for _ in range(12):
            sockets.append(socket.create_connection(("127.0.0.1", port)))
            sockets[-1].sendall(b"GET / HT")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as reply:
            assert reply.read() == b"OK\n"
    finally:
        for one in sockets:
            one.close()


def test_chip_whose_memory_is_not_hbm_has_tiers_as_well(start):
    config = '{"tiers":[{"type":"ASCEND_NPU","capacity":"50%","priority":1}]}'
    start("mooncake_client", *client_flags(config=config), env={"ACLEMU_SOC": "310p"}, ready="ASCEND_NPU:0 512 MiB")


def test_tiers_that_fit_one_by_one_but_not_together_are_refused(start):
    for allocation, why in (("slab", "other tiers have 700 MiB"), ("direct", "700 MiB are promised to other tiers")):
        # the emulated device has 1 GiB
        tier = f'{{"type":"ASCEND_NPU","capacity":"700MB","priority":1,"allocation":"{allocation}"}}'
        program = start("mooncake_client", *client_flags(config=f'{{"tiers":[{tier},{tier}]}}'))
        assert program.wait() == 1
        assert "$.tiers[1]" in program.output and why in program.output
    both = start("mooncake_client", *client_flags(config=f'{{"tiers":[{tier},{tier[:-1]},"device_id":1}}]}}'))
    both.wait_for("ready")
