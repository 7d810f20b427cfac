"""Planted bugs: each takes one thing away that the engine's invariants rest on, and names the workload that notices.

A mutant is a function of a `pytest.MonkeyPatch`; it changes the engine for as long as that is in force.
"""

from __future__ import annotations

import errno
import math
import stat
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from holdfast._platform import operations
from holdfast._platform.operations import let_go
from holdfast.engines.file import (
    acquire,
    fencing,
    flock,
    inspect,
    interop,
    lease,
    policy,
    publish,
    queue,
    remove,
    takeover,
    turns,
    uncontended,
    watched,
)
from holdfast.engines.file.hold import FileHold
from holdfast.engines.file.inspect import Observation
from holdfast.engines.file.policy import Verdict
from holdfast.engines.file.request import FileRequest
from holdfast.engines.file.steps import is_there, write_all
from holdfast.liveness import Liveness
from sim.kernel import Process

Patch = pytest.MonkeyPatch


class Mutant(NamedTuple):
    mutate: Callable[[Patch], None]
    workload: str
    way: str = "search"
    """`search`: every interleaving, one after the other; or `random`."""
    seed: int = 0
    """The first seed of the random ones."""


def no_check_before_the_takeover(patch: Patch) -> None:
    """T2 is gone altogether."""
    patch.setattr(takeover, "_is_as_judged", lambda *_: True)


def no_comparison_of_bytes(patch: Patch) -> None:
    """T2 compares the inode only."""
    patch.setattr(takeover, "_is_as_judged", lambda env, request, seen, _fd: is_there(env, request.path, seen.identity))


class _Free:
    """A claim that keeps nobody out."""

    def end(self) -> None:
        pass

    drop = end


def no_gates(patch: Patch) -> None:
    """T1: a dead lock is taken over without its guard."""
    patch.setattr(takeover, "take_guard", lambda env, fd: (env.guard(fd), 2)[1])
    patch.setattr(Process, "guard", lambda self, fd, **_: self._lock(fd, 2, "guard") or True)


def no_claim_of_one_with_kernel_locks(patch: Patch) -> None:
    """T1: the guard alone counts, beside a contender without kernel locks."""
    real = takeover.make_claim
    patch.setattr(takeover, "make_claim", lambda *args: _Free() if args[-1] == 2 else real(*args))


def no_claim_beside_readers(patch: Patch) -> None:
    """T9: contenders that have the guard together with readers do not keep each other out."""
    patch.setattr(takeover, "make_claim", lambda *_: _Free())


def no_claim_to_break_a_lock(patch: Patch) -> None:
    """R2: a lock is removed while it is taken over."""
    patch.setattr(remove, "claim_seen", lambda *_: _Free())


def nobody_looks_for_claims(patch: Patch) -> None:
    """T8: a contender that has taken over enters, though another is about to remove the lock."""

    def enter(_env: object, held: FileHold) -> Any:
        yield from ()
        return held

    patch.setattr(takeover, "_wait_for_claims", enter)


def two_claims_at_once(patch: Patch) -> None:
    """T11: a contender that has made a claim does not look for others."""
    patch.setattr(takeover, "_has_other", lambda *_, **__: False)


def a_dead_claim_counts(patch: Patch) -> None:
    """T12, T13: a dead process's claim counts."""
    patch.setattr(takeover._About, "is_over", lambda *_: False)
    real = takeover._counts
    patch.setattr(takeover, "_counts", lambda *args: real(*args[:-1], 1))


def a_reader_keeps_a_dead_lock(patch: Patch) -> None:
    """T9: the guard is taken exclusively."""
    patch.setattr(takeover, "TRIES", math.inf)


def an_exclusive_reader_keeps_a_dead_lock(patch: Patch) -> None:
    """T19, L11: any lock on the file counts as a guard."""
    patch.setattr(Process, "is_written", lambda *_: None)


def whatever_is_locked_is_no_guard(patch: Patch) -> None:
    """L11: nobody asks whether the file is open for writing."""
    patch.setattr(Process, "is_written", lambda *_: False)


