"""Workers that share the work of their start: pytest rewrites the assertions of each test module once for all of them.

Every worker of pytest-xdist collects all tests, so each would rewrite and compile all of them, at the same time: ten
seconds of a processor for each worker, before its first test. Here each begins with another part, writes its results
where the others look for them, and goes on where the others have not been. No worker waits for another: if two make the
same result, both make it whole, and the one renamed last stays. pytest's own functions do the work; they are private,
and without them each worker does everything, as always.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def share(config: pytest.Config) -> None:
    """Share the work. Call this in a worker, before it collects."""
    try:
        from _pytest.assertion.rewrite import PYC_TAIL, _rewrite_test, _write_pyc, assertstate_key, get_cache_dir
    except ImportError:
        return
    if sys.dont_write_bytecode or config.option.assertmode != "rewrite":
        return
    worker: dict[str, object] = config.workerinput  # type: ignore[attr-defined]
    number, count = int(str(worker["workerid"])[2:]), int(str(worker["workercount"]))
    modules = sorted(path for pattern in ("test_*.py", "conftest.py") for path in HERE.rglob(pattern))
    begin = number * len(modules) // count
    for module in modules[begin:] + modules[:begin]:
        cached = get_cache_dir(module) / (module.stem + PYC_TAIL)
        if not cached.exists():
            cached.parent.mkdir(parents=True, exist_ok=True)
            digest, code = _rewrite_test(module, config)
            _write_pyc(config.stash[assertstate_key], code, digest, cached)
