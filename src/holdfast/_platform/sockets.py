"""Sockets by their descriptors. On Windows these are other numbers, which the functions for files do not take."""

from __future__ import annotations

import os

from .descriptors import Descriptor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Socket(Descriptor):
    """The descriptor of a socket that this process has opened."""


def _of_windows() -> tuple[Callable[[int, int], bytes], Callable[[int, Any], int], Callable[[int], str]]:
    import ctypes
    import socket

    library: Any = ctypes
    api = library.WinDLL("ws2_32")
    Socket.end = socket.close

    def checked(done: int) -> int:
        if done < 0:
            raise library.WinError(api.WSAGetLastError())
        return done

    def receive(fd: int, most: int) -> bytes:
        buffer = ctypes.create_string_buffer(most)
        size = checked(api.recv(ctypes.c_size_t(fd), buffer, most, 0))
        return buffer.raw[:size]

    def send(fd: int, data: Any) -> int:
        text = bytes(data)
        return checked(api.send(ctypes.c_size_t(fd), text, len(text), 0))

    return receive, send, library.FormatError


if os.name == "nt":
    receive, send, reason = _of_windows()
else:
    receive, send, reason = os.read, os.write, os.strerror