def no_claim_beside_an_exclusive_reader(patch: Patch) -> None:
    """T19: neither guard nor claim."""
    real = takeover.make_claim
    patch.setattr(takeover, "make_claim", lambda *args: _Free() if args[-1] == takeover.NO_LOCKS else real(*args))


def no_settling(patch: Patch) -> None:
    """T5: nobody settles."""

    def enter(_env: object, held: FileHold) -> Any:
        yield from ()
        return held

    patch.setattr(takeover, "settle", enter)


def published_by_renaming(patch: Patch) -> None:
    """P1: the file is published by a rename over any other."""

    def link(self: Process, fd: int, path: str) -> None:
        self.step("rename", path, self._addition(path))
        if path in self.kernel.names:
            self.kernel.remove(path)
        self.kernel.add(path, 0, self.files[fd].inode)

    patch.setattr(Process, "link_unnamed", link)


def marked_before_it_is_guarded(patch: Patch) -> None:
    """P2: the name appears, and the guard is taken afterwards."""

    def publish_unnamed(env: Any, request: Any, blank: Any) -> FileHold:
        fd, _, identity, _ = blank
        env.unguard(fd)
        data = request.compose(env, identity[0], guarded=True)
        write_all(env, fd, data)
        try:
            env.link_unnamed(fd, request.path)
        except FileExistsError:
            env.close(fd)
            raise
        env.guard(fd)
        return FileHold(env, request, fd, identity, data, True)

    patch.setattr(publish, "_publish_unnamed", publish_unnamed)


def named_as_guarded_from_the_start(patch: Patch) -> None:
    """P3: the record says `g` before the guard is taken."""
    patch.setattr(publish, "kinds_of_marker", lambda _request: (b"holdfast=2 g ", b"holdfast=2 g "))
    real = FileRequest.compose
    patch.setattr(FileRequest, "compose", lambda self, env, device, **_: real(self, env, device, guarded=True))


def finished_although_it_is_not_empty(patch: Patch) -> None:
    """P5: a contender that gets the guard of a new file writes its record, though another has done so."""

    def finish(env: Any, request: Any, fd: int, *, created: bool) -> Any:
        while env.guard(fd) is False:
            yield publish.Wait((), env.monotonic() + 0.0005)
        found = env.fstat(fd)
        data = request.compose(env, found.st_dev, guarded=True)
        write_all(env, fd, data)
        env.chmod(fd, stat.S_IMODE(found.st_mode) & ~publish.UNFINISHED)
        return FileHold(env, request, fd, (found.st_dev, found.st_ino), data, True)

    patch.setattr(publish, "finish", finish)
    patch.setattr(takeover, "finish", finish)


def no_second_look(patch: Patch) -> None:
    """WF1: once the watch is armed, the waiter waits without another look."""
    real = watched.WatchedFile.prepare

    def prepare(self: watched.WatchedFile) -> bool:
        armed = self._armed
        changed = real(self)
        self._relied_from = 0.0
        return changed and armed

    patch.setattr(watched.WatchedFile, "prepare", prepare)


def no_burst(patch: Patch) -> None:
    """WF2: there is one look after a close event, and no more."""
    patch.setattr(watched.WatchedFile, "hurry", lambda _self: None)
    patch.setattr(watched, "DYING", 0.0)


def a_watch_is_relied_upon_at_once(patch: Patch) -> None:
    """WF2: an event just before the watch is forgotten."""
    patch.setattr(watched, "DYING", 0.0)


def no_deadline(patch: Patch) -> None:
    """A2: the waiter waits for events alone."""
    for module in (watched, queue):
        patch.setattr(module, "RECHECK", math.inf)
    patch.setattr(watched, "DYING", math.inf)
    patch.setattr(queue, "_RECHECK_EACH", math.inf)


