"""Runs the unit and conformance suites in Python for Windows, but for what left_out.py names, there or under Wine:

python tests/platforms/suite.py [--jobs N] [FILE ...] [OPTION OF PYTEST ...]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

import pytest  # noqa: E402

from platforms import left_out, wine  # noqa: E402

LONGEST = 3600.0


class LeaveOut:
    """The pytest plugin."""

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        return _name(collection_path) in left_out.FILES or None

    @pytest.hookimpl(tryfirst=True)  # before others are deselected
    def pytest_collection_modifyitems(self, items: list[pytest.Function], config: pytest.Config) -> None:
        found = set()
        for item in items:
            for name in _names(item):
                if name in left_out.TESTS:
                    found.add(name)
                    item.add_marker(pytest.mark.skip(reason=left_out.TESTS[name]))
        files = set() if any("::" in word for word in config.args) else {_name(item.path) for item in items}
        if gone := [name for name in left_out.TESTS if name.split("::")[0] in files and name not in found]:
            raise pytest.UsageError(f"left_out.py names tests that are not there: {gone}")


def _names(item: pytest.Function) -> Iterator[str]:
    file = _name(item.path)
    yield f"{file}::{item.name}"
    if item.originalname != item.name:
        yield f"{file}::{item.originalname}"


def _name(path: Path) -> str:
    return path.relative_to(TESTS).as_posix() if path.is_relative_to(TESTS) else ""


def files() -> list[str]:
    """All files to run, the longest first."""
    found = [path for place in ("unit", "conformance") for path in (TESTS / place).glob("test_*.py")]
    kept = [path for path in found if _name(path) not in left_out.FILES]
    return [f"tests/{_name(path)}" for path in sorted(kept, key=lambda path: -path.stat().st_size)]


def _under_wine(words: list[str], jobs: int) -> int:
    named = [word for word in words if "tests" in word] or files()
    options = [word for word in words if word not in named]
    script = wine.named(Path(__file__).resolve())
    with wine.kept_running(), ThreadPoolExecutor(jobs) as pool:
        shares = filter(None, (named[number::jobs] for number in range(jobs)))
        runs = pool.map(lambda share: wine.run(script, "-q", *share, *options, limit=LONGEST), shares)
        status = 0
        for done in runs:
            print(done.stdout + done.stderr, flush=True)
            status = max(status, abs(done.returncode))
    return status


def main(words: list[str]) -> int:
    jobs = 1
    if words[:1] == ["--jobs"]:
        jobs, words = max(1, int(words[1])), words[2:]
    os.chdir(TESTS.parent)
    if sys.platform != "win32":
        return _under_wine(words, jobs)
    chosen = any("tests" in word for word in words)
    return pytest.main(words if chosen else [*words, *files()], plugins=[LeaveOut()])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
