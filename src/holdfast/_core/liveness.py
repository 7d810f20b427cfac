"""Is the holder alive? A ladder of questions; the first answer wins and carries its evidence.

L1  The guard is held: ALIVE, proven. The kernel drops it when the last process that has it is gone, not before.
L2  The guard is free, and the marker says that the holder took it on this boot and this device: DEAD, proven. Through
    another mount of a FUSE filesystem, or through an overlay's upper directory, a held guard looks free; `st_dev`
    differs in every such case. After a reboot device numbers repeat; hence the boot id.
L3  The holder's pid, where the number means something here: in a marker of our boot and PID namespace, or in a foreign
    record, which has only the number. No such process, or one that started later: DEAD. Proven only for a marker that
    says the holder is known by its process alone (`n`): a foreign tool may write its record and end (a shell's `try`),
    and a guard may have been passed on to a child that outlives the pid.
L4  A marker of this host, from another boot: DEAD, by rule, as host names repeat.
L5  Everything else: UNKNOWN, which counts as held.
"""

from __future__ import annotations

from ..model import Evidence, Identity, Liveness, Marker, Record, Value
from .environment import Environment, Presence
from .observe import Observation

MAX_PID = 2**31 - 1
UNFINISHED_SOURCE = "unfinished"
RECYCLED_SLACK = 1.0
"""Seconds: a record's timestamp is in whole seconds, so a holder may seem to start up to one second after it."""


class Assessment(Value):
    liveness: Liveness
    evidence: Evidence
    pid: int | None = None
    """A living process whose end would change the answer."""

    @property
    def is_dead(self) -> bool:
        return self.liveness is Liveness.DEAD


def assess(env: Environment, seen: Observation) -> Assessment:
    """What can be known about the holder of the lock file that was seen."""
    held = env.guarded(seen.fd) if seen.fd >= 0 else None
    record = seen.record
    if held:
        return Assessment(Liveness.ALIVE, Evidence("guard", "the kernel lock on its file is held", proven=True))
    if seen.unfinished and held is False:
        return Assessment(Liveness.UNKNOWN, Evidence(UNFINISHED_SOURCE, "its creator has not written its record"))
    if record is None:
        return _unknown(seen.problem or "the record cannot be read")
    if not record.legible:
        return _unknown("its content does not say whose it is")
    marker, here = record.marker, env.identity()
    if record.marked and marker is None:
        return _unknown("the record's marker is torn or from a newer version")
    if marker is None:
        if record.host is not None and record.host.casefold() != here.host.casefold():
            return _unknown(f"the record comes from host {record.host}, whose processes cannot be seen from here")
        return _by_process(env, record, None)
    same_boot = marker.identity.boot == here.boot != "-"
    if held is False and marker.guarded and same_boot and marker.device == seen.identity[0]:
        return Assessment(
            Liveness.DEAD, Evidence("guard", "the holder's kernel lock is gone, on this boot and device", proven=True)
        )
    if same_boot and marker.identity.pid_namespace == here.pid_namespace != "-":
        return _by_process(env, record, marker)
    if _rebooted(marker.identity, here):
        return Assessment(
            Liveness.DEAD, Evidence("boot", f"host {here.host} has rebooted since the record was written")
        )
    where = "another PID namespace" if same_boot else f"host {marker.identity.host}"
    return _unknown(f"the record comes from {where}, whose processes cannot be seen from here")


def _by_process(env: Environment, record: Record, marker: Marker | None) -> Assessment:
    """L3."""
    pid = record.pid
    if pid is None:
        return _unknown("the record names no process")
    if not 0 < pid <= MAX_PID:
        return _unknown(f"the record's pid {pid} cannot be a process")
    found = env.inspect(pid)
    identified = marker is not None and not marker.guarded
    if found.presence is Presence.GONE:
        return _dead(f"there is no process {pid}", proven=identified)
    if found.presence is Presence.ZOMBIE:
        return _dead(f"process {pid} has ended (it is a zombie)", proven=identified)
    if found.presence is Presence.UNKNOWN:
        return _unknown(f"whether process {pid} lives cannot be known here")
    started = marker.identity.started if marker else "-"
    if "-" not in (started, found.started):
        if started != found.started:
            return _dead(f"pid {pid} is another process by now: it started at another time", proven=identified)
    elif marker is None and record.created is not None and found.since is not None:
        late = found.since - record.created
        if late > RECYCLED_SLACK:
            return _dead(f"pid {pid} is another process by now: it started {late:.0f} s after the record was written")
    return Assessment(Liveness.ALIVE, Evidence("process", f"process {pid} is running"), pid)


def _rebooted(then: Identity, here: Identity) -> bool:
    """L4, between boot ids only: a machine number does not change with a boot."""
    boots = (then.boot, here.boot)
    known = "-" not in boots and not any(boot.startswith("machine:") for boot in boots)
    return known and then.boot != here.boot and then.host == here.host != "-"


def _dead(text: str, *, proven: bool = False) -> Assessment:
    return Assessment(Liveness.DEAD, Evidence("process", text, proven=proven))


def _unknown(text: str) -> Assessment:
    return Assessment(Liveness.UNKNOWN, Evidence("none", text))
