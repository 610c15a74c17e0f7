"""mooncake.engine between two processes: every method, its codes, and the conventions that programs rely on."""
import http.server
import json
import mmap
import os
import socket
import threading
import urllib.parse

import numpy as np
import pytest
from conftest import free_port
from engine_peer import MEMORY_BYTES, Peer, address_of, open_engine, session_of
from mooncake.engine import TransferEngine, TransferNotify, TransferOpcode

PATHS = {"within the host": {}, "tcp": {"MC_FORCE_TCP": "1"}}


@pytest.fixture(params=PATHS, scope="module")
def path(request):
    """Environment that chooses how bytes travel."""
    saved = {name: os.environ.get(name) for name in PATHS[request.param]}
    os.environ.update(PATHS[request.param])
    yield request.param
    for name, value in saved.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


@pytest.fixture(scope="module")
def peer(path):
    started = Peer()
    yield started
    started.end()


@pytest.fixture(scope="module")
def engine(path):
    return open_engine()


@pytest.fixture
def local():
    return np.random.default_rng(7).integers(0, 256, MEMORY_BYTES, dtype=np.uint8)


def peer_bytes(peer, offset, size):
    return bytes(peer.ask(f"memory[{offset}:{offset + size}].tolist()"))


@pytest.mark.parametrize("size", [1, 4095, 65_536, 1_000_001, MEMORY_BYTES])
def test_bytes_written_are_the_bytes_read(engine, peer, local, size):
    offset = (MEMORY_BYTES - size) // 3
    assert engine.transfer_sync_write(peer.session, address_of(local), peer.address + offset, size) == 0
    assert peer_bytes(peer, offset, min(size, 5000)) == local[:min(size, 5000)].tobytes()
    back = np.zeros(size, dtype=np.uint8)
    assert engine.transfer_sync_read(peer.session, address_of(back), peer.address + offset, size) == 0
    assert (back == local[:size]).all()


def test_opcode_chooses_the_direction(engine, peer, local):
    assert engine.transfer_sync(peer.session, address_of(local), peer.address, 100, TransferOpcode.Write) == 0
    back = np.zeros(100, dtype=np.uint8)
    assert engine.transfer_sync(target_hostname=peer.session, buffer=address_of(back), peer_buffer_address=peer.address,
                                length=100, opcode=TransferOpcode.Read) == 0
    assert (back == local[:100]).all()


def test_batches_move_all_pieces(engine, peer, local):
    sizes = [1 + 37 * i for i in range(200)]
    starts = np.cumsum([0, *sizes[:-1]]).tolist()
    here = [address_of(local, start) for start in starts]
    there = [peer.address + start for start in starts]
    assert engine.batch_transfer_sync_write(peer.session, here, there, sizes) == 0
    back = np.zeros(sum(sizes), dtype=np.uint8)
    here = [address_of(back, start) for start in starts]
    assert engine.batch_transfer_sync_read(peer.session, here, there, sizes) == 0
    assert (back == local[:len(back)]).all()
    assert engine.batch_transfer_sync(peer.session, here, there, sizes, TransferOpcode.Read) == 0


def test_batch_lists_have_to_agree(engine, peer, local):
    for lists in ([[1], [], []], [[1], [1], []], [[1], [1], [1, 2]]):
        assert engine.batch_transfer_sync_write(peer.session, *lists) == -1
        assert engine.batch_transfer_async_read(peer.session, *lists) == 0


def test_empty_calls_do_nothing_and_succeed(engine, peer):
    assert engine.transfer_sync_write(peer.session, 0, 0, 0) == 0
    assert engine.batch_transfer_sync_read(peer.session, [], [], []) == 0
    assert engine.get_batch_transfer_status([]) == 0


def test_async_batches_end_and_their_numbers_are_free(engine, peer, local):
    here, there, sizes = [address_of(local)], [peer.address], [MEMORY_BYTES]
    first = engine.batch_transfer_async_write(peer.session, here, there, sizes)
    second = engine.batch_transfer_async(peer.session, here, there, sizes, TransferOpcode.Write)
    third = engine.batch_transfer_async_read(peer.session, here, there, sizes)
    assert min(first, second, third) > 0
    assert engine.get_batch_transfer_status([first, second, third]) == 0
    assert engine.transfer_check_status(first) == -1
    assert engine.get_batch_transfer_status([second]) == -1
    assert engine.get_batch_transfer_status([0]) == -1


