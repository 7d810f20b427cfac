"""The conformance kit on the real packages: they pass, except for their known differences."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.kit import DEPENDS_ON_THE_MACHINE, SAMPLES, Kit, failures, skipped
from process.foreign.node import Missing, fs_safe, node, proper_lockfile

DIFFERS_IN_0_3 = {
    "the-mode-is-the-protocols",
    "a-fifo-is-refused",
    "a-symbolic-link-is-refused",
    "createdat-counts-and-not-the-time-of-the-file",
    "a-removal-by-somebody-else-is-not-interfered-with",
}
"""fs-safe 0.3.0 creates with 0644, hangs on what is no file, ages by either time, and does not know `.reclaim`."""


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    return Kit(temporary)


def adapter(version: str) -> list[str | Path]:
    try:
        return [node(), SAMPLES / "fs_safe_adapter.mjs", fs_safe(version)]
    except Missing as reason:
        pytest.skip(str(reason))


def test_fs_safe_passes_the_kit(kit: Kit) -> None:
    status, results = kit.results("sidecar", "--", *adapter("0.21.0"))
    assert not failures(results)
    assert status == 0
    left_out = {name for name in skipped(results) - DEPENDS_ON_THE_MACHINE if not name.startswith("record:")}
    assert not left_out


def test_the_kit_finds_how_fs_safe_0_3_differs(kit: Kit) -> None:
    only = [word for name in DIFFERS_IN_0_3 for word in ("--only", name)]
    status, results = kit.results("sidecar", "--timeout", "4", *only, "--", *adapter("0.3.0"))
    assert (status, failures(results).keys()) == (1, DIFFERS_IN_0_3)


def test_the_kit_finds_that_proper_lockfile_removes_a_lock_of_another_holder(kit: Kit) -> None:
    """Its release does not check whose directory it is. Its takeover judges and removes in two steps, which a busy
    machine may show; the kit finds nothing else."""
    try:
        command = [node(), SAMPLES / "proper_lockfile_adapter.mjs", proper_lockfile()]
    except Missing as reason:
        pytest.skip(str(reason))
    status, results = kit.results("proper-lockfile", "--", *command)
    found = failures(results).keys() - {"two-who-take-over-one-stale-directory-are-never-both-inside"}
    assert (status, found) == (
        1,
        {"a-lock-of-somebody-else-in-its-place-is-left", "a-lock-that-was-taken-over-in-place-is-left"},
    )
    assert not skipped(results)
