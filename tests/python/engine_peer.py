"""The other process of the engine's tests: an engine, registered memory, and whatever the test asks of them.

Run as a program it prints "session address", then evaluates one expression a line of its stdin and prints the result as JSON;
`engine`, `memory` (a numpy array of bytes) and `np` are known to it. Ends with its stdin.
"""
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

MEMORY_BYTES = 8 << 20
HOST = "127.0.0.1"


def open_engine(host=HOST, protocol="tcp", port=0):
    from mooncake.engine import TransferEngine
    engine = TransferEngine()
    assert engine.initialize(f"{host}:{port}" if port else host, "P2PHANDSHAKE", protocol, "") == 0
    return engine


def session_of(engine, host=HOST):
    return f"{f'[{host}]' if ':' in host else host}:{engine.get_rpc_port()}"


def address_of(array, offset=0):
    return array.ctypes.data + offset


class Peer:
    """A started peer; .session and .address are where its memory is."""

    def __init__(self, host=HOST, port=0):
        from conftest import BUILD
        path = os.pathsep.join([str(BUILD / "python"), str(Path(__file__).parent)])
        self.process = subprocess.Popen([sys.executable, __file__, host, str(port)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path})
        self.session, address = self.process.stdout.readline().split()
        self.address = int(address)

    def ask(self, expression):
        print(expression, file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def main():
    host, port = sys.argv[1], int(sys.argv[2])
    engine = open_engine(host, port=port)
    memory = np.zeros(MEMORY_BYTES, dtype=np.uint8)
    assert engine.register_memory(address_of(memory), memory.nbytes) == 0
    print(session_of(engine, host), address_of(memory), flush=True)
    known = {"engine": engine, "memory": memory, "np": np}
    for line in sys.stdin:
        print(json.dumps(eval(line, known)), flush=True)


if __name__ == "__main__":
    main()
