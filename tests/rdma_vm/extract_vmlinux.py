#!/usr/bin/env python3
"""Takes the ELF kernel out of a bzImage: unpacking itself under emulation would cost the guest seconds.

Usage: extract_vmlinux.py BZIMAGE VMLINUX. Exit code 1, and no file, when the image is of a kind it does not know.
"""
import struct
import subprocess
import sys

DECOMPRESSORS = {
    b"\xfd7zXZ\0": ["xz", "-dc", "--single-stream"],
    b"\x28\xb5\x2f\xfd": ["zstd", "-dcq"],
    b"\x1f\x8b": ["gzip", "-dc"],
}


def main():
    source, target = sys.argv[1:]
    with open(source, "rb") as file:
        image = file.read()
    # Fields of the Linux boot protocol's header: setup_sects, payload_offset, payload_length.
    setup_sectors = image[0x1F1]
    offset, length = struct.unpack_from("<II", image, 0x248)
    payload = image[(setup_sectors + 1) * 512 + offset:][:length]
    command = next((c for magic, c in DECOMPRESSORS.items() if payload.startswith(magic)), None)
    if command is None:
        return 1
    # The payload has the size of the kernel behind it, which decompressors complain about.
    kernel = subprocess.run(command, input=payload, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False).stdout
    if not kernel.startswith(b"\x7fELF"):
        return 1
    with open(target, "wb") as file:
        file.write(kernel)
    return 0


if __name__ == "__main__":
    sys.exit(main())
