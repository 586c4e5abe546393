"""In place of a worker: ready at once, and at its first case it does what it is called after. Needs no library."""

from __future__ import annotations

import json
import os
import socket
import struct
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
