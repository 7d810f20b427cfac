"""Runs the Python blocks of a session: a JSON line asks for each, a JSON line answers, by descriptors of their own.

`await` may stand outside of functions; all of these run on one event loop. Slow imports are made at need.
"""

from __future__ import annotations

import json
import os
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio

_ALLOW_TOP_LEVEL_AWAIT = 0x2000  # ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_COROUTINE = 0x80  # inspect.CO_COROUTINE
_runner: asyncio.Runner | None = None


def main(requests: int, answers: int) -> None:
    os.set_inheritable(requests, False)
    os.set_inheritable(answers, False)
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.path.insert(0, "")
    with open(requests) as asked, open(answers, "w") as told:
        for line in asked:
            error = run(json.loads(line), module.__dict__)
            sys.stdout.flush()
            sys.stderr.flush()
            told.write(json.dumps({"error": error}) + "\n")
            told.flush()
    if _runner is not None:
        _runner.close()


def run(block: dict[str, object], names: dict[str, object]) -> str:
    """Run a block; the error, or empty. Lines are numbered as on the page."""
    try:
        source = "\n" * (int(str(block["line"])) - 1) + str(block["source"])
        code = compile(source, str(block["page"]), "exec", flags=_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        if code.co_flags & _COROUTINE:
            on_loop(types.FunctionType(code, names)())
        else:
            exec(code, names)
    except BaseException as error:
        import traceback

        if error.__traceback__ is not None:
            error.__traceback__ = _of_page(error.__traceback__, str(block["page"]))
        return "".join(traceback.format_exception(error))
    return ""


def on_loop(coroutine: types.CoroutineType[object, None, object]) -> None:
    global _runner
    if _runner is None:
        import asyncio

        _runner = asyncio.Runner()
    _runner.run(coroutine)


def _of_page(trace: types.TracebackType, page: str) -> types.TracebackType:
    """The traceback without the frames of this file."""
    rest: types.TracebackType | None = trace
    while rest is not None and rest.tb_frame.f_code.co_filename != page:
        rest = rest.tb_next
    return rest or trace


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
