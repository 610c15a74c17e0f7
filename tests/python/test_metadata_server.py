"""The HTTP metadata server, as a program of its own and within mooncake_master."""
import re
import urllib.error
import urllib.parse
import urllib.request

import pytest


def ask(method, url, key=None, body=None):
    """(code, body)"""
    if key is not None:
        url += "?key=" + urllib.parse.quote(key, safe="")
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data=body, method=method), timeout=30) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def address(program):
    return re.search(r"http://127\.0\.0\.1:\d+/metadata", program.output).group()


@pytest.fixture(params=["own", "master"])
def server(request, start, start_master):
    if request.param == "own":
        return start("mooncake_http_metadata_server", "--host=127.0.0.1", "--port=0", ready="ready: .*\n")
    return start_master("--enable_http_metadata_server", "--http_metadata_server_host=127.0.0.1",
                        "--http_metadata_server_port=0")


def test_keeps_metadata_until_it_is_told_to_leave(server):
    url = address(server)
    assert ask("GET", url)[0] == 200
    assert ask("GET", url, "mooncake/ram/a:1")[0] == 404
    value = bytes(range(256)) * 1000
    assert ask("PUT", url, "mooncake/ram/a:1", value)[0] == 200
    assert ask("GET", url, "mooncake/ram/a:1") == (200, value)
    assert ask("PUT", url, "mooncake/rpc_meta/a", b"1")[0] == 200
    assert ask("PUT", url, "mooncake/rpc_meta/a", b"2")[0] == 400
    assert ask("DELETE", url, "mooncake/ram/a:1")[0] == 200
    assert ask("GET", url, "mooncake/ram/a:1")[0] == 404
    assert server.stop() == 0


def test_master_serves_no_metadata_unless_told_to(master):
    assert "metadata" not in master.output


def test_taken_port_is_named(server, start):
    port = re.search(r":(\d+)/metadata", server.output).group(1)
    second = start("mooncake_http_metadata_server", "--host=127.0.0.1", f"--port={port}")
    assert second.wait() == 1
    assert f"127.0.0.1:{port}" in second.output


def test_unknown_host_is_said(start):
    program = start("mooncake_http_metadata_server", "--host=999.1.1.1", "--port=0")
    assert program.wait() == 1
    assert "999.1.1.1:0: the host does not resolve" in program.output


@pytest.mark.parametrize("flag", ["--port=65536", "--port=-1", "--host="])
def test_wrong_flag_is_named(start, flag):
    program = start("mooncake_http_metadata_server", flag)
    assert program.wait() == 1
    assert flag.partition("=")[0] in program.output


def test_help_names_the_flags(start):
    program = start("mooncake_http_metadata_server", "--help")
    assert program.wait() == 0
    assert "--host" in program.output and "--port" in program.output and "/metadata?key=" in program.output
