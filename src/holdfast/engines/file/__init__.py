"""The engine on files, behind the interface of all engines."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence

from ..._core.options import Options
from ..._core.wait import Wait
from ..._platform.interface import Environment
from ...model import Status
from ..base import Engine
from .acquire import acquire as acquire_first
from .acquire import look_at_all, wait_until_free
from .remove import break_lock
from .request import FileRequest, slots_of


class FileEngine(Engine):
    """The default."""

    name = "file"
    is_remote = False

    def request(self, resource: str | os.PathLike[str], options: Options) -> FileRequest:
        return FileRequest(resource, options)

    def slots(self, resource: str | os.PathLike[str], slots: int, options: Options) -> tuple[FileRequest, ...]:
        return slots_of(resource, slots, options)

    acquire = staticmethod(acquire_first)
    wait_until_free = staticmethod(wait_until_free)
    break_lock = staticmethod(break_lock)

    def look(self, env: Environment, requests: Sequence[FileRequest]) -> Generator[Wait, None, tuple[Status, ...]]:
        yield from ()
        return look_at_all(env, requests)

    def may_block(self, env: Environment, request: FileRequest) -> bool:
        return request.durable or request.fencing or env.may_block(request.path)


FILES = FileEngine()
