"""The choice of the engine: locks are files, unless the resource is a URL whose scheme names another engine.

Installed packages add others through the entry point group `holdfast.engines`: the name of an entry point is the
scheme, its object an instance or a subclass of `Engine`. They never replace holdfast's own engines.
"""

from __future__ import annotations

from ..errors import EngineUnavailable, InvalidPath
from .base import Engine as Engine
from .file import FILES

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os


GROUP = "holdfast.engines"
_BUILT_IN = {"etcd": "etcd", "etcds": "etcd", "postgres": "postgresql", "postgresql": "postgresql"}
"""The built-in engines by scheme: the module, imported on demand, which is also the extra that installs its needs."""
_made: dict[str, Engine] = {}


def engine_of(resource: str | os.PathLike[str]) -> Engine:
    """The engine for a resource. Anything but a URL is a path.

    InvalidPath for a URL whose scheme no engine has. EngineUnavailable if the client library is not installed.
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
    from .. import plugins

    found = plugins.find(GROUP, Engine, scheme)  # type: ignore[type-abstract]
    if found is not None:
        return _made.setdefault(scheme, found)
    known, plus, driver = scheme.partition("+")
    if plus and known in _BUILT_IN:
        raise InvalidPath(
            f"{scheme}:// is how SQLAlchemy names a driver ({driver}); holdfast has its own: write {known}://",
            path=scheme,
        )
    raise InvalidPath(
        f"no engine stores locks at {scheme}://; there are: {', '.join(f'{name}://' for name in names())}. A file of "
        f"that name is ./{scheme}://…",
        path=scheme,
    )


def scheme_of(resource: str | os.PathLike[str]) -> str:
    """The scheme of a URL, in lower case; empty for a path."""
    if not isinstance(resource, str):
        return ""
    scheme, colon, _ = resource.partition("://")
    known = colon and scheme[:1].isalpha() and scheme.isascii() and scheme.replace("+", "").replace("-", "").isalnum()
    return scheme.lower() if known else ""


def names() -> list[str]:
    """The schemes of all engines but files, sorted. Loads none of them."""
    from .. import plugins

    return sorted(_BUILT_IN.keys() | plugins.names(GROUP))


def _import(scheme: str) -> Engine:
    import importlib

    name = _BUILT_IN[scheme]
    try:
        found: Engine = importlib.import_module(f".{name}", __package__).ENGINE
    except ImportError as error:
        lacking = error.name or " ".join(str(error).split())  # psycopg has no name for a libpq that it does not find
        raise EngineUnavailable(
            f"locks at {scheme}:// need a package that is not installed ({lacking}): "
            f"pip install '.[{name}]' in a clone of holdfast",
            protocol=name,
        ) from error
    return found
