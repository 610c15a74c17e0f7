"""Engines whose peers stop, die or come back; calls that are interrupted; processes that fork, end or idle."""
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from conftest import BUILD, ROOT, run_python, start_python, suspend
from engine_peer import MEMORY_BYTES, Peer, address_of, open_engine

SHORT_TIMEOUT_S = "5"  # the least that MC_TRANSFER_TIMEOUT can be


@pytest.fixture
def tcp(monkeypatch):
    """Bytes pass through the peer's threads, so that a peer can be in the way."""
    monkeypatch.setenv("MC_FORCE_TCP", "1")


@pytest.fixture
def start_peer():
    peers = []

    def start(**arguments):
        peers.append(Peer(**arguments))
        return peers[-1]

    yield start
    for peer in peers:
        peer.end()


@pytest.fixture
def local():
    return np.ones(MEMORY_BYTES, dtype=np.uint8)


def write(engine, peer, local, size=MEMORY_BYTES):
    return engine.transfer_sync_write(peer.session, address_of(local), peer.address, size)


def test_many_threads_share_an_engine(start_peer, tcp):
    peer, engine = start_peer(), open_engine()
    part = MEMORY_BYTES // 8
    failures = []

    def work(index):
        mine, back = np.full(part, index + 1, dtype=np.uint8), np.zeros(part, dtype=np.uint8)
        there = peer.address + index * part
        for _ in range(20):
            back[:] = 0
            ok = engine.transfer_sync_write(peer.session, address_of(mine), there, part) == 0
            ok = ok and engine.transfer_sync_read(peer.session, address_of(back), there, part) == 0
            if not ok or not (back == mine).all():
                failures.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_other_threads_run_while_a_transfer_waits(start_peer, tcp, local):
    peer, engine = start_peer(), open_engine()
    assert write(engine, peer, local) == 0
    suspend(peer.process.pid)
    entered, result = threading.Event(), []

    def blocked():
        entered.set()
        result.append(write(engine, peer, local))

    thread = threading.Thread(target=blocked)
    thread.start()
    entered.wait()
    turns = 0
    while turns < 100_000 and not result:
        turns += 1
    assert not result, "the transfer ended although its peer is stopped"
    os.kill(peer.process.pid, signal.SIGCONT)
    thread.join()
    assert result == [0]


def test_stopped_peer_costs_one_deadline_and_the_batch_says_so(start_peer, tcp, local, monkeypatch):
    monkeypatch.setenv("MC_TRANSFER_TIMEOUT", SHORT_TIMEOUT_S)
    peer, engine = start_peer(), open_engine()
    assert write(engine, peer, local) == 0
    suspend(peer.process.pid)
    batch = engine.transfer_submit_write(peer.session, address_of(local), peer.address, MEMORY_BYTES)
    others = [engine.batch_transfer_async_write(peer.session, [address_of(local)], [peer.address], [MEMORY_BYTES])
              for _ in range(2)]
    assert batch > 0 and min(others) > 0
    assert write(engine, peer, local) == -1
    assert engine.get_batch_transfer_status(others) == -1
    while (state := engine.transfer_check_status(batch)) == 0:
        pass
    assert [state, engine.transfer_check_status(batch)] == [-2, -2]
    assert engine.send_probe(peer.session) == -1
    os.kill(peer.process.pid, signal.SIGCONT)
    assert write(engine, peer, local) == 0, "the peer is back"


@pytest.mark.parametrize("forced_tcp", [True, False])
def test_killed_peer_fails_its_transfers_and_no_others(start_peer, local, forced_tcp, monkeypatch):
    if forced_tcp:
        monkeypatch.setenv("MC_FORCE_TCP", "1")
    victim, other, engine = start_peer(), start_peer(), open_engine()
    assert write(engine, victim, local) == 0
    batch = engine.transfer_submit_write(victim.session, address_of(local), victim.address, MEMORY_BYTES)
    victim.process.kill()
    victim.process.wait()
    assert write(engine, victim, local) == -1
    while (state := engine.transfer_check_status(batch)) == 0:
        pass
    assert state in (1, -1)
    assert engine.send_probe(victim.session) == -1
    assert write(engine, other, local) == 0


