"""Messages between a judge and its worker: JSON with its length in front, over a socket that both have inherited.

Never pickle: a worker runs a stranger's code, and to unpickle its answer would run it in the judge as well.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any

LENGTH = struct.Struct("!Q")
MOST_BYTES = 1 << 26
"""Of one message; a report with its captured output is far below."""

Message = dict[str, Any]


class WireError(Exception):
    """What came is no message of ours."""


def send(sock: socket.socket, message: Message) -> None:
    """
    Raises:
        OSError: the other side is gone.
    """
    body = json.dumps(message).encode()
    sock.sendall(LENGTH.pack(len(body)) + body)


def receive(sock: socket.socket, deadline: float | None = None) -> Message | None:
    """The next message, or None when the other side has closed.

    Args:
        deadline: by ``time.monotonic``, for the whole message, however slowly it trickles.

    Raises:
        WireError: cut short, too long, or no JSON object.
        TimeoutError: it is not whole at the deadline.
    """
    head = _read(sock, LENGTH.size, deadline)
    if not head:
        return None
    (size,) = LENGTH.unpack(head)
    if size > MOST_BYTES:
        raise WireError(f"a message of {size:,} bytes, and {MOST_BYTES:,} are allowed")
    try:
        message = json.loads(_read(sock, size, deadline))
    except (ValueError, RecursionError) as error:
        raise WireError(f"a message that is no JSON: {error}") from None
    if not isinstance(message, dict):
        raise WireError(f"a message that is a {type(message).__name__}, not an object")
    return message


def _read(sock: socket.socket, size: int, deadline: float | None) -> bytes:
    """``size`` bytes; none at all when the other side has closed before the first."""
    read = bytearray()
    while len(read) < size:
        if deadline is not None:
            sock.settimeout(_left(deadline))
        try:
            more = sock.recv(size - len(read))
        except ConnectionError:
            more = b""
        if not more:
            if read:
                raise WireError(f"a message cut short after {len(read)} of {size} bytes")
            return b""
        read += more
    return bytes(read)


def _left(deadline: float) -> float:
    if (left := deadline - time.monotonic()) <= 0:
        raise TimeoutError("half a message")
    return left
