"""Moves bytes into the memory of another process, and tells it so. The receiver starts the sender.

PYTHONPATH=build/release/python /usr/bin/python3 examples/transfer_example.py
"""
import subprocess
import sys

from mooncake.engine import TransferEngine, TransferNotify, TransferOpcode

engine = TransferEngine()
assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
buffer = engine.allocate_managed_buffer(1 << 20)
if len(sys.argv) == 1:
    session = f"127.0.0.1:{engine.get_rpc_port()}"
    subprocess.run([sys.executable, __file__, session, str(buffer)], check=True)
    print("received", engine.read_bytes_from_buffer(buffer, 12), engine.get_notifies())
else:
    session, peer_buffer = sys.argv[1], int(sys.argv[2])
    engine.write_bytes_to_buffer(buffer, b"hello, peer!", 12)
    done = TransferNotify("sender", "12 bytes are there")
    print("sent", engine.transfer_sync(session, buffer, peer_buffer, 12, TransferOpcode.Write, done))
