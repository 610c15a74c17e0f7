"""Several processes: values cross them exactly, owners die, interpreters end with open stores."""
import hashlib
import signal
import urllib.request

import numpy as np
import pytest
from conftest import free_port, run_python, start_python

SIZES = [0, 1, 4096, 1 << 20, (9 << 20) + 7]

OPEN = """
import hashlib, os, sys
from mooncake.store import MooncakeDistributedStore
def open_store(size=128 << 20):
    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", size, 0, "tcp", "", sys.argv[1], enable_http_server=False) == 0
    return store
"""


def values():
    random = np.random.default_rng(7)
    return {f"key {size}": random.integers(0, 256, size, dtype=np.uint8).tobytes() for size in SIZES}


@pytest.fixture
def end():
    """Kills what a test started, by process."""
    started = []
    yield started.append
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("reader_bytes", [0, 64 << 20])
def test_other_process_reads_exactly_what_was_put(master, open_store, reader_bytes):
    store = open_store(master)
    expected = values()
    assert store.put_batch(list(expected), list(expected.values())) == 0
    result = run_python(OPEN + """
import ctypes
store = open_store(int(sys.argv[2]))
for size in map(int, sys.argv[3:]):
    key = f"key {size}"
    target = ctypes.create_string_buffer(size + 1)
    assert store.get_into(key, ctypes.addressof(target), size + 1) == size
    assert store.get_size(key) == size and store.is_exist(key) == 1
    for value in (store.get(key), target.raw[:size], bytes(store.get_buffer(key))):
        print(hashlib.sha256(value).hexdigest())
assert store.put("from the reader", b"r") == 0
assert store.remove("key 1") == 0
store.close()
""", master.address, reader_bytes, *SIZES)
    assert result.returncode == 0, result.stderr
    digests = [hashlib.sha256(value).hexdigest() for value in expected.values()]
    assert result.stdout.split() == [digest for digest in digests for _ in range(3)]
    assert store.is_exist("key 1") == 0
    # A reader without memory of its own stored its value here; one with memory took it along.
    assert store.get("from the reader") == (b"r" if reader_bytes == 0 else b"")


def test_put_is_visible_at_once_in_another_process(master, open_store, end):
    store = open_store(master)
    reader = start_python(OPEN + """
store = open_store(0)
print("ready", flush=True)
for line in sys.stdin:
    print(store.get(line.strip()).decode(), flush=True)
""", master.address)
    end(reader)
    assert reader.stdout.readline() == "ready\n"
    for i in range(200):
        assert store.put(f"k{i}", f"v{i}".encode()) == 0
        reader.stdin.write(f"k{i}\n")
        reader.stdin.flush()
        assert reader.stdout.readline() == f"v{i}\n"


def test_killed_owner_is_a_miss_or_an_error_never_other_bytes(master, open_store, end):
    owner = start_python(OPEN + """
store = open_store()
for i in range(20):
    assert store.put(f"k{i}", bytes([i]) * 300_000) == 0
print("ready", flush=True)
sys.stdin.read()
""", master.address)
    end(owner)
    assert owner.stdout.readline() == "ready\n"
    store = open_store(master)
    assert store.get("k3") == bytes([3]) * 300_000
    owner.kill()
    owner.wait()
    target = np.zeros(300_000, dtype=np.uint8)
    keys = [f"k{i}" for i in range(20)]
    assert all(code < 0 for code in store.batch_get_into(keys, [target.ctypes.data] * 20, [300_000] * 20))
    assert store.get_batch(keys) == [b""] * 20
    assert store.get_buffer("k3") is None
    assert store.put("mine", b"v") == 0
    assert store.get("mine") == b"v"


def test_master_forgets_a_killed_owner(start_master, open_store, end):
    master = start_master("--client_ttl=1", "--client_crashed_ttl=1")
    owner = start_python(OPEN + """
store = open_store()
store.put("key", b"v")
print("ready", flush=True)
sys.stdin.read()
""", master.address)
    end(owner)
    assert owner.stdout.readline() == "ready\n"
    store = open_store(master)
    assert store.is_exist("key") == 1
    owner.kill()
    while store.is_exist("key") != 0:  # pytest's time-out bounds it
        pass
    assert store.put("key", b"w") == 0
    assert store.get("key") == b"w"


# --- the end of an interpreter ---

def keys_at_master(master_http):
    with urllib.request.urlopen(f"{master_http}/get_key_count", timeout=10) as reply:
        return int(reply.read())


