"""macOS' own word on the machine, without starting a process."""

from __future__ import annotations

import ctypes
import functools
import sys


@functools.cache
def sysctl(name: str) -> str:
    """A sysctl's value as text, numbers in decimal; "" off macOS and for a name that the system does not know."""
    if sys.platform != "darwin" or not name:
        return ""
    libc = ctypes.CDLL(None)
    size = ctypes.c_size_t(256)
    buffer = ctypes.create_string_buffer(size.value)
    if libc.sysctlbyname(name.encode(), buffer, ctypes.byref(size), None, ctypes.c_size_t(0)):
        return ""
    return decode(buffer.raw[: size.value])


def decode(raw: bytes) -> str:
    """The text of a sysctl's bytes: a string ends in NUL after printable characters, anything else is an integer."""
    text = raw.rstrip(b"\0")
    if len(text) > 1 and raw.endswith(b"\0") and all(32 <= b < 127 for b in text):
        return text.decode("ascii")
    return str(int.from_bytes(raw, sys.byteorder))