def the_watch_stays_on_the_old_file(patch: Patch) -> None:
    """WF3: the watch stays on the old file."""

    def observe(self: watched.WatchedFile) -> bool:
        armed, watch = self._armed, self._watch
        self._armed, self._watch = False, None
        try:
            return real(self)
        finally:
            self._armed, self._watch = armed, watch

    real = watched.WatchedFile._observe
    patch.setattr(watched.WatchedFile, "_observe", observe)
    patch.setattr(watched, "DYING", 0.0)


def released_without_comparing(patch: Patch) -> None:
    """FH2: a release removes any file at the path."""
    patch.setattr(FileHold, "_is_ours", lambda _self: True)


def released_without_comparing_bytes(patch: Patch) -> None:
    """FH2: a release compares the inode, and not the record."""
    patch.setattr(FileHold, "_is_ours", lambda self: is_there(self.env, self.path, self.identity))


def unlocked_before_it_is_removed(patch: Patch) -> None:
    """FH1: the guard is dropped before the file is removed."""
    real = FileHold._remove

    def remove_late(self: FileHold) -> bool:
        self.env.unguard(self.fd)
        return real(self)

    patch.setattr(FileHold, "_remove", remove_late)


def nothing_is_removed(patch: Patch) -> None:
    """A release that leaves the file behind."""
    patch.setattr(FileHold, "_remove", lambda _self: True)


def a_queue_that_fails_is_an_error(patch: Patch) -> None:
    """Q1: a contender that cannot take a ticket does not get the lock, either."""

    def issue(self: queue.QueueEntry) -> None:
        made = queue._made_queue(self.env, self._request)
        if made is not None:
            self._issue_in(made)

    patch.setattr(queue.QueueEntry, "_issue", issue)


def a_ticket_is_made_under_its_own_name(patch: Patch) -> None:
    """Q2: a ticket is there before its reader."""

    def make(self: queue.Queue, name: str) -> int:
        self._env.make_fifo(name, 0o600, dir_fd=self._fd)
        return self._env.open_fifo(name, write=False, dir_fd=self._fd)

    patch.setattr(queue.Queue, "make", make)


def a_dead_ticket_counts(patch: Patch) -> None:
    """Q2: a ticket that nobody reads is waited for. Patience (Q6) would make up for that after 20 ms."""

    def follow(self: queue.Queue, name: str) -> int | None:
        try:
            return self._env.open_fifo(name, write=True, dir_fd=self._fd)
        except OSError as error:
            return -1 if error.errno == errno.ENXIO else None

    patch.setattr(queue.Queue, "follow", follow)
    nobody_loses_patience(patch)


def a_ticket_of_another_mount_counts(patch: Patch) -> None:
    """Q3: a ticket of another mount is taken for one that nobody reads."""
    patch.setattr(queue.Queue, "counts", lambda _self, name: queue.is_ticket(name))


def a_ticket_of_another_kernel_is_left_over(patch: Patch) -> None:
    """Q3: a ticket of another kernel is removed however young it is."""
    patch.setattr(queue, "_FOREIGN_LASTS", 0.0)


def a_ticket_stays_after_a_timeout(patch: Patch) -> None:
    """Q4: a waiter that gives up leaves its ticket."""

    def drop(self: queue.QueueEntry) -> None:
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            self.env.close(ticket.fd)
            ticket.queue.close()

    patch.setattr(queue.QueueEntry, "drop_ticket", drop)


def a_ticket_is_removed_and_stays_open(patch: Patch) -> None:
    """Q4: the end of a ticket wakes nobody."""
    patch.setattr(queue, "close_quietly", lambda _env, _fd: None)


def a_ticket_goes_at_the_acquisition(patch: Patch) -> None:
    """Q4: the next waiter is woken for nothing."""
    real = queue.QueueEntry.hold

    def hold(self: queue.QueueEntry) -> None:
        real(self)
        self.drop_ticket()

    patch.setattr(queue.QueueEntry, "hold", hold)


