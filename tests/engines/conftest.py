"""Fixtures for the tests of all engines. Each engine has more in its own directory; its name is in `ENGINES`.

An engine called `one` has the fixture `one_prefix`: the beginning of the URLs of locks that no other test has touched,
to which a test adds a name of letters and digits. The behaviour tests then run on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from engines.etcd.fixtures import etcd_node as etcd_node
from engines.etcd.fixtures import etcd_prefix as etcd_prefix
from engines.postgresql.fixtures import _server as _server
from engines.postgresql.fixtures import bouncer as bouncer
from engines.postgresql.fixtures import postgres as postgres
from engines.postgresql.fixtures import postgresql_prefix as postgresql_prefix
from engines.postgresql.fixtures import proxy as proxy
from process.conftest import spawn as spawn

ENGINES = ["postgresql", "etcd"]


@pytest.fixture(autouse=True)
def _limits(within: Callable[[float], AbstractContextManager[None]]) -> Iterator[None]:
    with within(60.0):
        yield


@pytest.fixture(params=ENGINES)
def prefix(request: pytest.FixtureRequest) -> str:
    """The beginning of the URLs of a test's locks, in one engine after the other."""
    found: str = request.getfixturevalue(f"{request.param}_prefix")
    return found
