"""mooncake.store against a master of its own: values, codes, batches, buffers."""
import ctypes

import numpy as np
import pytest
from conftest import run_python
from mooncake.store import BufferHandle, MooncakeDistributedStore, ReplicateConfig

INVALID = -600
NOT_FOUND = -704
NO_SPACE = -200
MiB = 1 << 20


def address(array):
    return array.ctypes.data


@pytest.fixture
def store(master, open_store):
    return open_store(master)


def pattern(size, seed=1):
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


# --- values ---

@pytest.mark.parametrize("value", [
    b"bytes", bytearray(b"bytearray"), memoryview(b"memoryview")[4:], np.arange(10, dtype=np.int32), b"",
    np.zeros((3, 4), dtype=np.float32), b"\0" * 5,
])
def test_put_takes_any_contiguous_buffer(store, value):
    assert store.put("key", value) == 0
    assert store.get("key") == bytes(value)
    assert store.get_size("key") == len(bytes(value))


@pytest.mark.parametrize("value", ["text", 5, None, np.arange(10)[::2], [1, 2]])
def test_put_refuses_what_is_no_contiguous_buffer(store, value):
    with pytest.raises(TypeError, match="value must be a contiguous bytes-like object"):
        store.put("key", value)
    assert store.is_exist("key") == 0


def test_existing_key_keeps_its_first_value(store):
    assert store.put("key", b"first") == 0
    assert store.put("key", b"second") == 0
    assert store.get("key") == b"first"


def test_empty_value_is_a_value(store):
    assert store.put("empty", b"") == 0
    assert store.is_exist("empty") == 1
    assert store.get_size("empty") == 0
    assert store.get("empty") == b""
    assert store.get_into("empty", 0, 0) == 0
    assert bytes(store.get_buffer("empty")) == b""
    assert store.batch_put_from(["e2"], [0], [0]) == [0]
    assert store.is_exist("e2") == 1


@pytest.mark.parametrize("key", ["plain", "with space/and@signs:1.2", "ключ", b"\x00\xff raw", "x" * 2000])
def test_keys_are_any_text_or_bytes(store, key):
    assert store.put(key, b"v") == 0
    assert store.get(key) == b"v"
    assert store.is_exist(key) == 1
    assert store.remove(key) == 0
    assert store.is_exist(key) == 0


def test_text_and_its_utf8_are_one_key(store):
    assert store.put("ключ", b"v") == 0
    assert store.get("ключ".encode()) == b"v"


def test_empty_key_is_invalid(store):
    assert store.put("", b"v") == INVALID
    assert store.batch_put_from(["", "good"], [0, 0], [0, 0]) == [INVALID, 0]


@pytest.mark.parametrize("size", [1, 4096, MiB - 1, 20 * MiB])
def test_sizes_round_trip_through_every_path(store, size):
    data = pattern(size)
    assert store.put_from("from", address(data), size) == 0
    assert store.put("put", data) == 0
    for key in ("from", "put"):
        target = np.zeros(size + 16, dtype=np.uint8)
        assert store.get_into(key, address(target), target.nbytes) == size
        assert (target[:size] == data).all() and not target[size:].any()
        assert store.get(key) == data.tobytes()
        assert bytes(store.get_buffer(key)) == data.tobytes()


def test_misses(store):
    target = np.zeros(8, dtype=np.uint8)
    assert store.get("none") == b""
    assert store.get_batch(["none", "none"]) == [b"", b""]
    assert store.get_buffer("none") is None
    assert store.get_into("none", address(target), 8) == NOT_FOUND
    assert store.get_size("none") == NOT_FOUND
    assert store.remove("none") == NOT_FOUND
    assert store.is_exist("none") == 0


def test_too_small_a_buffer_is_refused_untouched(store):
    store.put("key", b"x" * 100)
    target = np.zeros(99, dtype=np.uint8)
    assert store.get_into("key", address(target), 99) == INVALID
    assert not target.any()


def test_object_larger_than_the_tier_has_no_space(store):
    data = np.zeros(65 * MiB, dtype=np.uint8)
    assert store.put("big", data) == NO_SPACE
    assert store.is_exist("big") == 0


def test_put_parts_concatenates(store):
    assert store.put_parts("key", b"head", bytearray(b"body"), np.arange(3, dtype=np.uint8)) == 0
    assert store.get("key") == b"headbody\x00\x01\x02"
    assert store.put_parts("one", b"single", config=ReplicateConfig()) == 0
    assert store.get("one") == b"single"
    assert store.put_parts("none") == 0
    assert store.is_exist("none") == 1
    with pytest.raises(TypeError, match="'conf'"):
        store.put_parts("key", b"a", conf=None)