def a_ticket_goes_before_the_lock_file(patch: Patch) -> None:
    """Q4: a waiter that is woken by a release finds the lock held."""
    real = FileHold._remove

    def remove_late(self: FileHold) -> bool:
        if self.entry is not None:
            self.entry.leave()
        return real(self)

    patch.setattr(FileHold, "_remove", remove_late)


def newcomers_pass_the_queue(patch: Patch) -> None:
    """Q5: a free lock is taken, whoever waits for it."""
    patch.setattr(uncontended, "_is_contended", lambda *_: False)


def who_is_woken_believes_to_be_first(patch: Patch) -> None:
    """Q5: a woken waiter does not look again who is ahead."""
    real = queue.QueueEntry._is_behind_ticket

    def is_behind(self: queue.QueueEntry) -> bool:
        if self._follows >= 0 and self.env.hung_up(self._follows):
            self._unfollow()
            return False
        return real(self)

    patch.setattr(queue.QueueEntry, "_is_behind_ticket", is_behind)


def all_follow_the_first(patch: Patch) -> None:
    """Each release wakes all waiters."""
    real = queue.QueueEntry._follow
    patch.setattr(
        queue.QueueEntry,
        "_follow",
        lambda self, there, _name, left: real(self, there, next(n for n in there.names() if there.counts(n)), left),
    )


def nobody_loses_patience(patch: Patch) -> None:
    """Q6: nobody passes an idle ticket."""
    patch.setattr(queue.QueueEntry, "patience", math.inf)


def who_is_passed_loses_its_ticket(patch: Patch) -> None:
    """Q6: a waiter that passes an idle ticket removes it."""
    real = queue.QueueEntry.pass_idle_waiters

    def pass_idle_waiters(self: queue.QueueEntry) -> None:
        real(self)
        there = queue.opened(self.env, self._request.queue)
        if there is not None:
            for name in self._ignored:
                there.remove(name)
            there.close()

    patch.setattr(queue.QueueEntry, "pass_idle_waiters", pass_idle_waiters)


def a_slot_keeps_the_place(patch: Patch) -> None:
    """Q7: a waiter that has got a slot is still ahead of the others."""

    def win(self: acquire.AcquireAttempt, held: FileHold) -> None:
        self.ref = held.ref(self._context)
        if self._entry is not None:
            held.entry = self._entry
            self._entry.hold()
            self._entry = None

    patch.setattr(acquire.AcquireAttempt, "_win", win)


def whatever_has_a_tickets_name_is_removed(patch: Patch) -> None:
    """Q8: anything with a ticket's name is removed, even if it is no FIFO."""

    real = queue.Queue.is_abandoned

    def is_abandoned(self: queue.Queue, name: str) -> bool:
        fd = self.follow(name) if queue.is_ticket(name) else -1
        queue.close_quietly(self._env, -1 if fd is None else fd)
        return fd is None or real(self, name)

    patch.setattr(queue.Queue, "is_abandoned", is_abandoned)


def leftovers_are_never_swept(patch: Patch) -> None:
    """Q8: leftovers of dead waiters stay forever."""
    patch.setattr(queue.Queue, "sweep", lambda _self: None)


def any_directory_is_opened_to_others(patch: Patch) -> None:
    """Q9: any directory is opened to others, even one that is not in the making."""

    def open_up(self: queue.Queue, _directory: str) -> None:
        self._env.chmod(self._fd, 0o755)

    patch.setattr(queue.Queue, "open_up", open_up)


def a_place_is_not_handed_on(patch: Patch) -> None:
    """Q10: the next task of a process takes its ticket when the first one has left."""
    patch.setattr(queue.QueueEntry, "_pass_on", lambda _self: None)


def nobody_is_told_of_a_broken_lock(patch: Patch) -> None:
    """Q11: the next waiter waits for the ticket of the former holder."""
    patch.setattr(queue, "wake", lambda *_: None)


def the_next_task_is_not_told(patch: Patch) -> None:
    """A waiter that leaves a line tells nobody."""
    patch.setattr(queue.LocalQueue, "wake_first", lambda _self: None)