def test_submitted_write_is_polled_until_done(engine, peer, local):
    batch = engine.transfer_submit_write(peer.session, address_of(local), peer.address, 3 << 20)
    assert batch > 0
    while (state := engine.transfer_check_status(batch)) == 0:
        pass
    assert state == 1
    assert peer_bytes(peer, (3 << 20) - 100, 100) == local[(3 << 20) - 100:3 << 20].tobytes()
    assert engine.transfer_check_status(batch) == -1
    assert engine.transfer_check_status(-1) == -1


def test_notify_alone_and_after_data(engine, peer, local):
    assert peer.ask("engine.get_notifies()") == []
    alone = TransferNotify("me", "alone")
    assert engine.transfer_sync(peer.session, 0, 0, 0, TransferOpcode.Write, alone) == 0
    for step in range(20):
        local[0] = step
        assert engine.transfer_sync(peer.session, address_of(local), peer.address, 1, TransferOpcode.Write,
                                    notify=TransferNotify("me", f"step {step}")) == 0
    assert engine.batch_transfer_sync(peer.session, [address_of(local)], [peer.address], [1], TransferOpcode.Write,
                                      TransferNotify(name="you", msg="last \udcff")) == 0
    received = peer.ask("[(n.name, n.msg) for n in engine.get_notifies()]")
    assert received == [["me", "alone"], *(["me", f"step {step}"] for step in range(20)), ["you", "last \udcff"]]


def test_refused_ranges_move_nothing(engine, peer, local):
    before = peer_bytes(peer, MEMORY_BYTES - 8, 8)
    assert engine.transfer_sync_write(peer.session, address_of(local), peer.address + MEMORY_BYTES - 8, 16) == -1
    assert engine.transfer_sync_read(peer.session, address_of(local), 0x1000, 16) == -1
    assert engine.transfer_sync_read(peer.session, 0, peer.address, 16) == -1
    assert engine.transfer_sync_read(peer.session, address_of(local), 2**64 - 8, 16) == -1
    assert engine.batch_transfer_sync_write(peer.session, [address_of(local)] * 2,
                                            [peer.address + MEMORY_BYTES - 8, 0x1000], [8, 8]) == -1
    assert engine.transfer_submit_write(peer.session, address_of(local), 0x1000, 16) == -1
    assert engine.batch_transfer_async_read(peer.session, [address_of(local)], [0x1000], [16]) == 0
    assert peer_bytes(peer, MEMORY_BYTES - 8, 8) == before


def test_late_and_early_registration_is_seen(engine, peer, local):
    address = peer.ask("globals().update(late=np.full(4096, 9, dtype=np.uint8)) or late.ctypes.data")
    assert engine.transfer_sync_read(peer.session, address_of(local), address, 4096) == -1
    assert peer.ask("engine.batch_register_memory([late.ctypes.data], [late.nbytes])") == 0
    assert engine.transfer_sync_read(peer.session, address_of(local), address, 4096) == 0
    assert (local[:4096] == 9).all()
    assert peer.ask("engine.batch_unregister_memory([late.ctypes.data])") == 0
    assert engine.transfer_sync_read(peer.session, address_of(local), address, 4096) == -1


def test_managed_buffers_are_reached_by_peers(engine, peer):
    size = 100_000
    address = peer.ask(f"globals().update(buffer=engine.allocate_managed_buffer({size})) or buffer")
    mine = engine.allocate_managed_buffer(size)
    assert address > 0 and mine > 0
    data = os.urandom(size)
    assert engine.write_bytes_to_buffer(mine, data, size) == 0
    assert engine.transfer_sync_write(peer.session, mine, address, size) == 0
    assert bytes(peer.ask(f"list(engine.read_bytes_from_buffer(buffer, {size}))")) == data
    assert peer.ask(f"engine.free_managed_buffer(buffer, {size})") == 0
    assert engine.free_managed_buffer(mine, 4 * size) == -1
    assert engine.free_managed_buffer(mine, size) == 0
    assert engine.free_managed_buffer(mine, size) == -1
    assert engine.free_managed_buffer(1234, size) == -1
    assert engine.allocate_managed_buffer(0) == 0