# --- batches ---

def test_batches_keep_order_and_fail_key_by_key(store):
    data = pattern(4 * 4096).reshape(4, 4096)
    keys = ["a", "b", "c", "d"]
    addresses = [address(row) for row in data]
    assert store.batch_put_from(keys[:3], addresses[:3], [4096] * 3) == [0, 0, 0]
    assert store.batch_is_exist(keys) == [1, 1, 1, 0]
    target = np.zeros_like(data)
    targets = [address(row) for row in target]
    assert store.batch_get_into(keys[::-1], targets, [4096, 4095, 4096, 5000]) == [NOT_FOUND, INVALID, 4096, 4096]
    assert (target[2] == data[1]).all() and (target[3] == data[0]).all()
    assert not target[:2].any()


def test_null_address_fails_alone(store):
    data = pattern(64)
    assert store.batch_put_from(["a", "b", "c"], [address(data), 0, 2**64 - 8], [64, 64, 64]) == [0, INVALID, INVALID]
    assert store.batch_get_into(["a", "a"], [0, address(data)], [64, 64]) == [INVALID, 64]
    assert store.put_from("d", 0, 64) == INVALID
    assert store.get_into("a", 0, 64) == INVALID


def test_first_of_equal_keys_in_a_batch_wins(store):
    data = pattern(128)
    assert store.batch_put_from(["k", "k"], [address(data), address(data) + 64], [64, 64]) == [0, 0]
    assert store.get("k") == data[:64].tobytes()
    assert store.put_batch(["p", "p"], [b"one", b"two"]) == 0
    assert store.get("p") == b"one"


def test_length_mismatch_is_invalid_for_each_key(store):
    assert store.batch_put_from(["a", "b"], [1], [1, 1]) == [INVALID] * 2
    assert store.batch_get_into(["a", "b"], [1, 1], []) == [INVALID] * 2
    assert store.put_batch(["a", "b"], [b"1"]) == INVALID
    assert store.batch_is_exist(["a", "b"]) == [0, 0]


def test_empty_batches(store):
    assert store.batch_put_from([], [], []) == []
    assert store.batch_get_into([], [], []) == []
    assert store.batch_is_exist([]) == []
    assert store.get_batch([]) == []
    assert store.batch_get_buffer([]) == []
    assert store.batch_remove([]) == []
    assert store.put_batch([], []) == 0


def test_get_batch_and_handles_have_holes(store):
    assert store.put_batch(["a", "c"], [b"1", b"3"]) == 0
    assert store.get_batch(["a", "b", "c"]) == [b"1", b"", b"3"]
    handles = store.batch_get_buffer(["a", "b", "c"])
    assert [handle and bytes(handle) for handle in handles] == [b"1", None, b"3"]


def test_put_batch_returns_the_first_failure(store):
    assert store.put_batch(["a", "", "c"], [b"1", b"2", b"3"]) == INVALID
    assert store.batch_is_exist(["a", "c"]) == [1, 1]


def test_sequences_other_than_lists(store):
    data = pattern(3 * 16)
    addresses = np.array([address(data) + 16 * i for i in range(3)], dtype=np.uint64)
    assert store.batch_put_from(("a", b"b", "c"), addresses, np.full(3, 16)) == [0, 0, 0]
    assert store.get("b") == data[16:32].tobytes()


def test_large_batch(store):
    count = 3000
    data = pattern(count * 64).reshape(count, 64)
    keys = [f"key {i}" for i in range(count)]
    assert store.batch_put_from(keys, [address(row) for row in data], [64] * count) == [0] * count
    target = np.zeros_like(data)
    assert store.batch_get_into(keys, [address(row) for row in target], [64] * count) == [64] * count
    assert (target == data).all()


# --- buffer handles ---

def test_handle_is_a_read_only_buffer(store):
    store.put("key", b"0123456789")
    handle = store.get_buffer("key")
    assert isinstance(handle, BufferHandle)
    assert handle.size() == len(handle) == 10
    assert ctypes.string_at(handle.ptr(), handle.size()) == b"0123456789"
    view = memoryview(handle)
    assert view.readonly and view.ndim == 1 and view.itemsize == 1 and view == b"0123456789"
    assert np.frombuffer(handle, dtype=np.uint8)[3] == ord("3")
    with pytest.raises(TypeError):
        view[0] = 1


