"""The C library, for calls that Python has no function for; ImportError where it cannot be called (in a subinterpreter
before Python 3.13, for one).

This is `ctypes.CDLL(None, use_errno=True)`, made of what `ctypes` is made of: all of that takes longer to load than
acquiring a lock.
"""

from __future__ import annotations

from _ctypes import FUNCFLAG_CDECL, FUNCFLAG_USE_ERRNO, CFuncPtr, _SimpleCData, dlopen, dlsym
from _ctypes import get_errno as get_errno

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    _Simple = _SimpleCData[int]
else:
    _Simple = _SimpleCData


class _Int(_Simple):
    _type_ = "i"


class _Function(CFuncPtr):
    _flags_ = FUNCFLAG_CDECL | FUNCFLAG_USE_ERRNO
    _restype_ = _Int


class Library:
    """Its functions by name, each returning an `int`. AttributeError for one that it does not have."""

    def __init__(self) -> None:
        self._handle = dlopen(None, 0)  # type: ignore[arg-type]  # this program, as for dlopen(3)

    def __getattr__(self, name: str) -> Callable[..., int]:
        try:
            found: Callable[..., int] = _Function(dlsym(self._handle, name))
        except OSError as error:
            raise AttributeError(str(error)) from None
        setattr(self, name, found)
        return found


LIBC = Library()
