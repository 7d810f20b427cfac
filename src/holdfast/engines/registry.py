"""Which engines there are, by the scheme of a URL.

Others come from installed packages, by the entry point group `holdfast.engines`: each is called what the scheme is, and
names an instance or a subclass of `Engine`. What holdfast has itself is never replaced by them.
"""

from __future__ import annotations

import os

from ..errors import EngineUnavailable, HoldfastError, InvalidPath
from .files import FILES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from importlib.metadata import EntryPoint

    from .base import Engine

GROUP = "holdfast.engines"
_BUILT_IN: dict[str, tuple[str, str, str]] = {
    "etcd": (".etcd", "ENGINE", "etcd"),
    "etcds": (".etcd", "ENGINE", "etcd"),
    "postgres": (".postgresql", "ENGINE", "postgresql"),
    "postgresql": (".postgresql", "ENGINE", "postgresql"),
}
"""By scheme: the module, the engine in it, and the extra that installs what it needs. Imported only when asked for."""
_made: dict[str, Engine] = {}


def engine_of(resource: str | os.PathLike[str]) -> Engine:
    """The engine that a resource is for. Whatever is no URL is a path.

    InvalidPath for a URL of a scheme that no engine has. EngineUnavailable where the client library is not installed.
    """
    scheme = scheme_of(resource)
    if not scheme:
        return FILES
    try:
        return _made[scheme]
    except KeyError:
        pass
    if scheme in _BUILT_IN:
        return _made.setdefault(scheme, _import(scheme))
    for entry in _installed():
        if entry.name == scheme:
            return _made.setdefault(scheme, _load(entry))
    raise InvalidPath(
        f"no engine stores locks at {scheme}://; there are: {', '.join(f'{name}://' for name in names())}. A file of "
        f"that name is ./{scheme}://…",
        path=scheme,
    )


def scheme_of(resource: str | os.PathLike[str]) -> str:
    """The scheme of a URL, in small letters; empty for a path."""
    if not isinstance(resource, str):
        return ""
    scheme, colon, _ = resource.partition("://")
    known = colon and scheme[:1].isalpha() and scheme.isascii() and scheme.replace("+", "").replace("-", "").isalnum()
    return scheme.lower() if known else ""


def names() -> list[str]:
    """The schemes of all engines but files, sorted. Nothing is loaded."""
    return sorted({*_BUILT_IN, *(entry.name for entry in _installed())})


def _import(scheme: str) -> Engine:
    import importlib

    module, name, extra = _BUILT_IN[scheme]
    try:
        found: Engine = getattr(importlib.import_module(module, __package__), name)
    except ImportError as error:
        raise EngineUnavailable(
            f"locks at {scheme}:// need a package that is not installed ({error.name}): "
            f"pip install 'holdfast[{extra}]'",
            protocol=extra,
        ) from error
    return found


def _installed() -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points

    return entry_points(group=GROUP)


def _load(entry: EntryPoint) -> Engine:
    from .base import Engine

    what = f"the engine {entry.name!r} of an installed package (entry point {entry.name} = {entry.value})"
    try:
        found = entry.load()
        engine = found() if isinstance(found, type) and issubclass(found, Engine) else found
    except Exception as error:
        raise HoldfastError(
            f"{what} cannot be loaded: {type(error).__name__}: {error}. Repair or remove that package"
        ) from error
    if not isinstance(engine, Engine):
        raise HoldfastError(f"{what} is no holdfast.engines.Engine, but {engine!r}")
    return engine