def test_restarted_peer_is_found_at_the_first_call(start_peer, tcp, local):
    first, engine = start_peer(), open_engine()
    assert write(engine, first, local) == 0
    first.end()
    second = start_peer(port=int(first.session.rpartition(":")[2]))
    assert second.session == first.session
    assert write(engine, second, local) == 0
    assert second.ask("int(memory.sum())") == MEMORY_BYTES


INTERRUPTED = """
import sys
import numpy as np
from engine_peer import open_engine
engine, local = open_engine(), np.ones(8 << 20, dtype=np.uint8)
session, address = sys.argv[1], int(sys.argv[2])
arguments = session, local.ctypes.data, address, local.nbytes
assert engine.transfer_sync_write(*arguments) == 0
print("ready", flush=True)
sys.stdin.readline()
try:
    print("blocked", flush=True)
    if sys.argv[3] == "sync":
        print("returned", engine.transfer_sync_write(*arguments))
    else:
        batch = engine.transfer_submit_write(*arguments)
        print("returned", engine.get_batch_transfer_status([batch]))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def wait_until_asleep(pid):
    """Until the main thread has been found waiting many times in a row."""
    seen = 0
    while seen < 200:
        state = (Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()[0])
        seen = seen + 1 if state == "S" else 0


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_ctrl_c_ends_a_waiting_call(start_peer, tcp, kind, monkeypatch):
    monkeypatch.setenv("MC_TRANSFER_TIMEOUT", "3600")  # nothing else ends it
    peer = start_peer()
    process = start_python(INTERRUPTED, peer.session, peer.address, kind)
    assert process.stdout.readline() == "ready\n"
    suspend(peer.process.pid)
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "blocked\n"
    wait_until_asleep(process.pid)
    process.send_signal(signal.SIGINT)
    try:
        assert process.communicate(timeout=30)[0] == "interrupted\n"
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()


LIVE_AT_EXIT = """
import sys, threading
import numpy as np
from engine_peer import open_engine
engines = [open_engine() for _ in range(3)]
shared = engines[0].get_engine()
buffer = engines[0].allocate_managed_buffer(100)
local = np.ones(8 << 20, dtype=np.uint8)
arguments = sys.argv[1], local.ctypes.data, int(sys.argv[2]), local.nbytes
assert engines[0].transfer_sync_write(*arguments) == 0
print("ready", flush=True)
sys.stdin.readline()
batch = engines[0].transfer_submit_write(*arguments)
threading.Thread(target=engines[1].transfer_sync_write, args=arguments, daemon=True).start()
threading.Thread(target=engines[2].get_batch_transfer_status, args=([batch],), daemon=True).start()
"""


def test_the_interpreter_ends_with_live_engines_and_waiting_threads(start_peer, tcp):
    peer = start_peer()
    process = start_python(LIVE_AT_EXIT, peer.session, peer.address)
    assert process.stdout.readline() == "ready\n"
    suspend(peer.process.pid)
    process.communicate("\n", timeout=60)
    assert process.returncode == 0


def test_import_starts_no_threads_and_needs_no_store():
    result = run_python("import os, sys, mooncake.engine\n"
                        "assert len(os.listdir('/proc/self/task')) == 1\n"
                        "assert 'mooncake.store' not in sys.modules\n"
                        "from mooncake.store import MooncakeDistributedStore\n"
                        "mooncake.engine.TransferEngine()\n"
                        "assert len(os.listdir('/proc/self/task')) == 1")
    assert result.returncode == 0, result.stderr


def test_a_forked_child_starts_anew():
    result = run_python("import os\n"
                        "from engine_peer import open_engine, session_of\n"
                        "engine = open_engine()\n"
                        "shared = engine.get_engine()\n"
                        "session = session_of(engine)\n"
                        "child = os.fork()\n"
                        "if child == 0:\n"
                        "    assert engine.get_rpc_port() == 0\n"
                        "    assert engine.send_probe(session) == -1\n"
                        "    assert engine.initialize('127.0.0.1', 'P2PHANDSHAKE', 'tcp', '') == 0\n"
                        "    assert engine.send_probe(session) == 0\n"
                        "    del engine, shared\n"
                        "    raise SystemExit(7)\n"
                        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
                        "assert engine.send_probe(session) == 0\n")
    assert result.returncode == 0, result.stderr


IDLE = """
import resource, select, sys
import numpy as np
from engine_peer import open_engine, session_of
engines = [open_engine() for _ in range(2)]
memory = np.ones(1 << 20, dtype=np.uint8)
assert engines[0].register_memory(memory.ctypes.data, memory.nbytes) == 0
assert engines[1].transfer_sync_write(session_of(engines[0]), memory.ctypes.data, memory.ctypes.data, 1) == 0
def used():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
before = used()
assert select.select([sys.stdin], [], [], 4.0) == ([], [], [])
print(used() - before)
"""


def test_idle_engines_use_next_to_no_processor_time():
    process = start_python(IDLE)
    seconds = float(process.stdout.readline())
    process.communicate()
    assert seconds < 0.2, f"two idle engines used {seconds} s of 4 s"


# --- without threads ---


NO_MORE_THREADS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
static _Atomic long left = -1;  /* threads that can still be had; negative: all */
void allow_threads(long count) { left = count; }
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) {
  int (*real)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*) = dlsym(RTLD_NEXT, "pthread_create");
  if (left == 0) return EAGAIN;
  if (left > 0) --left;
  return real(thread, attributes, run, argument);
}
"""