def test_handle_outlives_key_store_and_close(master, open_store):
    store = open_store(master)
    data = pattern(MiB)
    store.put("key", data)
    handle = store.get_buffer("key")
    assert store.remove("key") == 0
    store.put("other", np.zeros(MiB, dtype=np.uint8))
    assert bytes(handle) == data.tobytes()
    store.close()
    view = memoryview(handle)
    del store, handle
    assert bytes(view) == data.tobytes()


# --- removal ---

def test_remove_all_counts(store):
    assert store.put_batch(["a", "b", "c"], [b"1", b"2", b"3"]) == 0
    assert store.remove_all(force=True) == 3
    assert store.remove_all() == 0
    assert store.batch_is_exist(["a", "b", "c"]) == [0, 0, 0]
    assert store.put("a", b"again") == 0
    assert store.get("a") == b"again"


def test_batch_remove(store):
    store.put("a", b"1")
    assert store.batch_remove(["a", "b"], force=True) == [0, NOT_FOUND]


# --- registration ---

def test_register_counts_and_refuses_overlap(store):
    data = np.zeros(4096, dtype=np.uint8)
    assert store.register_buffer(address(data), 4096) == 0
    assert store.register_buffer(address(data), 4096) == 0
    assert store.register_buffer(address(data) + 100, 4096) == INVALID
    assert store.unregister_buffer(address(data) + 100) == INVALID
    assert store.unregister_buffer(address(data)) == 0
    assert store.unregister_buffer(address(data)) == 0
    assert store.unregister_buffer(address(data)) == INVALID
    assert store.register_buffer(0, 4096) == INVALID
    assert store.register_buffer(address(data), 0) == INVALID


# --- types ---

def test_wrong_types_are_type_errors(store):
    data = pattern(8)
    wrong = [
        lambda: store.put(5, b""),
        lambda: store.put("k", b"", "config"),
        lambda: store.put_from("k", "address", 8),
        lambda: store.put_from("k", -1, 8),
        lambda: store.put_from("k", address(data), 8.0),
        lambda: store.put_from("k", 2**64, 8),
        lambda: store.batch_put_from("keys", [1], [1]),
        lambda: store.batch_put_from(["k"], [None], [1]),
        lambda: store.batch_put_from([None], [address(data)], [8]),
        lambda: store.batch_get_into(["k"], 5, [1]),
        lambda: store.batch_is_exist("abc"),
        lambda: store.batch_is_exist(None),
        lambda: store.get(None),
        lambda: store.is_exist(1.5),
        lambda: store.register_buffer(None, 1),
        lambda: store.put_batch(["k"], 5),
        lambda: store.put(object(), b""),
    ]
    for call in wrong:
        with pytest.raises(TypeError):
            call()
    assert store.batch_is_exist(["k"]) == [0]


def test_unknown_keyword_is_named(store):
    for call in (store.put, store.get, store.get_into, store.remove, store.batch_put_from):
        with pytest.raises(TypeError, match="no_such_keyword"):
            call("k", no_such_keyword=1)


def test_keywords_of_the_contract(store):
    data = pattern(8)
    assert store.put(key="a", value=b"1", config=None) == 0
    assert store.batch_put_from(keys=["b"], buffer_ptrs=[address(data)], sizes=[8], config=ReplicateConfig()) == [0]
    assert store.put_from(key="c", buffer_ptr=address(data), size=8, config=None) == 0
    assert store.get_into(key="c", buffer_ptr=address(data), size=8) == 8
    assert store.remove(key="a", force=True) == 0


# --- ReplicateConfig ---

def test_replicate_config_fields():
    config = ReplicateConfig()
    assert (config.replica_num, config.with_soft_pin, config.with_hard_pin) == (1, False, False)
    assert (config.preferred_segments, config.preferred_segment, config.prefer_alloc_in_same_node) == ([], "", False)
    assert config.group_ids is None and config.soft_pin_ttl_ms is None
    config.preferred_segments.append("a:1")
    config.group_ids = ["g"]
    config.replica_num = 2
    assert "replica_num=2" in str(config) and "'a:1'" in str(config)
    with pytest.raises(AttributeError):
        config.no_such_field = 1
    with pytest.raises(TypeError):
        config.replica_num = "two"


def test_config_is_accepted_everywhere(store):
    config = ReplicateConfig()
    config.replica_num = 3
    config.with_soft_pin = True
    config.prefer_alloc_in_same_node = True
    data = pattern(8)
    assert store.put("a", b"1", config) == 0
    assert store.put_batch(["b"], [b"1"], config) == 0
    assert store.put_from("c", address(data), 8, config) == 0
    assert store.batch_put_from(["d"], [address(data)], [8], config) == [0]
    assert store.get("a", config) == b"1"
    assert store.batch_get_into(["d"], [address(data)], [8], config) == [8]