def test_large_managed_buffers_have_memory_of_their_own(engine):
    size = (256 << 20) + 1
    address = engine.allocate_managed_buffer(size)
    assert address > 0
    assert engine.write_bytes_to_buffer(address + size - 4, b"last", 4) == 0
    assert engine.read_bytes_from_buffer(address + size - 4, 4) == b"last"
    assert engine.free_managed_buffer(address, size) == 0


def test_bytes_in_and_out_of_local_memory(engine, local):
    assert engine.write_bytes_to_buffer(address_of(local, 10), b"0123456789", 4) == 0
    assert engine.read_bytes_from_buffer(address_of(local, 10), 4) == b"0123"
    assert engine.write_bytes_to_buffer(address_of(local), bytearray(b"ab"), 3) == -1
    assert engine.write_bytes_to_buffer(0, b"ab", 2) == -1
    assert engine.read_bytes_from_buffer(0, 2) == b""
    assert engine.read_bytes_from_buffer(address_of(local), 0) == b""


def test_registration_codes(engine):
    memory = np.zeros(1 << 16, dtype=np.uint8)
    address = address_of(memory)
    assert engine.register_memory(address, 4096) == 0
    assert engine.register_memory(address, 4096, location="cpu:0") == 0, "the identical region is counted"
    assert engine.register_memory(address + 100, 4096) == -7
    assert engine.register_memory(0, 4096) == -1
    assert engine.register_memory(address, 0) == -1
    assert engine.register_memory(address + 8192, 10, "moon") == -1
    assert engine.batch_register_memory([address + 8192, address + 100], [10, 10]) == -7
    assert engine.batch_register_memory([address + 8192], [10, 10]) == -1
    assert [engine.unregister_memory(address) for _ in range(3)] == [0, 0, -3]
    assert engine.unregister_memory(address + 8192) == -3, "a failed batch registers nothing"


def test_what_is_no_memory_is_not_registered(engine):
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 4 * page)
    view = np.frombuffer(memory, dtype=np.uint8)
    address = address_of(view)
    assert engine.register_memory(page, page) == -1, "nothing is mapped at the second page of a process"
    assert engine.register_memory(address, 1 << 46) == -1, "a length in the wrong unit"
    assert engine.batch_register_memory([address, page], [page, page]) == -1
    assert engine.unregister_memory(address) == -3, "a failed batch registers nothing"
    assert engine.register_memory(address + 1, 4 * page - 1) == 0, "up to the last byte of a mapping"
    assert engine.unregister_memory(address + 1) == 0


def test_first_buffer_is_the_lowest_region(engine, peer):
    other = Peer()
    assert engine.get_first_buffer_address(other.session) == other.address
    assert other.ask("engine.unregister_memory(memory.ctypes.data)") == 0
    assert engine.get_first_buffer_address(other.session) == 0
    other.end()
    assert engine.get_first_buffer_address("127.0.0.1:1") == 0


def test_probe_tells_live_sessions_from_dead_ones(engine, peer):
    assert engine.send_probe(peer.session) == 0
    assert engine.send_probe(f"127.0.0.1:{free_port()}") == -1
    assert engine.send_probe("") == -1
    assert engine.send_probe(session_of(engine)) == 0


def test_transfers_within_one_engine_and_between_engines_of_a_process(engine, path):
    other = open_engine()
    memory = np.arange(10_000, dtype=np.uint8)
    target = np.zeros(10_000, dtype=np.uint8)
    for owner in (engine, other):
        assert owner.register_memory(address_of(memory), memory.nbytes) == 0
        target[:] = 0
        assert engine.transfer_sync_read(session_of(owner), address_of(target), address_of(memory), memory.nbytes) == 0
        assert (target == memory).all()
        assert owner.unregister_memory(address_of(memory)) == 0


def test_topology_is_json(engine):
    assert isinstance(json.loads(engine.get_local_topology()), dict)
    assert isinstance(json.loads(TransferEngine().get_local_topology()), dict)
    assert engine.get_local_topology("no_such_device0") == ""


def test_shared_engine_lives_without_its_first_owner(path):
    first, other = open_engine(), open_engine()
    session, shared = session_of(first), first.get_engine()
    assert first.get_engine_ptr() > 0
    del first
    assert other.send_probe(session) == 0
    del shared
    assert other.send_probe(session) == -1