@pytest.mark.parametrize("end_of_program", [
    "",                                      # the store is a global
    "del store",
    "cycle = [store]; cycle.append(cycle); del store, cycle",
    "sys.exit(0)",
    "handle = store.get_buffer('key')",
    "view = memoryview(store.get_buffer('key')); del store",
    "stores = [open_store() for _ in range(4)]",
    "import threading; threading.Thread(target=lambda: [store.get('key') for _ in iter(int, 1)], daemon=True).start()",
    "import threading; threading.Thread(target=lambda: [store.put(str(i), b'v') for i in iter(int, 1)], daemon=True).start()",
    "import threading; [threading.Thread(target=lambda: [store.get_batch(['key'] * 50) for _ in iter(int, 1)], daemon=True).start() for _ in range(6)]",
    "import threading; t = threading.Thread(target=lambda: [store.put(str(i), b'v') for i in range(2000)]); t.start()",
    "import atexit; atexit.register(lambda: print(store.get('key').decode(), flush=True))",
    "store.self = store",
])
def test_interpreter_ends_cleanly_with_an_open_store(start_master, end_of_program):
    http_port = free_port()
    master = start_master(f"--metrics_port={http_port}")
    result = run_python(OPEN + "store = open_store()\nassert store.put('key', b'value') == 0\n" + end_of_program,
                        master.address)
    assert result.returncode == 0, result.stderr
    assert keys_at_master(f"http://127.0.0.1:{http_port}") == 0
    if "print" in end_of_program:
        assert result.stdout == "value\n"


@pytest.mark.parametrize("level, told", [("info", False), ("debug", True)])
def test_numbers_of_full_tiers_are_told_at_debug_level(master, level, told):
    result = run_python(f"import os; os.environ['MC_LOG_LEVEL'] = '{level}'\n" + OPEN + """
store = open_store(8 << 20)
assert store.put("key", b"v" * (9 << 20)) == -200
""", master.address)
    assert result.returncode == 0, result.stderr
    assert ("no room for 9437184 B" in result.stderr and "8388608 B free" in result.stderr) == told, result.stderr


def test_interpreter_ends_with_a_dead_or_stopped_master(start_master):
    for signal_number in (signal.SIGKILL, signal.SIGSTOP):
        master = start_master()
        result = run_python(OPEN + f"store = open_store()\nos.kill(int(sys.argv[2]), {int(signal_number)})",
                            master.address, master.process.pid)
        assert result.returncode == 0, result.stderr


def test_forked_child_leaves_the_parent_s_store_alone(master):
    result = run_python(OPEN + """
store = open_store()
assert store.put("key", b"value") == 0
handle = store.get_buffer("key")
child = os.fork()
if child == 0:
    assert store.get("key") == b"" and store.health_check() == 1 and bytes(handle) == b"value"
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", sys.argv[1], enable_http_server=False) == 0
    assert store.get("key") == b"value"
    del handle
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
child = os.fork()  # one that ends without setting up a store of its own
if child == 0:
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert store.get("key") == b"value" and store.health_check() == 0
other = MooncakeDistributedStore()
assert other.setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", sys.argv[1], enable_http_server=False) == 0
assert other.get("key") == b"value"  # the master still knows whose it is
print("parent done")
""", master.address)
    assert (result.returncode, result.stdout) == (0, "parent done\n"), result.stderr


def test_signals_stay_python_s(master):
    result = run_python(OPEN + """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits that it is ignored
handlers = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
store = open_store()
assert handlers == {s: signal.getsignal(s) for s in handlers}
assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()
try:
    os.kill(os.getpid(), signal.SIGINT)
    while True:
        store.get("key")
except KeyboardInterrupt:
    print("interrupted")
""", master.address)
    assert (result.returncode, result.stdout) == (0, "interrupted\n"), result.stderr


def test_works_with_a_mooncake_client_process(master, start, open_store):
    client = start("mooncake_client", f"--master_server_address={master.address}", "--port=0", "--http_port=0",
                   "--host=127.0.0.1", f"--client_rpc_port={free_port()}", "--deployment_mode=P2P",
                   "--metadata_server=P2PHANDSHAKE",
                   '--tiered_backend_config={"tiers":[{"type":"DRAM","capacity":"64MB","priority":1}]}', ready="ready")
    store = open_store(master, global_segment_size=0)
    assert store.put("key", b"value" * 1000) == 0
    assert store.get("key") == b"value" * 1000
    client.stop()
    assert store.get("key") == b""
    assert store.put("key", b"v") < 0, "nobody is left to store it"