def no_wait_for_rivals(patch: Patch) -> None:
    """Y1: a contender that has published enters at once."""

    def enter(_env: object, _request: object, held: FileHold | None) -> Any:
        yield from ()
        return held

    patch.setattr(publish, "quieten", enter)
    patch.setattr(takeover, "quieten", enter)


def no_look_after_the_rivals(patch: Patch) -> None:
    """Y1: a contender that has waited for the rivals does not check whether it still has the lock."""
    patch.setattr(interop, "is_there", lambda *_: True)


def a_number_is_a_process(patch: Patch) -> None:
    """L3: whichever process has the pid now is the holder."""
    real = Process.inspect

    def inspect(self: Process, pid: int) -> Any:
        return real(self, pid).replaced(started="-", since=None)

    patch.setattr(Process, "inspect", inspect)


def numbers_mean_the_same_everywhere(patch: Patch) -> None:
    """L3: a pid of another container is looked up in this one."""
    real = inspect.assess

    def assess(env: Any, seen: Observation) -> Any:
        record = seen.record
        if record is not None and record.marker is not None and not record.marker.guarded:
            return inspect._by_process(env, record, record.marker)
        return real(env, seen)

    patch.setattr(watched, "assess", assess)


def any_free_guard_proves_death(patch: Patch) -> None:
    """L2: a free guard proves death, whatever the device."""
    real = inspect.assess

    def assess(env: Any, seen: Observation) -> Any:
        record = seen.record
        if record is not None and record.marker is not None and record.marker.guarded and not env.guarded(seen.fd):
            evidence = inspect.Evidence("guard", "gone", proven=True)
            return inspect.Assessment(Liveness.DEAD, evidence)
        return real(env, seen)

    patch.setattr(watched, "assess", assess)


def the_rule_alone_decides(patch: Patch) -> None:
    """V3: an old lock is reclaimed, even from a living holder."""

    def judge(env: Any, request: Any, seen: Any, assessed: Any) -> Verdict:
        verdict = policy.judge(env, request, seen, assessed)
        record = seen.record
        if record is not None and record.marker is None:
            stale = request.protocol.is_stale(record, assessed.liveness, env.time(), request.stale_after)
            return Verdict(stale, False, "", verdict.stale_at)
        return verdict

    patch.setattr(watched, "judge", judge)


def a_descriptor_stays_open(patch: Patch) -> None:
    """A contender forgets to close the file that it looked at."""

    def rest(self: watched.WatchedFile) -> None:
        self._disarm()
        self._seen = None

    patch.setattr(watched.WatchedFile, "rest", rest)


def a_watch_stays(patch: Patch) -> None:
    """A contender forgets its watch."""

    def disarm(self: watched.WatchedFile) -> None:
        self._armed = self._waiting = False
        self._watch = None
        self._unwatch_process()

    patch.setattr(watched.WatchedFile, "_disarm", disarm)


def nobody_was_replaced(patch: Patch) -> None:
    """`recovered_from` is forgotten."""
    real = watched.take_over

    def take_over(*args: Any) -> Any:
        held = yield from real(*args)
        if held is not None:
            held.recovered_from = None
        return held

    patch.setattr(watched, "take_over", take_over)


def a_failed_takeover_stays_guarded(patch: Patch) -> None:
    """T1: a contender that finds that another was faster keeps the guard of the file."""

    def keep(env: Any, fd: int) -> None:
        pass

    patch.setattr(takeover, "let_go", keep)


def the_wrong_lock_is_broken(patch: Patch) -> None:
    """R1: the present lock is removed, whichever one was judged."""
    patch.setattr(remove, "_is_unchanged", lambda *_: True)


def a_full_disk_leaves_half_a_lock(patch: Patch) -> None:
    """P4: a contender that cannot write its record leaves the file."""
    patch.setattr(publish, "withdraw", lambda env, _request, fd, _data: let_go(env, fd))


