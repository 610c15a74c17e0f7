"""mooncake_bench: every figure is there and the file has its fixed shape. Values are not looked at: they are the machine's."""
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import BUILD

BENCH = BUILD / "bin/mooncake_bench"
STORE_NAMES = [f"store.local_{what}" for what in (
    "put_1m_vs_memmove", "get_1m_vs_memmove", "put_1m_gbps", "get_1m_gbps", "put_4k_kops", "get_4k_kops")] + [
    f"store.remote_{what}" for what in (
        "1m_gbps", "put_1m_gbps", "1m_vs_memmove", "16m_gbps", "4k_p50_us", "4k_kops")] + [
    "store.memmove_1m_gbps", "store.master_kops"]


TIER_NAMES = [f"tier.{what}" for what in (
    "hbm_efficiency_slab", "hbm_efficiency_direct", "alloc_slab_vs_direct", "copy_duplex_vs_model", "npu_to_npu_vs_model",
    "dram_alloc_mops", "copy_h2d_gbps", "copy_d2h_gbps", "copy_d2d_gbps", "copy_h2d_vs_memmove",
    "copy_batch_4k_vs_single")]
TRANSFER_NAMES = [f"transfer.{what}" for what in (
    "tcp_4k_p50_us", "samehost_1m_vs_memmove", "tcp_read_4k_p50_us", "tcp_write_4k_p99_us", "tcp_read_1m_gbps",
    "tcp_write_16m_gbps", "samehost_read_1m_gbps", "samehost_write_1m_vs_memmove", "memmove_1m_gbps")]


def bench(*arguments, environment=None):
    return subprocess.run([BENCH, *map(str, arguments)], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          timeout=200, env={**os.environ, **(environment or {})})


@pytest.mark.parametrize("command, names", [("store", STORE_NAMES), ("tier", TIER_NAMES), ("transfer", TRANSFER_NAMES)])
def test_every_figure_is_written(command, names, tmp_path):
    out = tmp_path / "figures.json"
    result = bench(command, "--quick", "--runs=2", f"--json={out}")
    assert result.returncode == 0, result.stderr
    report = json.loads(out.read_text())
    assert report["version"] == 1
    assert report["host"]["cores"] > 0 and report["host"]["llc_bytes"] > 0 and report["host"]["iperf3"]
    figures = {figure["name"]: figure for figure in report["results"]}
    assert len(figures) == len(report["results"])
    for name in names:
        assert name in figures, name
        assert name in result.stdout
    for name, figure in figures.items():
        assert list(figure) == ["name", "value", "unit", "min", "max", "n", "against"]
        assert 0 < figure["min"] <= figure["value"] <= figure["max"], name
        assert figure["n"] >= 2
        beside = ("memmove", "iperf3", "model", "direct", "one by one", "plain TCP stream")
        if "efficiency" in name:  # a part of the memory
            assert figure["value"] <= 1 and figure["against"] == ""
        else:
            assert (figure["unit"] == "ratio") == (figure["against"] in beside), name


def test_tier_needs_two_devices():
    result = bench("tier", "--quick", "--runs=1", environment={"ACLEMU_DEVICES": "1"})
    assert result.returncode == 1
    assert "needs two NPU devices, this process sees 1" in result.stderr


@pytest.mark.skipif(shutil.which("iperf3") is None, reason="iperf3 is not installed")
def test_transfer_is_measured_beside_iperf3(tmp_path):
    out = tmp_path / "figures.json"
    result = bench("transfer", "--quick", "--runs=1", "--protocol=tcp", "--size=1MB,16MB", f"--json={out}")
    assert result.returncode == 0, result.stderr
    report = json.loads(out.read_text())
    figures = {figure["name"]: figure for figure in report["results"]}
    for name in [f"transfer.tcp_{op}_{size}_vs_iperf3" for op in ("read", "write") for size in ("1m", "16m")]:
        assert figures[name]["against"] == "iperf3" and figures[name]["unit"] == "ratio"
    assert report["host"]["tcp_congestion"] in ("cubic", "reno")
    assert report["host"]["iperf3"] == "used"


def test_transfer_options_choose_what_is_measured(tmp_path):
    out = tmp_path / "figures.json"
    result = bench("transfer", "--quick", "--runs=1", "--protocol=samehost", "--op=write", "--size=64KB,3MB",
                   "--threads=2", "--batch=3", "--percentiles=50,99.9", f"--json={out}")
    assert result.returncode == 0, result.stderr
    names = [figure["name"] for figure in json.loads(out.read_text())["results"]]
    assert names == [f"transfer.samehost_write_64k_{what}" for what in ("gbps", "call_p50_us", "call_p99.9_us")] + [
        f"transfer.{what}" for what in ("samehost_write_3m_gbps", "samehost_write_3m_call_p50_us",
                                        "samehost_write_3m_call_p99.9_us", "memmove_3m_gbps",
                                        "samehost_write_3m_vs_memmove")]


def test_rdma_without_a_device_is_an_error():
    if any(Path("/sys/class/infiniband").glob("*")):
        pytest.skip("this host has an RDMA device")
    result = bench("transfer", "--quick", "--runs=1", "--protocol=rdma")
    assert result.returncode == 1
    assert "rdma" in result.stderr


def test_what_is_not_built_says_so():
    result = bench("bridge")
    assert result.returncode == 2
    assert "'bridge' is not built yet" in result.stderr


@pytest.mark.parametrize("arguments, words", [
    ([], "no subcommand"), (["nope"], "unknown subcommand 'nope'"), (["store", "--runs=0"], "--runs 0"),
    (["tier", "--threads=0"], "--threads 0"), (["tier", "--runs=x"], "illegal value 'x'"),
    (["transfer", "--protocol=pigeon"], "--protocol 'pigeon'"), (["transfer", "--op=swap"], "--op 'swap'"),
    (["transfer", "--size=0"], "--size 0"), (["transfer", "--size=big"], "--size"), (["transfer", "--batch=-1"], "--batch -1"),
    (["transfer", "--threads=65"], "--threads 65"), (["transfer", "--percentiles=101"], "--percentiles 101"),
    (["tier", "--no-such-flag"], "no-such-flag"), (["tier", "extra"], "unexpected argument 'extra'"),
])
def test_wrong_usage_exits_2(arguments, words):
    result = bench(*arguments)
    assert result.returncode == 2
    assert words in result.stderr


def test_help_names_the_subcommands():
    result = bench("--help")
    assert result.returncode == 0
    assert "mooncake_bench store --json" in result.stdout
