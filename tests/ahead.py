"""Tests that do little but wait for processes of their own: the next one begins while one of them runs.

    def _ran(kind: str) -> Result: ...      # in a thread, with the parameters of the test that it is named after

    @pytest.mark.ahead(body=_ran)
    def test_…(kind: str, ran: Ran) -> None:
        result = ran()                      # its result, or its error

It begins early only if the test before is of the same function. So it runs beside no test that counts threads or
descriptors, or that forks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

Ran = Callable[[], Any]
_begun: dict[str, _Begun] = {}
_next = pytest.StashKey[pytest.Item | None]()


class _Begun:
    def __init__(self, body: Callable[..., Any], parameters: dict[str, Any]) -> None:
        self._body, self._parameters = body, parameters
        self._result: Any = None
        self._raised: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="ahead", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._result = self._body(**self._parameters)
        except BaseException as error:  # a failed test and a skipped one are told in the same way
            self._raised = error

    def tell(self) -> Any:
        self.thread.join()
        if self._raised is not None:
            raise self._raised
        return self._result


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    item.stash[_next] = nextitem


def pytest_sessionfinish() -> None:
    """Wait for the early tests of a run that was stopped."""
    for one in _begun.values():
        one.thread.join()


@pytest.fixture
def ran(request: pytest.FixtureRequest) -> Ran:
    """The result of this test's work, when called. The next test's work begins."""
    this, following = request.node, request.node.stash[_next]
    begun = _begin(this)
    if getattr(following, "originalname", "") == this.originalname and following.path == this.path:
        _begun[following.nodeid] = _begin(following)
    return begun.tell


def _begin(item: Any) -> _Begun:
    known = _begun.pop(item.nodeid, None)
    return known or _Begun(item.get_closest_marker("ahead").kwargs["body"], item.callspec.params)
