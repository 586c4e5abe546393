"""In place of a worker: ready at once, and at its first case it does what it is called after. Needs no library."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path


def send(sock: socket.socket, message: object) -> None:
    body = json.dumps(message).encode()
    sock.sendall(struct.pack("!Q", len(body)) + body)


def babble(sock: socket.socket) -> None:
    sock.sendall(b"hello, hello, hello")


def boast(sock: socket.socket) -> None:
    sock.sendall(struct.pack("!Q", 2**63))


def nest(sock: socket.socket) -> None:
    sock.sendall(struct.pack("!Q", 200_000) + b"[" * 200_000)


def stop_in_the_middle(sock: socket.socket) -> None:
    sock.sendall(struct.pack("!Q", 1000) + b"x")
    sock.close()


def trickle(sock: socket.socket) -> None:
    sock.sendall(struct.pack("!Q", 1000))
    while True:
        sock.sendall(b"x")
        time.sleep(0.05)


def answer_without_a_number(sock: socket.socket) -> None:
    send(sock, {"reports": []})


def let_go(sock: socket.socket) -> None:
    """Leave it to a child that has the connection as well."""
    if os.fork():
        os._exit(3)
    time.sleep(1000)


def fill(sock: socket.socket) -> None:
    with Path(os.environ["TMPDIR"], "filling").open("wb", buffering=0) as file:
        for _ in range(200):
            file.write(bytes(1_000_000))
            time.sleep(0.005)
    time.sleep(1000)


def print_a_lot(sock: socket.socket) -> None:
    for _ in range(200):
        os.write(2, bytes(1_000_000))
        time.sleep(0.005)
    time.sleep(1000)


STRANGER = f"kept = bytearray(b'x' * 300_000_000); import time; time.sleep({10**6 + 7})"


def start_strangers(sock: socket.socket) -> None:
    """One in the worker's session and one in its own, neither with anything of the worker's environment."""
    for is_apart in (False, True):
        subprocess.Popen([sys.executable, "-S", "-c", STRANGER], env={}, start_new_session=is_apart)
    time.sleep(1000)


def leave_a_stranger(sock: socket.socket) -> None:
    subprocess.Popen([sys.executable, "-S", "-c", STRANGER], env={})
    os._exit(3)


def take_a_strange_name(sock: socket.socket) -> None:
    """No UTF-8, and brackets as the system puts around it; its judge reads it among those of all processes."""
    ctypes.CDLL(None).prctl(15, b"\xff) Z 1 (")
    time.sleep(1000)


def main() -> None:
    """``impostor.py -m MODULE FD ACT``, as a worker is started."""
    sock = socket.socket(fileno=int(sys.argv[3]))
    send(sock, {"version": None, "provides": "kernel", "expectations": None})
    send(sock, {"ready": 1})
    sock.recv(1 << 16)
    globals()[sys.argv[4]](sock)
    time.sleep(1000)


if __name__ == "__main__":
    main()