OPEN_WITHOUT_THREADS = """
import ctypes, sys
from mooncake.engine import TransferEngine
from mooncake.store import MooncakeDistributedStore
allow_threads = ctypes.CDLL(sys.argv[1]).allow_threads
engine, store = TransferEngine(), MooncakeDistributedStore()
for open_one in (lambda: engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""),
                 lambda: store.setup("127.0.0.1", "P2PHANDSHAKE", 16 << 20, 1 << 20, "tcp", "", sys.argv[2])):
    for threads in range(100):
        allow_threads(ctypes.c_long(threads))
        if open_one() == 0:
            break
    allow_threads(ctypes.c_long(-1))
    print(threads > 0, threads < 99)
assert store.put("key", b"value") == 0 and store.get("key") == b"value"
store.close()
"""


def test_threads_that_cannot_be_had_are_a_failure_that_can_be_repeated(master, tmp_path):
    library = tmp_path / "threads.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library, "-ldl"], input=NO_MORE_THREADS, text=True,
                   check=True)
    result = run_python(OPEN_WITHOUT_THREADS, library, master.address, env={"LD_PRELOAD": str(library)})
    assert result.returncode == 0, result.stderr
    assert result.stdout == "True True\nTrue True\n", result.stderr


# --- examples and the C library ---


def test_python_example():
    environment = {**os.environ, "PYTHONPATH": str(BUILD / "python")}
    result = subprocess.run([sys.executable, ROOT / "examples/transfer_example.py"], capture_output=True, text=True,
                            timeout=60, stdin=subprocess.DEVNULL, env=environment)
    assert result.returncode == 0, result.stderr
    assert "received b'hello, peer!' [TransferNotify(name='sender', msg='12 bytes are there')]" in result.stdout


@pytest.mark.parametrize("standard", ["c99", "c11"])
def test_c_example_needs_nothing_but_the_library(standard, tmp_path):
    program = tmp_path / "transfer_example"
    compiled = subprocess.run(
        ["cc", f"-std={standard}", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Werror", "-o", program,
         ROOT / "examples/transfer_example.c", "-I", ROOT / "src/capi", "-L", BUILD / "lib",
         f"-Wl,-rpath,{BUILD / 'lib'}", "-ltransfer_engine"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert compiled.returncode == 0, compiled.stderr
    result = subprocess.run([program], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert result.returncode == 0, result.stderr
    assert 'received "hello from another process", "written" by child' in result.stdout


def test_the_c_library_shows_the_functions_of_its_header_only():
    listed = subprocess.run(["nm", "-D", "--defined-only", BUILD / "lib/libtransfer_engine.so"], capture_output=True,
                            text=True, check=True).stdout
    shown = {line.split()[-1].split("@")[0] for line in listed.splitlines()} - {"MOONCAKE_TRANSFER_ENGINE_1"}
    header = (ROOT / "src/capi/transfer_engine_c.h").read_text()
    assert len(shown) == 24
    assert all(f"{name}(" in header for name in shown), shown