def temporary_names_are_never_swept(patch: Patch) -> None:
    """A contender that publishes by a temporary name and crashes leaves that forever."""
    patch.setattr(operations, "sweep", lambda _env, _directory: None)


def all_slots_are_one(patch: Patch) -> None:
    """A semaphore's holders do not keep each other out of a slot: publishing renames over the others'."""
    published_by_renaming(patch)
    patch.setattr(uncontended, "_is_taken", lambda _env, _request: False)


def the_queue_directory_stays(patch: Patch) -> None:
    """The last to leave does not remove the queue's directory."""
    patch.setattr(queue, "remove_queue", lambda _env, _queue: None)


def the_lock_of_the_kernel_is_taken_by_two(patch: Patch) -> None:
    """F1, F4: a guard that was refused counts."""
    patch.setattr(flock, "try_guard", lambda env, _request, fd, **_: env.guard(fd) or True)


def a_heart_does_not_beat(patch: Patch) -> None:
    """A long hold's record is never refreshed."""
    patch.setattr(FileHold, "beat", lambda _self: None)


def counted_without_the_counters_guard(patch: Patch) -> None:
    """TK1: a robbed holder and its successor count at the same time."""
    real = fencing._advance

    def advance(env: Any, request: Any, path: str, fd: int) -> Any:
        class Free:
            def __getattr__(self, name: str) -> Any:
                return (lambda _fd: True) if name == "guard" else getattr(env, name)

        return real(Free(), request, path, fd)  # type: ignore[arg-type]

    patch.setattr(fencing, "_advance", advance)


def two_make_the_counter_anew(patch: Patch) -> None:
    """TK7: the claim keeps nobody out."""
    patch.setattr(fencing, "make_claim", lambda *_: _Free())


def counted_with_a_file_without_a_name(patch: Patch) -> None:
    """TK1: nobody checks whether the path still names the file that was counted with."""
    patch.setattr(fencing, "is_there", lambda *_: True)


def a_counter_begins_anew(patch: Patch) -> None:
    """TK4: an existing counter is not read."""
    patch.setattr(fencing, "_numbers", lambda *_: (0, 0))


def counted_before_the_lock_is_taken(patch: Patch) -> None:
    """TK1: the number is fetched before the lock is taken."""

    def fenced(env: Any, held: FileHold) -> Any:
        held.token = int(env.time() * 1_000_000)
        yield from ()
        return held

    patch.setattr(acquire, "fenced", fenced)
    patch.setattr(fencing, "fenced", fenced)


def a_lease_is_never_over(patch: Patch) -> None:
    """LE1: the holder does not look at its clock."""
    patch.setattr(lease.Lease, "is_over", lambda self: self.replaced)


def a_lease_is_over_too_early(patch: Patch) -> None:
    """LE2: the observer waits for half of the lease."""
    real = lease.LeaseWatch.look
    patch.setattr(lease.LeaseWatch, "look", lambda *args: 2 * real(*args))


def an_old_reading_will_do(patch: Patch) -> None:
    """LE3: the file is not opened anew, either for a look or under the claim."""

    def read(env: Any, path: str) -> Any:
        found = env.stat(path)
        inode = env.cache.names[path]
        return (found.st_dev, found.st_ino), env.cache.content[inode]

    patch.setattr(lease, "read_fresh", read)


def a_lapsed_holder_is_replaced_without_a_claim(patch: Patch) -> None:
    """LE5: a lapsed holder is replaced without a claim."""
    patch.setattr(lease.Claims, "make", lambda *_: True)


def no_reading_under_the_claim(patch: Patch) -> None:
    """LE5: a claim is made, and then the file is replaced, whatever it is by then."""
    patch.setattr(lease, "_is_unchanged", lambda *_: True)


def nobody_is_disarmed(patch: Patch) -> None:
    """LE13: a process that breaks a lock leaves a claimant the file that it is about to rename."""
    patch.setattr(lease, "disarm", lambda *_: True)


