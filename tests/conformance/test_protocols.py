"""The available protocols: holdfast's own and those of installed packages; and to which a stray record belongs."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.support import MARKER, VECTORS, input_of, read_or_refused, who
from holdfast import Lock, protocols
from holdfast.errors import HoldfastError
from holdfast.liveness import Liveness
from holdfast.model import Identity, Record
from holdfast.protocols import Protocol, get, is_persistent, names, recognise

OWN = ["beads", "flock", "sema", "semats", "sidecar"]


class Foreign(Protocol):
    """A protocol that an installed package might offer."""

    name = "foreign"
    mode = 0o600
    stale_after = 5.0
    persistent = True

    def decode(self, data: bytes) -> Record:
        return Record(self.name, {})

    def encode(self, record: Record) -> bytes:
        return b""

    def compose(self, who: Identity, now: float, tag: str | None, marker: str | None, more: Mapping[str, Any]) -> bytes:
        return b""

    def is_stale(self, record: Record, liveness: Liveness, now: float, stale_after: float) -> bool:
        return False

    def stale_at(self, record: Record, stale_after: float) -> float | None:
        return None

    def refreshed(self, data: bytes, now: float) -> tuple[int, bytes] | None:
        return None


class Renamed(Foreign):
    name = "another"


class Unfinished(Protocol):
    name = "unfinished"


INSTANCE = Foreign()
NOTHING = object()

Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Pretend that packages with these entry points are installed."""
    monkeypatch.setattr(protocols, "_made", dict(protocols._made))
    monkeypatch.setattr(protocols, "_no_protocols", set())
    monkeypatch.setitem(sys.modules, "foreign_package", sys.modules[__name__])
    found: list[EntryPoint] = []
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: [e for e in found if e.group == group])

    def add(name: str, value: str, group: str = "holdfast.protocols") -> None:
        found.append(EntryPoint(name, f"foreign_package:{value}", group))

    return add


def test_every_built_in_protocol_is_available() -> None:
    assert set(OWN) <= set(names())
    assert names() == sorted(names())
    for name in OWN:
        assert (get(name).name, get(name)) == (name, get(name))
        assert "decode" in (get.__doc__ or "")


@pytest.mark.parametrize("name", ["", "Sema", "postgresql", None, 5, [], b"sema"])
def test_an_unknown_protocol_is_an_error(name: Any) -> None:
    with pytest.raises(
        ValueError, match=r"unknown protocol.*beads, flock, ofd, proper-lockfile, sema, semats, sidecar"
    ):
        get(name)
    assert not is_persistent(name)


@pytest.mark.parametrize("value", ["Foreign", "INSTANCE"])
def test_an_installed_protocol_is_found(install: Install, value: str) -> None:
    install("foreign", value)
    assert "foreign" in names()
    assert isinstance(get("foreign"), Foreign)
    assert get("foreign") is get("foreign")


def test_an_installed_protocol_can_have_files_that_stay(install: Install) -> None:
    install("foreign", "Foreign")
    assert is_persistent("foreign")


def test_a_lock_can_use_an_installed_protocol(install: Install, disk: Any) -> None:
    install("foreign", "Foreign")
    assert Lock(disk / "l", protocol="foreign").protocol == "foreign"


def test_an_installed_protocol_does_not_replace_a_built_in_one(install: Install) -> None:
    for name in OWN:
        install(name, "Foreign")
    protocols._made.clear()
    for name in OWN:
        assert type(get(name)).__module__.startswith("holdfast.")
        assert names().count(name) == 1


def test_an_entry_point_of_another_group_is_not_taken_for_a_protocol(install: Install) -> None:
    install("foreign", "Foreign", group="console_scripts")
    assert "foreign" not in names()
    with pytest.raises(ValueError, match="unknown protocol"):
        get("foreign")


@pytest.mark.parametrize(
    ("name", "value", "cause"),
    [
        ("foreign", "Missing", AttributeError),
        ("unfinished", "Unfinished", TypeError),
        ("foreign", "NOTHING", None),
        ("foreign", "recognise", None),
        ("foreign", "Renamed", None),
    ],
)
def test_a_broken_package_is_named(install: Install, name: str, value: str, cause: type[Exception] | None) -> None:
    install(name, value)
    assert name in names(), "what is installed is listed without being loaded"
    with pytest.raises(HoldfastError, match=rf"entry point {name} = foreign_package:{value}") as caught:
        get(name)
    assert caught.value.protocol == name
    assert type(caught.value.__cause__) is (cause or type(None))
    assert not is_persistent(name), "who reports on a lock is not stopped by it"


def test_a_package_that_cannot_be_imported_is_named(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("foreign", "Foreign")
    monkeypatch.setitem(sys.modules, "foreign_package", None)
    with pytest.raises(HoldfastError, match="entry point foreign") as caught:
        get("foreign")
    assert isinstance(caught.value.__cause__, ImportError)


def test_a_broken_package_does_not_break_the_others(install: Install) -> None:
    install("broken", "Missing")
    install("foreign", "Foreign")
    assert get("foreign").name == "foreign"
    assert get("sema").name == "sema"
    assert recognise(b"pid=1\ntimestamp=2\n") == "sema"


def test_importing_holdfast_reads_no_other_protocol() -> None:
    """Nor does making a lock of the default protocol."""
    lazy = ("json", "re", "datetime", "email", "importlib.metadata")
    lazy += tuple(f"holdfast.protocols.{name}" for name in ("semats", "sidecar", "beads", "jsontext", "dates"))
    code = f"import sys, holdfast; holdfast.Lock('/tmp/l'); print([m for m in {lazy!r} if m in sys.modules])"
    source = protocols.__file__.rsplit("/holdfast/", 1)[0]
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {source!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


# -- attribution of records --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OWN)
def test_a_holders_record_is_recognised(name: str) -> None:
    data = get(name).compose(who(7), 1.7e9, "t", MARKER, {})
    assert recognise(data) == {"semats": "sema"}.get(name, name)
    assert recognise(data + get(name).padding * 50) == recognise(data)


def test_every_vector_is_run() -> None:
    """Each file of vectors has its test here; vectors in any other file would not be tested."""
    tested = {"sema": 50, "semats": 50, "sidecar": 27, "beads": 46}
    assert {name: sum(v["protocol"] == name for v in VECTORS) for name in tested} == tested
    assert sum(tested.values()) == len(VECTORS) == 173


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["id"])
def test_a_record_is_attributed_only_to_a_protocol_that_can_read_it(vector: dict[str, Any]) -> None:
    data = input_of(vector)
    found = recognise(data)
    readers = [name for name in OWN if (record := read_or_refused(get(name), data)) is not None and record.legible]
    if "beads" in readers:
        assert found == "beads"
    elif vector["protocol"] == "beads" and b'"holder"' in data and b'"started_at"' in data:
        assert found in (None, "beads"), "a damaged one is not a sidecar"
    else:
        assert found in readers if readers else found is None


@given(st.binary() | st.binary().map(lambda data: b"{" + data) | st.binary().map(lambda data: b' {"a":' + data + b"}"))
def test_arbitrary_bytes_do_not_crash_the_search_for_their_protocol(data: bytes) -> None:
    assert recognise(data) in (None, *OWN)
