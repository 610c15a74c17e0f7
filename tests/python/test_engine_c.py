"""The C interface from another language: what it says of a peer that stopped, and of one on another path."""
import ctypes
import os
import signal

import numpy as np
import pytest
from conftest import BUILD, suspend
from engine_peer import Peer, address_of

WAITING, COMPLETED, FAILED = 0, 4, 6
BATCH_BUSY = 4


class Request(ctypes.Structure):
    _fields_ = [("opcode", ctypes.c_int), ("source", ctypes.c_void_p), ("target_id", ctypes.c_int32),
                ("target_offset", ctypes.c_uint64), ("length", ctypes.c_uint64)]


class Status(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("transferred_bytes", ctypes.c_uint64)]


@pytest.fixture(scope="module")
def library():
    loaded = ctypes.CDLL(str(BUILD / "lib/libtransfer_engine.so"))
    loaded.createTransferEngine.restype = ctypes.c_void_p
    loaded.createTransferEngine.argtypes = [ctypes.c_char_p] * 3 + [ctypes.c_uint64, ctypes.c_int]
    loaded.allocateBatchID.restype = ctypes.c_uint64
    return loaded


@pytest.fixture
def engine(library):
    opened = ctypes.c_void_p(library.createTransferEngine(b"P2PHANDSHAKE", b"127.0.0.1", b"", 0, 1))
    assert opened
    yield opened
    library.destroyTransferEngine(opened)


@pytest.fixture
def peer():
    started = Peer()
    yield started
    started.end()


def submit_write(library, engine, peer, local):
    segment = library.openSegment(engine, peer.session.encode())
    assert segment >= 0
    batch = ctypes.c_uint64(library.allocateBatchID(engine, ctypes.c_size_t(1)))
    request = Request(1, address_of(local), segment, peer.address, local.nbytes)
    assert library.submitTransfer(engine, batch, ctypes.byref(request), ctypes.c_size_t(1)) == 0
    return batch


def end_of(library, engine, batch):
    status = Status()
    while status.status == WAITING:
        assert library.getTransferStatus(engine, batch, ctypes.c_size_t(0), ctypes.byref(status)) == 0
    return status


def test_bytes_reach_a_python_engine(library, engine, peer):
    local = np.full(1 << 20, 3, dtype=np.uint8)
    batch = submit_write(library, engine, peer, local)
    status = end_of(library, engine, batch)
    assert (status.status, status.transferred_bytes) == (COMPLETED, local.nbytes)
    assert peer.ask("int(memory.sum())") == 3 * local.nbytes
    assert library.freeBatchID(engine, batch) == 0


def test_a_time_out_is_a_failure(library, peer, monkeypatch):
    monkeypatch.setenv("MC_TRANSFER_TIMEOUT", "5")
    monkeypatch.setenv("MC_FORCE_TCP", "1")
    engine = ctypes.c_void_p(library.createTransferEngine(b"P2PHANDSHAKE", b"127.0.0.1", b"", 0, 1))
    local = np.ones(8 << 20, dtype=np.uint8)
    assert end_of(library, engine, submit_write(library, engine, peer, local)).status == COMPLETED
    suspend(peer.process.pid)
    batch = submit_write(library, engine, peer, local)
    assert library.freeBatchID(engine, batch) == BATCH_BUSY
    status = end_of(library, engine, batch)
    assert (status.status, status.transferred_bytes) == (FAILED, 0)
    assert library.freeBatchID(engine, batch) == 0
    os.kill(peer.process.pid, signal.SIGCONT)
    library.destroyTransferEngine(engine)
