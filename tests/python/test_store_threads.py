"""Many threads in one store: mixed calls, a close under way, and the interpreter lock."""
import os
import signal
import threading

import numpy as np
from conftest import start_python, suspend
from mooncake.store import MooncakeDistributedStore

SHUTTING_DOWN = -1600
INVALID = -600


def run_threads(count, work):
    """work(index) in `count` threads; the first exception of a thread is raised here."""
    failures = []

    def guarded(index):
        try:
            work(index)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_mixed_calls_of_eight_threads_see_their_own_values(master, open_store):
    store = open_store(master)
    peer = open_store(master)

    def work(index):
        target = np.zeros(4000, dtype=np.uint8)
        for step in range(200):
            key = f"{index}/{step}"
            value = np.full(1 + step * 13, index * 16 + step % 16, dtype=np.uint8)
            writer, reader = (store, peer) if step % 2 else (peer, store)
            assert writer.put(key, value) == 0
            assert reader.get(key) == value.tobytes()
            handle = reader.get_buffer(key)
            assert reader.batch_get_into([key, "none"], [target.ctypes.data] * 2, [4000] * 2) == [len(value), -704]
            assert (target[:len(value)] == value).all()
            assert reader.remove(key) == 0
            assert writer.is_exist(key) == 0
            assert bytes(handle) == value.tobytes()

    run_threads(8, work)
    assert store.remove_all() == 0


def test_close_and_setup_while_others_call(master):
    store = MooncakeDistributedStore()
    setup = ("127.0.0.1", "P2PHANDSHAKE", 16 << 20, 0, "tcp", "", master.address)
    stop = threading.Event()

    def work(index):
        if index == 0:
            try:
                for _ in range(5):
                    assert store.setup(*setup, enable_http_server=False) == 0
                    assert store.close() == 0
            finally:
                stop.set()
            return
        target = np.zeros(16, dtype=np.uint8)
        while not stop.is_set():
            key = f"key{index}"
            value = key.encode()
            assert store.put(key, value) in (0, INVALID, SHUTTING_DOWN)
            assert store.get(key) in (b"", value)
            assert store.get_into(key, target.ctypes.data, 16) in (len(value), -704, INVALID, SHUTTING_DOWN, -900, -800)
            handle = store.get_buffer(key)
            assert handle is None or bytes(handle) == value
            store.health_check(), store.get_hostname(), store.batch_is_exist([key])

    run_threads(8, work)
    assert store.health_check() == 1


def test_second_setup_is_refused_and_harmless(master, open_store):
    store = open_store(master)
    store.put("key", b"v")
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", master.address) == -1010
    assert store.get("key") == b"v"


def progress_while(call, until):
    """Runs call() in a thread; counts here until until() or 100,000 turns while it is under way, then lets it end."""
    entered, result = threading.Event(), []

    def run():
        entered.set()
        result.append(call())

    thread = threading.Thread(target=run)
    thread.start()
    entered.wait()
    turns = 0
    while turns < 100_000 and not result:
        turns += 1
    blocked = not result
    until()
    thread.join()
    return blocked, result[0]


def test_other_threads_run_while_a_put_waits_for_the_master(master, open_store):
    store = open_store(master)
    assert store.put("before", b"v") == 0
    suspend(master.process.pid)
    blocked, code = progress_while(lambda: store.put("key", b"v"), lambda: os.kill(master.process.pid, signal.SIGCONT))
    assert blocked, "the put ended before this thread could count"
    assert code == 0
    assert store.get("key") == b"v"


def test_other_threads_run_while_setup_waits(master):
    store = MooncakeDistributedStore()
    suspend(master.process.pid)
    blocked, code = progress_while(
        lambda: store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", master.address, enable_http_server=False,
                            wait=60),
        lambda: os.kill(master.process.pid, signal.SIGCONT))
    assert blocked
    assert code == 0
    store.close()


OWNER = """
import sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", 64 << 20, 0, "tcp", "", sys.argv[1], enable_http_server=False) == 0
assert store.put("key", bytes(range(256)) * 4096) == 0
print("owner ready", flush=True)
sys.stdin.read()
"""


def test_other_threads_run_while_a_get_waits_for_its_owner(master, open_store):
    owner = start_python(OWNER, master.address)
    try:
        assert owner.stdout.readline() == "owner ready\n"
        store = open_store(master)
        assert store.get("key") == bytes(range(256)) * 4096
        suspend(owner.pid)
        blocked, value = progress_while(lambda: store.get("key"), lambda: os.kill(owner.pid, signal.SIGCONT))
        assert blocked
        assert value == bytes(range(256)) * 4096
    finally:
        owner.kill()
        owner.wait()


def test_call_on_a_stopped_owner_ends_with_its_deadline(master, open_store):
    owner = start_python(OWNER, master.address)
    try:
        assert owner.stdout.readline() == "owner ready\n"
        store = open_store(master)
        suspend(owner.pid)
        target = np.zeros(1 << 20, dtype=np.uint8)
        assert store.get_into("key", target.ctypes.data, target.nbytes) < 0
        assert store.get("key") == b""
    finally:
        owner.kill()
        owner.wait()
