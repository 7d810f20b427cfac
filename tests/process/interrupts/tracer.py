"""Interrupts this thread before any bytecode of holdfast, and then before any other: what `opcodes.c` is for.

Not counted, because CPython never runs a signal handler there:

- the bytecodes by which a `with` of a lock that is written in C calls its `__exit__`: it looks for signals when a call
  has returned, at the beginning of a function, and at a jump backwards; and the NOP with which a `try` begins;
- in a function by which a `with` of what was acquired before is entered, what comes before its `try`: there is no way
  to hear of an interruption at the beginning of a function (guarantees.md);
- the return from a function that has delivered a hold: from there on it is the caller's (operations.py, J2);
- the way from an interruption in such a function to the statement that puts its operation back on the list;
- in the modules of asyncio, whose coroutines hand a hold on to each other, all but what follows one of these: a call
  that has returned, the beginning of a function, a jump backwards.
"""

from __future__ import annotations

import dis
import hashlib
import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import CodeType
from typing import Any

import holdfast

SOURCE = os.path.dirname(holdfast.__file__)
C = Path(__file__).with_name("opcodes.c")
COROUTINES = (os.path.join(SOURCE, "aio.py"), os.path.join(SOURCE, "_drivers", "asyncio.py"))
DELIVERING = {
    "Acquirable.acquire",
    "Acquirable.try_acquire",
    "Acquirable._acquire",
    "Acquirable.__enter__",
    "acquire_all",
}

ENTERING = {"Hold.__enter__", "Holds.__enter__", "AsyncHold.__aenter__", "AsyncHolds.__aenter__"}


def why_not() -> str | None:
    """Why the module cannot be built here; None if it can."""
    if shutil.which(compiler()) is None:
        return f"there is no C compiler ({compiler()})"
    if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
        return "Python's headers are missing (Python.h)"
    return None


def compiler() -> str:
    return os.environ.get("CC", "cc")


def built() -> Any:
    """The module, built once for each version of it and of Python."""
    name = hashlib.blake2b(C.read_bytes() + sys.version.encode(), digest_size=8).hexdigest()
    place = Path(__file__).with_name("__pycache__") / f"opcodes-{name}.so"
    place.parent.mkdir(exist_ok=True)
    if not place.exists():
        made = place.with_suffix(f".{os.getpid()}")
        include = f"-I{sysconfig.get_path('include')}"
        subprocess.run([compiler(), "-O2", "-shared", "-fPIC", include, C, "-o", made], check=True)
        made.rename(place)
    loader = importlib.machinery.ExtensionFileLoader("opcodes", str(place))
    spec = importlib.util.spec_from_loader("opcodes", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    module.prepare(mask)
    return module


def mask(code: CodeType) -> bytes | None:
    """A byte for each offset of the code: 1 if it counts; None if none does."""
    if not code.co_filename.startswith(SOURCE) or code.co_name == "<module>":
        return None
    steps = list(dis.get_instructions(code))
    counts = bytearray(len(code.co_code))
    for number, step in enumerate(steps):
        counts[step.offset] = code.co_filename not in COROUTINES or is_behind_a_look(steps, number)
    for number, step in enumerate(steps):
        if step.opname in ("PUSH_EXC_INFO", "WITH_EXCEPT_START", "CACHE", "NOP"):
            counts[step.offset] = 0
        if is_exit(steps, number):
            for part in steps[number - 1 : number + 5]:  # before it a SWAP or NOP, at a `return`
                if part.opname in ("NOP", "SWAP", "LOAD_CONST", "PRECALL", "CALL"):
                    counts[part.offset] = 0
        if step.opname == "RETURN_VALUE" and code.co_qualname in DELIVERING:
            counts[step.offset] = 0
    if code.co_qualname in ENTERING:
        for step in before_it_tries(steps):
            counts[step.offset] = 0
    if code.co_qualname in DELIVERING:
        for step in until_it_is_put_back(steps):
            counts[step.offset] = 0
    return bytes(counts)


def until_it_is_put_back(steps: list[dis.Instruction]) -> list[dis.Instruction]:
    """The instructions from the beginning of the handler of `BaseException` to the store into `running`; no call among
    them."""
    stores = [number for number, step in enumerate(steps) if step.opname == "STORE_SUBSCR"]
    for last in stores:
        first = max((n for n, step in enumerate(steps[:last]) if step.opname == "PUSH_EXC_INFO"), default=last)
        way = steps[first : last + 1]
        if any(step.argval == "running" for step in way) and not any("CALL" in step.opname for step in way):
            return way
    return []


def before_it_tries(steps: list[dis.Instruction]) -> list[dis.Instruction]:
    """The instructions up to the NOP with which its `try` begins, and the first ones in that: signals were looked for
    before."""
    tries = next(number for number, step in enumerate(steps) if step.opname == "NOP")
    return steps[: tries + 1]


def is_behind_a_look(steps: list[dis.Instruction], number: int) -> bool:
    """Whether CPython has just looked for signals: a coroutine that goes on behind an `await` is not such a place."""
    before = next((step for step in reversed(steps[:number]) if step.opname != "CACHE"), None)
    if before is None:
        return False
    if before.opname == "RESUME":
        return before.arg is not None and before.arg < 2
    return before.opname.startswith("CALL") or steps[number].opname == "JUMP_BACKWARD"


def is_exit(steps: list[dis.Instruction], number: int) -> bool:
    """Whether this is where a `with` that comes to its end calls `__exit__(None, None, None)`."""
    names = [step.opname for step in steps[number : number + 5] if step.opname != "PRECALL"][:4]
    values = [step.argval for step in steps[number : number + 3]]
    return names == ["LOAD_CONST", "LOAD_CONST", "LOAD_CONST", "CALL"] and values == [None] * 3


def spelled(place: tuple[CodeType, int]) -> str:
    code, offset = place
    step = next((s for s in dis.get_instructions(code) if s.offset == offset), None)
    line = next((line for begin, end, line in code.co_lines() if begin <= offset < end), None)
    name = os.path.relpath(code.co_filename, SOURCE)
    return f"{name}:{line} {code.co_qualname} before {'?' if step is None else step.opname}"
