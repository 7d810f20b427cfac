"""A random but repeatable order of the tests: HOLDFAST_TEST_SEED=7.

A test's place follows from the seed and the test's own name alone. So all xdist workers agree on the order, and the
tests of a part (`-k`) keep the order that they have in the whole. The tests of a module that has a fixture of module
scope (a server, a wheel) stay together, in random order among themselves.
"""

from __future__ import annotations

import os
from hashlib import blake2b

import pytest

SEED = "HOLDFAST_TEST_SEED"


def pytest_report_header() -> str:
    return f"random order: {SEED}={os.environ[SEED]}"


@pytest.hookimpl(trylast=True)  # after pytest's own order, which groups tests by the parameters of their fixtures
def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    seed = os.environ[SEED]
    together = {_module(item) for item in items if _shares(item)}

    def place(item: pytest.Function) -> tuple[bytes, bytes]:
        own, module = _number(seed, item.nodeid), _module(item)
        return (_number(seed, module) if module in together else own), own

    items.sort(key=place)


def _number(seed: str, name: str) -> bytes:
    return blake2b(f"{seed} {name}".encode(), digest_size=16).digest()


def _module(item: pytest.Function) -> str:
    return item.nodeid.split("::")[0]


def _shares(item: pytest.Function) -> bool:
    """Whether a test uses a fixture that outlives it, but not the session."""
    fixtures = item._fixtureinfo.name2fixturedefs.values()
    return any(fixture.scope in ("class", "module", "package") for found in fixtures for fixture in found)
