"""mooncake_bench: every figure is there and the file has its fixed shape. Values are not looked at: they are the machine's."""
import json
import subprocess

import pytest
from conftest import BUILD

BENCH = BUILD / "bin/mooncake_bench"
STORE_NAMES = [f"store.local_{what}" for what in (
    "put_1m_vs_memmove", "get_1m_vs_memmove", "put_1m_gbps", "get_1m_gbps", "put_4k_kops", "get_4k_kops")] + [
    f"store.remote_{what}" for what in (
        "1m_gbps", "put_1m_gbps", "1m_vs_memmove", "16m_gbps", "4k_p50_us", "4k_kops")] + [
    "store.memmove_1m_gbps", "store.master_kops"]


def bench(*arguments):
    return subprocess.run([BENCH, *map(str, arguments)], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          timeout=200)


def test_store_writes_every_figure(tmp_path):
    out = tmp_path / "store.json"
    result = bench("store", "--quick", "--runs=2", f"--json={out}")
    assert result.returncode == 0, result.stderr
    report = json.loads(out.read_text())
    assert report["version"] == 1
    assert report["host"]["cores"] > 0 and report["host"]["llc_bytes"] > 0 and report["host"]["iperf3"]
    figures = {figure["name"]: figure for figure in report["results"]}
    assert len(figures) == len(report["results"])
    for name in STORE_NAMES:
        assert name in figures, name
        assert name in result.stdout
    for name, figure in figures.items():
        assert list(figure) == ["name", "value", "unit", "min", "max", "n", "against"]
        assert 0 < figure["min"] <= figure["value"] <= figure["max"], name
        assert figure["n"] >= 2
        assert (figure["unit"] == "ratio") == (figure["against"] in ("memmove", "iperf3")), name


@pytest.mark.parametrize("command", ["tier", "transfer", "bridge"])
def test_what_is_not_built_says_so(command):
    result = bench(command)
    assert result.returncode == 2
    assert f"'{command}' is not built yet" in result.stderr


@pytest.mark.parametrize("arguments, words", [
    ([], "no subcommand"), (["nope"], "unknown subcommand 'nope'"), (["store", "--runs=0"], "--runs 0"),
])
def test_wrong_usage_exits_2(arguments, words):
    result = bench(*arguments)
    assert result.returncode == 2
    assert words in result.stderr


def test_help_names_the_subcommands():
    result = bench("--help")
    assert result.returncode == 0
    assert "mooncake_bench store --json" in result.stdout
