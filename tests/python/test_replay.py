"""mooncake_replay from outside: its command line, its exit codes, its files, against a cluster of processes."""
import json
import signal
import socket
import subprocess

import pytest
from conftest import BUILD, ROOT

REPLAY = BUILD / "bin/mooncake_replay"
EXAMPLE = ROOT / "examples/conversation_trace_500.jsonl"
READY = r"ready: \S+ 127\.0\.0\.1:(\d+)"


def replay(*flags):
    return subprocess.run([REPLAY, *map(str, flags)], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)


@pytest.fixture
def master(start):
    """host:port of a running master."""
    program = start("mooncake_master", "--rpc_address=127.0.0.1", "--port=0", "--metrics_port=0")
    return "127.0.0.1:" + program.wait_for(READY)[1]


def client(start, master, *tiers):
    # The flag does not take 0, so a free port is found here.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = json.dumps({"tiers": list(tiers)})
    return start("mooncake_client", "--host=127.0.0.1", f"--master_server_address={master}", "--port=0",
                 f"--client_rpc_port={port}", "--http_port=0", "--deployment_mode=P2P",
                 f"--tiered_backend_config={config}", ready=READY)


def dram(size):
    return {"type": "DRAM", "capacity": size, "priority": 10}


def npu(size):
    return {"type": "ASCEND_NPU", "capacity": size, "priority": 100, "device_id": 0}


def test_help_teaches_with_an_example():
    result = replay("--help")
    assert result.returncode == 0
    assert "--trace examples/conversation_trace_500.jsonl" in result.stdout
    for flag in ("bytes_per_token", "speed", "requests", "json", "verify", "key_prefix", "master_server_address", "host"):
        assert f"--{flag} " in result.stdout


@pytest.mark.parametrize("flags, words", [
    ([], "--trace FILE is required"),
    (["--trace=/nonexistent/t.jsonl"], "No such file"),
    ([f"--trace={EXAMPLE}", "--speed=-1"], "--speed -1"),
    ([f"--trace={EXAMPLE}", "--bytes_per_token=0"], "--bytes_per_token 0"),
    ([f"--trace={EXAMPLE}", "--bytes-per-token=99999999999"], "--bytes_per_token 99999999999"),
    ([f"--trace={EXAMPLE}", "--master_server_address=127.0.0.1:1"], "127.0.0.1:1"),
    ([f"--trace={EXAMPLE}", "--master_server_address=127.0.0.1:x"], "127.0.0.1:x"),
])
def test_what_cannot_begin_exits_2_with_the_reason(flags, words):
    result = replay(*flags)
    assert result.returncode == 2, result.stderr
    assert words in result.stderr
    assert result.stdout == ""


def test_malformed_line_is_named(tmp_path):
    trace = tmp_path / "bad.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [0]}\n{"timestamp": 0}\n')
    result = replay(f"--trace={trace}")
    assert result.returncode == 2
    assert f'{trace}:2: "input_length" is missing' in result.stderr


def test_cluster_without_memory_is_an_error(master):
    result = replay(f"--trace={EXAMPLE}", f"--master_server_address={master}")
    assert result.returncode == 2
    assert "start a mooncake_client first" in result.stderr


def test_example_on_two_clients_comes_near_the_ideal(start, master, tmp_path):
    client(start, master, dram("128MB"))
    client(start, master, dram("32MB"), npu("64MB"))
    out = tmp_path / "result.json"
    result = replay(f"--trace={EXAMPLE}", f"--master_server_address={master}", "--bytes-per-token", 64, f"--json={out}")
    assert result.returncode == 0, result.stderr
    numbers = json.loads(out.read_text())
    assert numbers["version"] == 1
    assert numbers["requests"] == 500
    assert numbers["block_bytes"] == 32768
    assert numbers["verification_errors"] == 0
    assert numbers["blocks_verified"] >= numbers["hits"] == numbers["dram_hits"] + numbers["npu_hits"] > 0
    assert abs(numbers["hit_ratio"] - numbers["ideal_hit_ratio"]) < 0.02
    for name in ("dram_hits", "npu_hits", "remote_hits", "demotions", "drops"):
        assert numbers[name] > 0, name
    assert numbers["put_failures"] == numbers["get_failures"] == numbers["lookup_failures"] == 0
    assert {tier["type"] for tier in numbers["tiers"]} == {"DRAM", "ASCEND_NPU"}
    assert all(tier["used_bytes"] <= tier["capacity_bytes"] for tier in numbers["tiers"])
    for line in ("hit ratio", "ideal LRU hit ratio", "demotions", "0 errors"):
        assert line in result.stdout


def test_same_prefix_finds_the_blocks_of_the_run_before(start, master, tmp_path):
    client(start, master, dram("64MB"))
    out = tmp_path / "result.json"
    flags = [f"--trace={EXAMPLE}", f"--master_server_address={master}", "--bytes_per_token=8", "--requests=20",
             f"--json={out}"]
    assert replay(*flags, "--key_prefix=warm/").returncode == 0
    assert json.loads(out.read_text())["hit_ratio"] < 0.5
    assert replay(*flags, "--key_prefix=warm/").returncode == 0
    assert json.loads(out.read_text())["hit_ratio"] == 1
    assert replay(*flags).returncode == 0
    assert json.loads(out.read_text())["hit_ratio"] < 0.5


def test_interrupt_prints_the_summary_so_far(start, master, tmp_path):
    client(start, master, dram("64MB"))
    out = tmp_path / "result.json"
    # At this speed the second group of requests is hours away.
    program = start("mooncake_replay", f"--trace={EXAMPLE}", f"--master_server_address={master}", "--bytes_per_token=8",
                    "--speed=0.0001", f"--json={out}", ready="500 requests, 14162 blocks")
    program.process.send_signal(signal.SIGINT)
    assert program.wait() == 130
    assert "of 500  (ended early)" in program.output
    numbers = json.loads(out.read_text())
    assert numbers["interrupted"] and numbers["requests"] < 500
    # The tiers are those of the end, not of the owner's last report before it.
    assert sum(tier["used_bytes"] for tier in numbers["tiers"]) == numbers["bytes_written"]
