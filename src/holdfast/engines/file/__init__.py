"""The engine on files, behind the interface of all engines."""

from __future__ import annotations

from ..._platform.fork import forking
from ..base import Engine
from .request import FileRequest, slots_of
from .uncontended import acquire as acquire_first

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from ..._core.attempt import Refusal
    from ..._core.options import Options
    from ..._core.wait import Steps
    from ..._platform.interface import Environment
    from ...model import Record, Status


class FileEngine(Engine):
    """The default engine."""

    name = "file"
    is_remote = False

    def request(self, resource: str | os.PathLike[str], options: Options) -> FileRequest:
        return FileRequest(resource, options)

    def slots(self, resource: str | os.PathLike[str], slots: int, options: Options) -> tuple[FileRequest, ...]:
        return slots_of(resource, slots, options)

    acquire = staticmethod(acquire_first)

    def wait_until_free(
        self, env: Environment, requests: Sequence[FileRequest], timeout: float | None, context: tuple[object, ...]
    ) -> Steps[Refusal | None]:
        with forking:
            from .acquire import wait_until_free

        return wait_until_free(env, requests, timeout, context)

    def look(self, env: Environment, requests: Sequence[FileRequest]) -> Steps[tuple[Status, ...]]:
        with forking:
            from .acquire import look_at_all

        yield from ()
        return look_at_all(env, requests)

    def break_lock(self, env: Environment, request: FileRequest) -> Steps[Record | None]:
        with forking:
            from .remove import break_lock

        return break_lock(env, request)

    def may_block(self, env: Environment, request: FileRequest) -> bool:
        return request.durable or request.fencing or env.may_block(request.path)

    def may_hang(self, env: Environment, request: FileRequest) -> bool:
        return env.may_block(request.path)


FILES = FileEngine()
