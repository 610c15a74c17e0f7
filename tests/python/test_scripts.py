"""The scripts at the root and in scripts/ explain themselves and refuse what they do not know."""
import subprocess
import sys

import pytest
from conftest import ROOT

COMMANDS = ["quickstart.sh", "run_tests.sh", "scripts/install_deps.sh", "scripts/fetch_test_servers.sh",
            "scripts/fresh_check.sh", "tests/rdma_vm/run_in_guest.sh", "tests/rdma_vm/self_check.sh", "examples/hetero_cluster.sh"]


def run(*command):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_usage(command):
    result = run(f"./{command}", "--help")
    assert result.returncode == 0
    assert result.stdout.startswith("Usage: ")


@pytest.mark.parametrize("command", COMMANDS)
def test_unknown_option_is_refused_by_name(command):
    result = run(f"./{command}", "--no-such-option")
    assert result.returncode != 0
    assert "--no-such-option" in result.stderr


def test_package_list_of_a_group():
    result = run("scripts/install_deps.sh", "--list", "build")
    assert result.returncode == 0
    assert "g++" in result.stdout.split()
    assert "python3-pytest" not in result.stdout.split()


CASE = '<testsuite><testcase name="a"/>{}</testsuite>'


@pytest.mark.parametrize("report, options, refused", [
    (CASE.format(""), ["--no-skips"], False),
    (CASE.format('<testcase name="b"><skipped/></testcase>'), [], False),
    (CASE.format('<testcase name="b"><skipped/></testcase>'), ["--no-skips"], True),
    (CASE.format('<testcase name="b" status="disabled"/>'), ["--no-skips"], True),
    ('<testsuite><testcase name="b"><skipped/></testcase></testsuite>', [], True),
    ("<testsuite/>", [], True),
    ("", [], True),
])
def test_reports_without_tests_or_with_skips_are_refused(tmp_path, report, options, refused):
    path = tmp_path / "report.xml"
    path.write_text(report)
    result = run(sys.executable, "scripts/check_junit.py", *options, str(path))
    assert (result.returncode != 0) == refused, result.stderr


@pytest.mark.parametrize("report, names", [
    ('<testsuite><testcase name="A.b" classname="A.b" status="fail"><failure/></testcase>'
     '<testcase name="A.c" classname="A.c" status="run"/></testsuite>', ["A.b"]),
    ('<testsuites><testsuite><testcase classname="tests.test_x" name="test_y[1]"><failure/></testcase>'
     '<testcase classname="tests.test_x" name="test_z"><error/></testcase></testsuite></testsuites>',
     ["tests.test_x.test_y[1]", "tests.test_x.test_z"]),
    (CASE.format('<testcase name="b"><skipped/></testcase>'), []),
])
def test_failed_tests_of_a_report_are_named(tmp_path, report, names):
    path = tmp_path / "report.xml"
    path.write_text(report)
    result = run(sys.executable, "scripts/check_junit.py", "--list-failed", str(path))
    assert result.returncode == 0
    assert result.stdout.split() == names


def test_failed_tests_of_no_report_are_an_error(tmp_path):
    result = run(sys.executable, "scripts/check_junit.py", "--list-failed", str(tmp_path / "none.xml"))
    assert result.returncode != 0
    assert "none.xml" in result.stderr
