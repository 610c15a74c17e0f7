"""Shared by the Python tests: where the build is, and programs of it that end with the test.

MC_BUILD_DIR names the build directory (default: build/release). NPU memory is the emulator's.
"""
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("MC_BUILD_DIR", ROOT / "build/release"))
READY_TIMEOUT_S = 30
STOP_TIMEOUT_S = 20

sys.path.insert(0, str(BUILD / "python"))
# The loader reads LD_LIBRARY_PATH at process start only, so the emulator is named to the product directly.
os.environ.setdefault("MC_ACL_LIBRARY", str(BUILD / "emulator/lib64/libascendcl.so"))


class Program:
    """A started program of build/bin, its output so far, and its end."""

    def __init__(self, name, *flags, env=None):
        self.name = name
        self.output = ""
        self._changed = threading.Condition()
        self._ended = False
        self.process = subprocess.Popen([BUILD / "bin" / name, *map(str, flags)], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                        env={**os.environ, **(env or {})})
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self._changed:
                self.output += line
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait_for(self, pattern, timeout_s=READY_TIMEOUT_S):
        """First match of the pattern in the output; fails when the program ends or the time is over before."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or re.search(pattern, self.output), timeout_s)
            match = re.search(pattern, self.output)
            assert match, f"{self.name} did not print '{pattern}':\n{self.output}"
            return match

    def wait(self, timeout_s=STOP_TIMEOUT_S):
        """Exit code, with all output read."""
        code = self.process.wait(timeout_s)
        self._reader.join(timeout_s)
        return code

    def stop(self):
        """SIGTERM, then the exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        return self.wait()

    def kill(self):
        self.process.kill()
        self.wait()


@pytest.fixture
def start():
    """start("mooncake_master", "--rpc_port=0", ready="pattern", env={...}) -> Program, killed at the end of the test at the latest."""
    programs = []

    def start_program(name, *flags, ready=None, env=None):
        program = Program(name, *flags, env=env)
        programs.append(program)
        if ready is not None:
            program.wait_for(ready)
        return program

    yield start_program
    for program in reversed(programs):
        if program.process.poll() is None:
            program.kill()


def free_port():
    """A port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def suspend(pid):
    """SIGSTOP, and back when every thread has stopped: until then the process may still answer."""
    os.kill(pid, signal.SIGSTOP)
    while not all(state == "T" for state in thread_states(pid)):  # pytest's time-out bounds it
        pass


def thread_states(pid):
    for status in Path(f"/proc/{pid}/task").glob("*/stat"):
        yield status.read_text().rpartition(")")[2].split()[0]


@pytest.fixture
def start_master(start):
    """start_master(*flags, port=None) -> Program with .address; HTTP on any free port."""
    def start_on(*flags, port=None):
        port = port or free_port()
        program = start("mooncake_master", "--rpc_address=127.0.0.1", f"--rpc_port={port}", "--metrics_port=0", *flags,
                        ready="ready")
        program.address = f"127.0.0.1:{port}"
        return program
    return start_on


@pytest.fixture
def master(start_master):
    return start_master()


SETUP_DEFAULTS = {"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE", "global_segment_size": 64 << 20,
                  "local_buffer_size": 16 << 20, "protocol": "tcp", "rdma_devices": "", "enable_http_server": False}


@pytest.fixture
def open_store():
    """open_store(master, global_segment_size=..., **keywords of setup) -> a store that is set up, closed at the end."""
    from mooncake.store import MooncakeDistributedStore
    stores = []

    def open_one(master, **changes):
        store = MooncakeDistributedStore()
        assert store.setup(**{**SETUP_DEFAULTS, "master_server_addr": master.address, **changes}) == 0
        stores.append(store)
        return store

    yield open_one
    for store in stores:
        store.close()


@pytest.fixture
def open_p2p_store():
    """open_p2p_store(master, tiers, **keywords of setup_p2p_real_client) -> same, with tiers as a list or JSON text."""
    import json

    from mooncake.store import MooncakeDistributedStore
    stores = []

    def open_one(master, tiers, **changes):
        store = MooncakeDistributedStore()
        defaults = {key: value for key, value in SETUP_DEFAULTS.items() if key != "global_segment_size"}
        config = tiers if isinstance(tiers, str) else json.dumps({"tiers": tiers})
        assert store.setup_p2p_real_client(**{**defaults, "tiered_backend_config_json": config, "client_rpc_port": 0,
                                              "master_server_addr": master.address, **changes}) == 0
        stores.append(store)
        return store

    yield open_one
    for store in stores:
        store.close()


def run_python(code, *args, timeout_s=60, cwd=None, env=None):
    """Runs code in a fresh interpreter that has the package; returns the completed process."""
    paths = [str(BUILD / "python"), str(Path(__file__).parent)]
    return subprocess.run([sys.executable, "-c", code, *map(str, args)], capture_output=True, text=True, cwd=cwd,
                          timeout=timeout_s, stdin=subprocess.DEVNULL,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(env or {})})


def start_python(code, *args):
    """The same, still running: a Popen with pipes. The caller ends it."""
    paths = [str(BUILD / "python"), str(Path(__file__).parent)]
    return subprocess.Popen([sys.executable, "-c", code, *map(str, args)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)})