def a_late_claimant_enters(patch: Patch) -> None:
    """LE6: a late claimant enters."""
    patch.setattr(lease, "_is_late", lambda *_: False)


def a_dead_claimants_claim_counts_for_ever(patch: Patch) -> None:
    """LE6: the claim of a dead claimant counts forever."""
    patch.setattr(lease.LeaseWatch, "is_abandoned", lambda *_: False)


def a_beat_does_not_look_at_the_path(patch: Patch) -> None:
    """LE7: a beat does not check which file the path names."""
    real = FileHold._confirm

    def confirm(self: FileHold, of: lease.Lease, began: float) -> None:
        real(self, of, began)
        if of.replaced:
            of.replaced, of.until = False, self.env.uptime() + of.seconds

    patch.setattr(FileHold, "_confirm", confirm)


def a_lapsed_release_removes(patch: Patch) -> None:
    """LE8: a release removes whatever is at the path, even after the time is over."""
    patch.setattr(FileHold, "_is_ours", lambda _self: True)
    patch.setattr(FileHold, "_is_at_path", lambda _self: True)


def nobody_waits_for_turns(patch: Patch) -> None:
    """MT2: waiters make their own turns, and try."""
    real = turns.Turn.is_behind
    patch.setattr(turns.Turn, "is_behind", lambda self: real(self) and False)


def a_turn_stays(patch: Patch) -> None:
    """MT6: a turn stays until it has aged."""
    patch.setattr(turns.Turn, "leave", lambda _: None)


def a_later_turn_may_be_first(patch: Patch) -> None:
    """MT3: a new turn has no higher number than the existing ones."""
    patch.setattr(turns, "turn_number", lambda _: 0)


