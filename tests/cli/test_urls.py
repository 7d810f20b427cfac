"""Locks on servers in the command line: no passwords, and events derived from two looks."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from engines.toy import Toy
from holdfast import Lock, LockLost, engines
from holdfast._platform import environment
from holdfast.cli import doctor, ls, parse, perform, watch
from holdfast.cli.console import url_id_of as id_of
from holdfast.cli.locks import is_url
from holdfast.cli.outcome import masked
from holdfast.liveness import Liveness
from holdfast.model import Evidence, Holder, Record, Status, Waiter
from process.support import eventually

ALIVE = Evidence("server", "it says so")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("etcd://me:pw@host:2379,two:2379/name", "etcd://me@host:2379,two:2379/name"),
        ("postgresql://me:p@w@host/db#n", "postgresql://me@host/db#n"),
        ("postgresql://:pw@host/db#n", "postgresql://@host/db#n"),
        ("postgresql://host/db?password=pw#n", "postgresql://host/db#n"),
        ("postgresql://host/db?a=1&sslpassword=pw&b=2#n", "postgresql://host/db?a=1&b=2#n"),
        ("etcds://host/n?ca=/ca&key=/secret/k", "etcds://host/n?ca=/ca"),
        ("postgresql://me@host:5432/db#a:b@c", "postgresql://me@host:5432/db#a:b@c"),
        ("see etcd://me:pw@host/n, and etcd://me:pw@host/m", "see etcd://me@host/n, and etcd://me@host/m"),
        ("/no/url:at@all", "/no/url:at@all"),
    ],
)
def test_the_password_is_hidden_and_nothing_else(url: str, shown: str) -> None:
    assert masked(url) == shown


def test_a_path_is_not_taken_for_a_url() -> None:
    assert is_url("etcd://host/n")
    assert not any(map(is_url, [None, "", "/a/b", "./etcd://host/n", "etcd:/host", "a/etcd://host"]))


def status(holder: int | None, token: int = 1, *waiters: int, path: str = "toy://a") -> Status:
    waiting = tuple(Waiter(number, pid, 90.0 + pid) for number, pid in enumerate(waiters, 1))
    if holder is None:
        return Status(path, "toy", bool(waiters), False, Liveness.UNKNOWN, ALIVE, waiters=waiting)
    record = Record("toy", {"token": token}, holder, 95.0)
    who = Holder(holder, "here", 95.0, "tag")
    return Status(path, "toy", True, False, Liveness.ALIVE, ALIVE, who, record, waiters=waiting)


def test_locks_found_at_the_start_are_reported_as_a_first_look() -> None:
    changes = watch.Changes()
    found = changes.since((status(1, 1, 2),), 100.0)
    assert [(one.kind, one.pid, one.time, one.first_look) for one in found] == [
        ("held", 1, 95.0, True),
        ("waiting", 2, 92.0, True),
    ]
    assert changes.since((status(1, 1, 2),), 101.0) == []


def test_every_change_is_reported_once() -> None:
    changes = watch.Changes()
    changes.since((), 100.0)
    looks = [
        ((status(1, 1),), [("acquired", 1, None, None)]),
        ((status(1, 1, 2, 3),), [("waiting", 2, None, None), ("waiting", 3, None, None)]),
        ((status(2, 2, 3),), [("released", 1, None, 8.0), ("acquired", 2, 11.0, None)]),
        ((status(2, 2),), [("gave-up", 3, 11.0, None)]),
        ((status(2, 3),), [("released", 2, None, 10.0), ("acquired", 2, None, None)]),
        ((status(2, 3), status(7, 1, path="toy://b")), [("acquired", 7, None, None)]),
        ((), [("released", 2, None, 12.0), ("released", 7, None, 12.0)]),
    ]
    for number, (seen, wanted) in enumerate(looks, 1):
        found = changes.since(seen, 100.0 + number)
        assert [(one.kind, one.pid, one.waited, one.held) for one in found] == wanted, number
        assert not any(one.first_look for one in found)


def test_a_hold_is_never_shorter_than_nothing_though_the_servers_clock_is_ahead() -> None:
    changes = watch.Changes()
    changes.since((status(1),), 80.0)
    assert [one.held for one in changes.since((), 81.0)] == [0.0]


def test_a_holder_identified_after_the_first_look_has_acquired_once() -> None:
    """PO1: a session of PostgreSQL has the lock a moment before its row is written."""
    who = Holder(1, "here", None, "tag")
    silent = Record("toy", {"session": 7}, 1, None)
    said = Record("toy", {"session": 7, "token": 1}, 1, 100.5)
    next_one = Record("toy", {"session": 8, "token": 2}, 1, 104.0)
    changes = watch.Changes()
    changes.since((), 100.0)
    found = [
        changes.since((status(1).replaced(holder=who, record=record),), 101.0 + number)
        for number, record in enumerate((silent, said, said, next_one))
    ]
    assert [[one.kind for one in each] for each in found] == [["acquired"], [], [], ["released", "acquired"]]


def test_each_acquisition_has_its_own_id() -> None:
    names = [id_of(one) for one in (status(1, 1), status(1, 2), status(2, 1), status(1, 1, path="toy://b"))]
    assert len({*names}) == 4
    assert id_of(status(None)) is None
    assert id_of(status(1, 1, 2, 3)) == names[0]


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Toy:
    made = Toy()
    monkeypatch.setitem(engines._made, "toy", made)
    return made


def test_an_engine_that_cannot_list_is_reported_as_unable(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    assert ls.ls_(parse(["ls", "toy://me:pw@host"])) == 3
    assert "the locks on toy cannot be listed" in capsys.readouterr().err
    assert perform(parse(["doctor", "toy://me:pw@host"])) == 3
    said = capsys.readouterr().out
    assert "cannot be listed" in said
    assert "the URL has a password in it" in said
    assert ":pw@" not in said


def test_a_probe_of_a_slot_is_a_lock_beside_it() -> None:
    assert doctor.probe_of("etcd://host/gpu?ttl=5#0") == "etcd://host/gpu/holdfast-doctor?ttl=5"


def test_decreasing_tokens_are_reported_as_unusable(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "probe_of", lambda url: url)
    found = doctor._holding("toy://host")
    assert [one.level for one in found] == ["good", "good"]
    monkeypatch.setattr(toy.server, "tokens", iter([5, 4]))
    assert [one.level for one in doctor._holding("toy://host")] == ["good", "unusable"]


class Terminal(io.StringIO):
    """A terminal at which somebody types `break`; `meanwhile` runs before that."""

    meanwhile: Callable[[], object]

    def isatty(self) -> bool:
        return True

    def readline(self, size: int = -1, /) -> str:
        self.meanwhile()
        return "break\n"


def test_break_does_not_end_the_hold_that_follows_the_one_shown(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "toy://host/db#one"
    typed, said = Terminal(), Terminal()
    monkeypatch.setattr("sys.stdin", typed)
    monkeypatch.setattr("sys.stderr", said)
    holds = [Lock(url).acquire(timeout=1)]

    def change_hands() -> None:
        holds.pop().release()
        holds.append(Lock(url, tag="the next").acquire(timeout=1))

    typed.meanwhile = change_hands
    assert perform(parse(["break", "--force", url])) == 1
    assert "it has changed hands since. Check its status" in said.getvalue()
    holds[0].ensure_held()
    typed.meanwhile = lambda: holds.pop().release()
    assert perform(parse(["break", "--force", url])) == 0
    assert said.getvalue().endswith("not held\n")
    holds.append(Lock(url).acquire(timeout=1))
    typed.meanwhile = lambda: None
    assert perform(parse(["break", "--force", url])) == 0
    assert said.getvalue().endswith("broken\n")
    eventually(lambda: holds[0].lost)
    with pytest.raises(LockLost):
        holds[0].release()


@pytest.mark.parametrize(
    "words",
    [
        ["clean", "etcd://host"],
        ["reap", "etcd://host"],
        ["top", "--once", "etcd://host/n"],
        ["top", ".", "etcd://host/n"],
        ["timeline", "etcd://host/n"],
    ],
)
def test_a_url_is_not_looked_for_in_the_working_directory(words: list[str]) -> None:
    options = parse(words)
    with pytest.raises(ValueError, match="on a server"):
        perform(options)


def test_watching_two_servers_is_refused(toy: Toy) -> None:
    for places in (["toy://a", "toy://b"], ["toy://a", "."]):
        with pytest.raises(ValueError, match="one URL at a time"):
            perform(parse(["watch", *places]))


def test_a_watch_of_a_server_ends_after_its_seconds(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []

    def survey(env: object, resource: str) -> object:
        yield from ()
        looks.append(environment().monotonic())
        return (toy.server.status("toy://a"),)

    monkeypatch.setattr(toy, "survey", survey)
    with Lock("toy://a"):
        assert perform(parse(["watch", "--seconds", "0.3", "toy://a"])) == 0
    assert looks
