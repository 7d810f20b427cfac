"""The C library, for calls that Python has no function for; ImportError where it cannot be called (in a subinterpreter
before Python 3.13, for one).

This is `ctypes.CDLL(None, use_errno=True)`, built from the parts of CPython's `ctypes`: loading all of that takes
longer than acquiring a lock.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _ctypes import _SimpleCData
    from collections.abc import Callable
    from typing import Any

    _Simple = _SimpleCData[int]

LIBC: Any
try:
    from _ctypes import FUNCFLAG_CDECL, FUNCFLAG_USE_ERRNO, CFuncPtr, dlopen, dlsym
    from _ctypes import get_errno as get_errno

    if not TYPE_CHECKING:
        from _ctypes import _SimpleCData as _Simple
except ImportError:  # PyPy's `ctypes` is made of something else
    from ctypes import CDLL
    from ctypes import get_errno as get_errno

    LIBC = CDLL(None, use_errno=True)
else:

    class _Int(_Simple):
        _type_ = "i"

    class _Function(CFuncPtr):
        _flags_ = FUNCFLAG_CDECL | FUNCFLAG_USE_ERRNO
        _restype_ = _Int

    class _Library:
        """The library's functions by name, each returning an `int`. AttributeError if there is none of that name."""

        def __init__(self) -> None:
            self._handle = dlopen(None, 0)  # type: ignore[arg-type]  # this program, as for dlopen(3)

        def __getattr__(self, name: str) -> Callable[..., int]:
            try:
                found: Callable[..., int] = _Function(dlsym(self._handle, name))
            except OSError as error:
                raise AttributeError(str(error)) from None
            setattr(self, name, found)
            return found

    LIBC = _Library()


def last_error(path: str | None = None) -> OSError:
    """The error of the last call of this thread that has failed."""
    number = get_errno()
    return OSError(number, os.strerror(number), path)
