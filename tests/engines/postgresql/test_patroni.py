"""Locks during failovers by Patroni: measures what docs/howto/patroni.md shows. `make failover` runs it.

HOLDFAST_FAILOVER_REPORT=FILE keeps the figures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

import pytest

import holdfast
from engines.postgresql import patroni
from engines.postgresql.patroni import Cluster, at_last
from holdfast import Lock
from process.support import eventually

MODES = pytest.mark.parametrize("synchronous", [True, False], ids=["synchronous", "asynchronous"])


@pytest.fixture(autouse=True)
def _limits(within: Callable[[float], AbstractContextManager[None]]) -> Iterator[None]:
    with within(5 * patroni.SLOW):
        yield


class Callers:
    """A holder with a waiter behind it, and a command of `holdfast run`. `at` has the times of events, in seconds."""

    def __init__(self, cluster: Cluster, stale_after: float | None) -> None:
        self.at: dict[str, float] = {}
        self.began = 0.0
        self.next: holdfast.Hold | None = None
        self._url = cluster.url
        lock = Lock(cluster.url("web"), stale_after=stale_after, on_lost=lambda _: self.note("told"))
        self.hold = lock.acquire(timeout=20)
        words = [sys.executable, "-m", "holdfast", "run", cluster.url("job"), "--", "sleep", "1000"]
        self._run = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        eventually(lambda: Lock(cluster.url("job")).status().locked)
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._wait, self._watch)]
        for thread in self._threads:
            thread.start()
        eventually(lambda: len(Lock(cluster.url("web")).status().waiters) == 1)

    def note(self, what: str) -> None:
        self.at.setdefault(what, time.monotonic() - self.began)

    def _wait(self) -> None:
        self.next = Lock(self._url("web")).acquire(timeout=patroni.SLOW)
        self.note("next")

    def _watch(self) -> None:
        self._run.wait()
        self.note("ended")

    def see(self, event: Callable[[], object]) -> None:
        """Times count from now on."""
        self.began = time.monotonic()
        event()

    def token(self) -> tuple[int, int]:
        """The timeline and count in the token of the next hold."""
        assert self.next is not None
        assert self.next.token is not None
        return self.next.token >> 40, self.next.token & (1 << 40) - 1

    def end(self) -> None:
        self._run.kill()
        _give_back(self.hold)
        for thread in self._threads:
            thread.join(patroni.SLOW)
        _give_back(self.next)


def _give_back(hold: holdfast.Hold | None) -> None:
    if hold is not None:
        with suppress(holdfast.LockLost):
            hold.release()


@contextmanager
def played(*, stale_after: float | None = None, **dcs: object) -> Iterator[tuple[Cluster, Callers]]:
    with patroni.cluster(**dcs) as cluster:
        callers = Callers(cluster, stale_after)
        try:
            yield cluster, callers
        finally:
            callers.end()


def report(what: str, synchronous: bool, callers: Callers) -> None:
    """Keep the figures for the page, if that was asked for."""
    timeline, count = callers.token()
    found = ", ".join(
        f"{name} {seconds:.2f} s" for name, seconds in sorted(callers.at.items(), key=lambda each: each[1])
    )
    if path := os.environ.get("HOLDFAST_FAILOVER_REPORT"):
        with open(path, "a") as file:
            mode = "synchronous" if synchronous else "asynchronous"
            file.write(f"{what}, {mode}: {found}; the next token: {timeline}, {count}\n")


def check(callers: Callers) -> None:
    """The holder was told before the next one got in, whose token is higher."""
    check_next(callers)
    assert callers.at["told"] < callers.at["next"]


def check_next(callers: Callers) -> None:
    at_last(lambda: {"told", "ended", "next"} <= set(callers.at), "the next holder")
    assert callers.next is not None
    assert (callers.next.token or 0) > (callers.hold.token or 0)
    callers.next.ensure_held()
    with pytest.raises(holdfast.LockLost):
        callers.hold.release()


@MODES
def test_a_switchover_ends_the_hold_before_the_next_one_begins(synchronous: bool) -> None:
    with played(synchronous_mode=synchronous) as (cluster, callers):
        callers.see(cluster.switch_over)
        check(callers)
        assert callers.token()[0] == 2
        report("switchover", synchronous, callers)


def test_a_leader_whose_server_is_killed_serves_again_and_has_lost_no_token() -> None:
    """Patroni restarts it: no standby is promoted, so the timeline stays."""
    with played(synchronous_mode=True) as (cluster, callers):
        callers.see(lambda: kill(cluster, patroni=False))
        check(callers)
        assert callers.token() == (1, 2)
        report("server killed", True, callers)


@MODES
def test_a_leader_that_dies_is_replaced(synchronous: bool) -> None:
    with played(synchronous_mode=synchronous) as (cluster, callers):
        callers.see(lambda: kill(cluster, patroni=True))
        check(callers)
        assert callers.token()[0] == 2
        report("server and Patroni killed", synchronous, callers)


def kill(cluster: Cluster, *, patroni: bool) -> None:
    cluster.old.signal(signal.SIGKILL, patroni=patroni)
    cluster.old.signal(signal.SIGSTOP, server=True)  # so that it starts no more processes
    cluster.old.signal(signal.SIGKILL, server=True)


@MODES
def test_a_hanging_leader_that_goes_on_keeps_no_lock_from_the_new_one(synchronous: bool) -> None:
    """As if its machine were cut off: nothing ends the connections. The holder knows by its own clock."""
    with played(synchronous_mode=synchronous) as (cluster, callers):
        callers.see(lambda: cluster.old.signal(signal.SIGSTOP, patroni=True, server=True))
        try:
            with Lock(cluster.url("new")).acquire(timeout=60) as hold:
                assert (hold.token or 0) >> 40 == 2
                callers.note("another one in")
            check(callers)
            assert callers.token()[0] == 2
            report("leader stopped", synchronous, callers)
        finally:
            cluster.old.signal(signal.SIGCONT, patroni=True, server=True)
        at_last(lambda: cluster.old.role().startswith("replica"), "the end of the old leader")
        assert callers.next is not None
        callers.next.ensure_held()


@MODES
def test_an_old_leader_without_its_patroni_allows_two_holders_but_never_with_one_token(synchronous: bool) -> None:
    """There is no watchdog here. With `synchronous_mode` it lets nobody else in, and newcomers find the new leader."""
    with played(synchronous_mode=synchronous) as (cluster, callers):
        callers.see(lambda: cluster.old.signal(signal.SIGSTOP, patroni=True))
        try:
            at_last(lambda: cluster.new.role() == "primary", "a new leader")
            callers.note("promoted")
            with Lock(cluster.url("new")).acquire(timeout=40) as hold:
                assert (hold.token or 0) >> 40 == (2 if synchronous else 1)
                callers.note("another one in")
            hosts = f"127.0.0.1:{cluster.new.port}"
            with Lock(f"postgresql://postgres@{hosts}/postgres#web").acquire(timeout=20) as second:
                callers.hold.ensure_held()
                assert (second.token or 0) > (callers.hold.token or 0)
            assert "told" not in callers.at
        finally:
            callers.note("goes on")
            cluster.old.signal(signal.SIGCONT, patroni=True)
        check(callers)
        assert callers.token()[0] == 2
        report("Patroni stopped, its server goes on", synchronous, callers)


@pytest.mark.parametrize("stale_after", [7, 30])
def test_a_leader_that_a_watchdog_resets_leaves_the_holder_little_time(stale_after: float) -> None:
    """Simulated: its Patroni stops, and 5 s before its key expires its server stops as well. Nobody closes the
    connections of a machine that is reset, so the holder has these seconds to notice."""
    with played(synchronous_mode=True, stale_after=stale_after) as (cluster, callers):
        callers.see(lambda: cluster.old.signal(signal.SIGSTOP, patroni=True))
        try:
            at_last(lambda: cluster.key_expires_in() <= 5, "the last seconds of the leader's key")
            cluster.old.signal(signal.SIGSTOP, server=True)
            callers.note("reset")
            with Lock(cluster.url("web"), stale_after=stale_after).acquire(timeout=60) as hold:
                callers.note("another one in")
                assert (hold.token or 0) > (callers.hold.token or 0)
            at_last(lambda: "told" in callers.at, "the end of the hold")
            assert stale_after > 7 or callers.at["told"] < callers.at["another one in"]
        finally:
            cluster.old.signal(signal.SIGCONT, patroni=True, server=True)
        check_next(callers)
        report(f"reset by a watchdog, stale_after={stale_after}", True, callers)


@pytest.mark.parametrize("failsafe", [True, False])
def test_an_outage_of_etcd_ends_holds_only_without_failsafe_mode(failsafe: bool) -> None:
    with played(synchronous_mode=True, failsafe_mode=failsafe) as (cluster, callers):
        with cluster.etcd.paused():
            callers.see(lambda: None)
            if failsafe:
                time.sleep(2 * patroni.DCS["ttl"])  # so that nothing happens meanwhile
                callers.hold.ensure_held()
                assert not callers.at
            else:
                at_last(lambda: "told" in callers.at, "the end of the leader")
            callers.note("etcd is back")
        if failsafe:
            callers.hold.release()
            at_last(lambda: "next" in callers.at, "the next holder")
        else:
            check(callers)
        report(f"etcd away, failsafe_mode {failsafe}", True, callers)