# --- without a peer ---


def test_before_initialize_everything_fails():
    engine = TransferEngine()
    assert engine.get_rpc_port() == 0
    assert engine.register_memory(4096, 4096) == -1 == engine.unregister_memory(4096)
    assert engine.batch_register_memory([4096], [4096]) == -1 == engine.batch_unregister_memory([4096])
    assert engine.allocate_managed_buffer(4096) == 0
    assert engine.free_managed_buffer(4096, 4096) == -1
    assert engine.transfer_sync_write("127.0.0.1:1", 1, 1, 1) == -1
    assert engine.batch_transfer_sync_read("127.0.0.1:1", [1], [1], [1]) == -1
    assert engine.batch_transfer_async_write("127.0.0.1:1", [1], [1], [1]) == 0
    assert engine.transfer_submit_write("127.0.0.1:1", 1, 1, 1) == -1
    assert engine.transfer_check_status(1) == -1 == engine.get_batch_transfer_status([1])
    assert engine.write_bytes_to_buffer(4096, b"x", 1) == -1
    assert engine.read_bytes_from_buffer(4096, 1) == b""
    assert engine.get_notifies() == []
    assert engine.send_probe("127.0.0.1:1") == -1
    assert engine.get_first_buffer_address("127.0.0.1:1") == 0
    assert engine.get_engine() is None and engine.get_engine_ptr() == 0


@pytest.mark.parametrize("protocol", ["tcp", "rdma", "ascend", "efa", ""])
@pytest.mark.parametrize("forced", [True, False])
def test_protocols_without_hardware_go_over_tcp(protocol, forced, monkeypatch):
    monkeypatch.setenv("MC_FORCE_TCP", str(int(forced)))
    source, target = open_engine(protocol=protocol), open_engine()
    memory, copy = np.full(1000, 5, dtype=np.uint8), np.zeros(1000, dtype=np.uint8)
    assert target.register_memory(address_of(memory), 1000) == 0
    assert source.transfer_sync_read(session_of(target), address_of(copy), address_of(memory), 1000) == 0
    assert (copy == memory).all()


def test_failed_initialize_says_why_and_can_be_repeated(capfd, monkeypatch):
    monkeypatch.delenv("MC_FORCE_TCP", raising=False)
    engine = TransferEngine()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert engine.initialize(f"127.0.0.1:{port}", "P2PHANDSHAKE", "tcp", "") == -1
        assert str(port) in capfd.readouterr().err
    for wrong in (("127.0.0.1", "gopher://x", "tcp", ""), ("127.0.0.1", "P2PHANDSHAKE", "carrier pigeon", "")):
        assert engine.initialize(*wrong) == -1
        assert wrong[1 if "://" in wrong[1] else 2] in capfd.readouterr().err
    monkeypatch.setenv("MC_SHM_ANY_USER", "everybody")
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == -1
    assert "MC_SHM_ANY_USER='everybody'" in capfd.readouterr().err
    monkeypatch.delenv("MC_SHM_ANY_USER")
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == -1
    assert engine.send_probe(session_of(engine)) == 0


def test_a_fixed_port_is_kept():
    port = free_port()
    engine = TransferEngine()
    assert engine.initialize_ext(f"127.0.0.1:{port}", "P2PHANDSHAKE", "tcp", "", "etcd") == 0
    assert engine.get_rpc_port() == port
    assert TransferEngine().initialize_ext("127.0.0.1", "127.0.0.1:1", "tcp", "", "zookeeper") == -1


def test_reasons_of_failures_are_logged(engine, capfd):
    line = ""
    while not line:  # at most one line a second
        assert engine.transfer_sync_read("127.0.0.1:1", 4096, 4096, 1) == -1
        line = capfd.readouterr().err
    assert "transfer_sync_read" in line and "127.0.0.1:1" in line


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
        return True
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6(), reason="this host has no IPv6 loopback")
@pytest.mark.parametrize("path_of_bytes", PATHS)
def test_ipv6(path_of_bytes, monkeypatch):
    for name, value in PATHS[path_of_bytes].items():
        monkeypatch.setenv(name, value)
    peer = Peer(host="::1")
    engine = open_engine(host="::1")
    copy = np.ones(100_000, dtype=np.uint8)
    assert engine.transfer_sync_read(peer.session, address_of(copy), peer.address, copy.nbytes) == 0
    assert not copy.any()
    peer.end()