MUTANTS = {
    mutant.mutate.__name__: mutant
    for mutant in (
        Mutant(no_check_before_the_takeover, "two-dead", "random"),
        Mutant(no_comparison_of_bytes, "two-dead", "random"),
        Mutant(no_gates, "two-dead", "random"),
        Mutant(no_claim_of_one_with_kernel_locks, "sandboxed", "random"),
        Mutant(no_claim_beside_readers, "read-dead", "random"),
        Mutant(no_claim_to_break_a_lock, "breaking-dead", "random", seed=5850),
        Mutant(nobody_looks_for_claims, "breaking-dead", "random"),
        Mutant(two_claims_at_once, "sandboxed", "random"),
        Mutant(a_dead_claim_counts, "sandboxed-crash", "random"),
        Mutant(a_reader_keeps_a_dead_lock, "read-dead"),
        Mutant(an_exclusive_reader_keeps_a_dead_lock, "kept-dead"),
        Mutant(whatever_is_locked_is_no_guard, "staying"),
        Mutant(no_claim_beside_an_exclusive_reader, "kept-dead", "random"),
        Mutant(no_settling, "sema-stale", "random", seed=1270),
        Mutant(published_by_renaming, "two"),
        Mutant(marked_before_it_is_guarded, "two", "random"),
        Mutant(named_as_guarded_from_the_start, "named", "random"),
        Mutant(finished_although_it_is_not_empty, "exclusive", "random", seed=4000),
        Mutant(no_second_look, "two-crash", "random"),
        Mutant(no_burst, "slow-close"),
        Mutant(a_watch_is_relied_upon_at_once, "slow-close"),
        Mutant(no_deadline, "lost-events"),
        Mutant(the_watch_stays_on_the_old_file, "staying", "random"),
        Mutant(released_without_comparing, "breaking", "random", seed=1280),
        Mutant(released_without_comparing_bytes, "beads", "random"),
        Mutant(unlocked_before_it_is_removed, "two"),
        Mutant(nothing_is_removed, "two"),
        Mutant(a_queue_that_fails_is_an_error, "no-fifos"),
        Mutant(a_ticket_is_made_under_its_own_name, "fair"),
        Mutant(a_dead_ticket_counts, "fair-three", "random"),
        Mutant(a_ticket_of_another_mount_counts, "mounts", "random"),
        Mutant(a_ticket_of_another_kernel_is_left_over, "other-kernel", "random"),
        Mutant(a_ticket_stays_after_a_timeout, "impatient"),
        Mutant(a_ticket_is_removed_and_stays_open, "fair"),
        Mutant(a_ticket_goes_at_the_acquisition, "order", "random"),
        Mutant(a_ticket_goes_before_the_lock_file, "order", "random"),
        Mutant(newcomers_pass_the_queue, "order", "random"),
        Mutant(who_is_woken_believes_to_be_first, "one-gives-up", "random"),
        Mutant(all_follow_the_first, "order", "random"),
        Mutant(nobody_loses_patience, "idle-first", "random"),
        Mutant(who_is_passed_loses_its_ticket, "idle-first", "random"),
        Mutant(a_slot_keeps_the_place, "slots-staying", "random"),
        Mutant(whatever_has_a_tickets_name_is_removed, "forged", "random"),
        Mutant(leftovers_are_never_swept, "leftovers", "random"),
        Mutant(any_directory_is_opened_to_others, "forged", "random"),
        Mutant(a_place_is_not_handed_on, "lines", "random"),
        Mutant(nobody_is_told_of_a_broken_lock, "breaking-queued", "random"),
        Mutant(the_next_task_is_not_told, "tasks-only", "random"),
        Mutant(no_wait_for_rivals, "semats", "random"),
        Mutant(no_look_after_the_rivals, "semats", "random"),
        Mutant(a_number_is_a_process, "no-flock-reborn", "random"),
        Mutant(numbers_mean_the_same_everywhere, "containers-no-flock"),
        Mutant(any_free_guard_proves_death, "views"),
        Mutant(the_rule_alone_decides, "old-neighbour", "random"),
        Mutant(a_descriptor_stays_open, "two-try"),
        Mutant(a_watch_stays, "two"),
        Mutant(nobody_was_replaced, "two-dead"),
        Mutant(a_failed_takeover_stays_guarded, "two-dead", "random"),
        Mutant(the_wrong_lock_is_broken, "breaking", "random"),
        Mutant(a_full_disk_leaves_half_a_lock, "full-exclusive"),
        Mutant(temporary_names_are_never_swept, "named", "random"),
        Mutant(all_slots_are_one, "slots"),
        Mutant(the_queue_directory_stays, "fair"),
        Mutant(the_lock_of_the_kernel_is_taken_by_two, "flock", "random"),
        Mutant(a_heart_does_not_beat, "beating", "random"),
        Mutant(counted_without_the_counters_guard, "fenced-breaking", "random", seed=2700),
        Mutant(two_make_the_counter_anew, "fenced-read", "random", seed=12250),
        Mutant(counted_with_a_file_without_a_name, "fenced-read", "random"),
        Mutant(a_counter_begins_anew, "fenced"),
        Mutant(counted_before_the_lock_is_taken, "fenced"),
        Mutant(a_lease_is_never_over, "machines-no-guards", "random"),
        Mutant(a_lease_is_over_too_early, "machines-no-guards", "random"),
        Mutant(an_old_reading_will_do, "machines-less-late", "random"),
        Mutant(a_lapsed_holder_is_replaced_without_a_claim, "machines-less-late", "random"),
        Mutant(no_reading_under_the_claim, "machines-less-late", "random"),
        Mutant(a_late_claimant_enters, "machines-late", "random"),
        Mutant(nobody_is_disarmed, "machines-broken", "random"),
        Mutant(a_dead_claimants_claim_counts_for_ever, "machines-dead", "random", 2700),
        Mutant(a_beat_does_not_look_at_the_path, "machines-slow", "random"),
        Mutant(a_lapsed_release_removes, "machines-slow", "random"),
        Mutant(nobody_waits_for_turns, "machines-turns", "random"),
        Mutant(a_turn_stays, "machines-turns", "random"),
        Mutant(a_later_turn_may_be_first, "machines-turns", "random"),
    )
}
"""Mutants by name."""
