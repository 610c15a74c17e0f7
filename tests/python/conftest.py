"""Shared by the Python tests: where the build is, and programs of it that end with the test.

MC_BUILD_DIR names the build directory (default: build/release). NPU memory is the emulator's.
"""
import os
import re
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