@pytest.mark.parametrize("call", [
    lambda e: e.initialize("h", "m", "p"), lambda e: e.initialize(1, "m", "p", ""), lambda e: e.register_memory("a", 1),
    lambda e: e.register_memory(-1, 1), lambda e: e.register_memory(1.5, 1), lambda e: e.register_memory(2**64, 1),
    lambda e: e.register_memory(1, 1, 7), lambda e: e.batch_register_memory(5, [1]),
    lambda e: e.transfer_sync_write(b"host", 1, 1, 1), lambda e: e.transfer_sync_write("h", None, 1, 1),
    lambda e: e.transfer_sync("h", 1, 1, 1, 0), lambda e: e.transfer_sync("h", 1, 1, 1, TransferOpcode.Read, "note"),
    lambda e: e.batch_transfer_sync_read("h", [1], [1], ["1"]), lambda e: e.get_batch_transfer_status(7),
    lambda e: e.transfer_check_status("7"), lambda e: e.write_bytes_to_buffer(1, 5, 1),
    lambda e: e.send_probe(7), lambda e: e.get_local_topology(7), lambda e: TransferNotify(1, "x"),
    lambda e: TransferNotify("x", 1), lambda e: e.get_first_buffer_address(None), lambda e: e.no_such_method()])
def test_wrong_types_raise(call):
    with pytest.raises((TypeError, AttributeError)):
        call(TransferEngine())


def test_notify_has_name_and_msg():
    notify = TransferNotify("n", b"raw \xff")
    assert (notify.name, notify.msg) == ("n", "raw \udcff")
    notify.msg = "other"
    assert (TransferNotify().name, notify.msg) == ("", "other")
    assert repr(notify) == "TransferNotify(name='n', msg='other')"


def test_names_that_programs_test_for():
    assert TransferEngine.TransferOpcode is TransferOpcode
    assert int(TransferOpcode.Read) == 0 and int(TransferOpcode.Write) == 1
    public = [name for name in dir(TransferEngine) if not name.startswith("_") and name != "TransferOpcode"]
    assert len(public) == 29
    for name in public:
        document = getattr(TransferEngine, name).__doc__
        assert document.startswith(f"{name}("), name
        assert "\n\n    " in document, f"{name} shows no example"


def meet_by_name(url, place, first, second):
    source, target = TransferEngine(), TransferEngine()
    assert source.initialize(first, url, "tcp", "") == 0
    assert target.initialize_ext(second, place, "tcp", "", "http") == 0
    memory, copy = np.full(5000, 6, dtype=np.uint8), np.zeros(5000, dtype=np.uint8)
    assert target.register_memory(address_of(memory), memory.nbytes) == 0
    assert source.get_first_buffer_address(second) == address_of(memory)
    assert source.transfer_sync_read(second, address_of(copy), address_of(memory), copy.nbytes) == 0
    assert (copy == memory).all()
    assert source.send_probe(second) == 0
    assert source.transfer_sync_read("nobody", address_of(copy), address_of(memory), copy.nbytes) == -1


def test_names_on_the_metadata_server(start):
    server = start("mooncake_http_metadata_server", "--host=127.0.0.1", "--port=0")
    url = server.wait_for(r"ready: (http://\S+)").group(1)
    meet_by_name(url, url.removeprefix("http://"), "node/1", "node/2")


class MetadataHandler(http.server.BaseHTTPRequestHandler):
    """GET, PUT and DELETE of ?key=."""
    values = {}

    def log_message(self, *arguments):
        pass

    def key(self):
        return urllib.parse.parse_qs(urllib.parse.urlparse(self.path).query)["key"][0]

    def answer(self, code, body=b""):
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        value = self.values.get(self.key())
        self.answer(404) if value is None else self.answer(200, value)

    def do_PUT(self):
        self.values[self.key()] = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200)

    def do_DELETE(self):
        self.values.pop(self.key(), None)
        self.answer(200)


def test_names_on_any_server_of_keys():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), MetadataHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = f"127.0.0.1:{server.server_port}/metadata"
        meet_by_name(f"http://{place}", place, "first-node", "second-node")
        assert MetadataHandler.values == {}, "engines that are gone leave no entries"
        server.shutdown()