# --- life cycle ---

def unused_answers(store):
    data = np.zeros(8, dtype=np.uint8)
    return [
        store.put("k", b"v") == INVALID, store.put_parts("k", b"v") == INVALID, store.put_batch(["k"], [b"v"]) == INVALID,
        store.put_from("k", address(data), 8) == INVALID,
        store.batch_put_from(["k", "l"], [address(data)] * 2, [8] * 2) == [INVALID] * 2,
        store.get("k") == b"", store.get_batch(["k", "l"]) == [b"", b""], store.get_buffer("k") is None,
        store.batch_get_buffer(["k", "l"]) == [None, None], store.get_into("k", address(data), 8) == INVALID,
        store.batch_get_into(["k"], [address(data)], [8]) == [INVALID], store.is_exist("k") == INVALID,
        store.batch_is_exist(["k", "l"]) == [INVALID] * 2, store.batch_is_exist([]) == [],
        store.get_size("k") == INVALID, store.remove("k") == INVALID, store.batch_remove(["k"]) == [INVALID],
        store.remove_all() == INVALID, store.register_buffer(address(data), 8) == INVALID,
        store.unregister_buffer(address(data)) == INVALID, store.get_hostname() == "", store.health_check() == 1,
    ]


def test_calls_before_setup_give_the_documented_empties():
    store = MooncakeDistributedStore()
    assert all(unused_answers(store))
    assert store.close() == 0
    assert all(unused_answers(store))


def test_calls_after_close_and_a_second_life(master, open_store):
    store = open_store(master)
    store.put("key", b"v")
    assert store.close() == 0 and store.close() == 0
    assert all(unused_answers(store))
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 16 * MiB, 0, "tcp", "", master.address,
                       enable_http_server=False) == 0
    assert store.health_check() == 0
    assert store.get("key") == b""
    assert store.put("key", b"w") == 0
    assert store.get("key") == b"w"


def test_subclass_with_attributes(master):
    class Async(MooncakeDistributedStore):
        def __init__(self):
            super().__init__()
            self.extra = 1

        def __getattr__(self, name):
            if not name.startswith("async_"):
                raise AttributeError(name)
            method = getattr(self, name.removeprefix("async_"))
            setattr(self, name, method)
            return method

    store = Async()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 16 * MiB, 0, "tcp", "", master.address,
                       enable_http_server=False) == 0
    assert store.async_put("k", b"v") == 0
    assert "async_put" in vars(store) and store.extra == 1
    assert store.get("k") == b"v"
    store.close()
    plain = MooncakeDistributedStore()
    plain.anything = 5


def test_several_stores_of_one_process_share_keys(master, open_store):
    stores = [open_store(master) for _ in range(4)] + [open_store(master, global_segment_size=0, local_buffer_size=0)]
    assert len({store.get_hostname() for store in stores}) == 5
    for i, store in enumerate(stores):
        assert store.put(f"key{i}", f"value{i}".encode()) == 0
    for store in stores:
        assert store.get_batch([f"key{i}" for i in range(5)]) == [f"value{i}".encode() for i in range(5)]
    stores[0].close()
    assert stores[1].is_exist("key0") == 0
    assert stores[1].is_exist("key1") == 1


def test_pure_client_stores_at_others(master, open_store):
    owner = open_store(master)
    client = open_store(master, global_segment_size=0, local_buffer_size=0, protocol="rpc_only")
    data = pattern(3 * MiB)
    assert client.put("key", data) == 0
    assert owner.get("key") == data.tobytes()
    assert client.get("key") == data.tobytes()
    assert bytes(client.get_buffer("key")) == data.tobytes()
    assert client.remove("key") == 0
    assert owner.is_exist("key") == 0


def test_doc_strings_say_what_programs_look_for():
    assert "enable_ssd_offload" in MooncakeDistributedStore.setup.__doc__
    assert "force" in MooncakeDistributedStore.remove.__doc__
    for name, method in vars(MooncakeDistributedStore).items():
        if not name.startswith("_"):
            assert method.__doc__.startswith(f"{name}("), name


def test_import_starts_nothing_and_needs_nothing(tmp_path):
    result = run_python(
        "import sys; before = set(sys.modules)\n"
        "import mooncake.store\n"
        "threads = open('/proc/self/status').read().split('Threads:')[1].split()[0]\n"
        "print(threads, sorted(m for m in sys.modules if m in ('numpy', 'torch')))", cwd=tmp_path)
    assert (result.returncode, result.stdout.split()) == (0, ["1", "[]"]), result.stderr
