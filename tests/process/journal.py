"""The journal of a storm, read by the rules at the top of worker.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

END = " ."
"""End of each line that was written whole (worker.py)."""


SOON = 1000
"""Bytes of the journal that others may write between the end of a contender's wait and its report of that."""


@dataclass
class Outcome:
    """The result of a journal."""

    counter: int
    done: int = 0
    unfinished: int = 0
    recovered: int = 0
    by_shell: int = 0
    by_letter: dict[str, int] = field(default_factory=dict)
    """Number of times that processes with names of that first letter have finished."""
    overlaps: list[str] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)


def _given_up(state: Path) -> list[int]:
    """Lengths of the journal when processes gave up that may have taken over already: nobody learns of that then."""
    try:
        return [int(line) for line in (state / "given-up").read_text().splitlines()]
    except FileNotFoundError:
        return []


def read_journal(state: Path, killed: set[str], *, told: bool = True, loose: str = "") -> Outcome:
    """Read the journal of a storm. `told`: a process that takes over learns from whom.

    Names may have a part after a dot, for the threads and tasks of one process; `killed` has none. If the one inside
    cannot know from whom it took over, that is `+`, and `?` if it cannot know whether it did. `loose` are the first
    letters of those that are inside for another process, so that the end of one is not the end of the other.
    """
    outcome = Outcome(int((state / "counter").read_text()))
    counter, open_by, at, since = 0, None, 0, 0
    given_up = _given_up(state)
    for line in (state / "journal").read_text().splitlines():
        at += len(line.encode()) + 1
        if not line.endswith(END):
            continue  # a blank, or cut off
        kind, *words = line.removesuffix(END).split()
        if kind == "e":
            continue
        if kind == "x":
            outcome.overlaps.append(line)
        elif kind == "i":
            n, who, recovered = int(words[0]), words[1], words[2]
            if open_by is not None:
                outcome.unfinished += 1
                lost = any(since <= one <= at + SOON for one in given_up)
                if told and recovered == "-" and open_by[0] not in loose and not lost:
                    outcome.mistakes.append(f"{who} does not know that {open_by} died inside before it, at {n}")
            if n != counter + 1 and not (open_by is not None and n == counter):
                outcome.mistakes.append(f"{who} went from {counter} to {n}")
            if recovered not in ("-", "?"):
                outcome.recovered += 1
                if recovered != "+" and recovered.partition(".")[0] not in killed:
                    outcome.mistakes.append(f"{who} took over from {recovered}, which lives")
            counter, open_by, since = n, who, at
        else:
            n, who = int(words[0]), words[1]
            if (n, who) != (counter, open_by):
                outcome.mistakes.append(f"{who} finished {n} inside {open_by}'s {counter}")
            outcome.done += 1
            outcome.by_shell += who == "shell"
            outcome.by_letter[who[0]] = outcome.by_letter.get(who[0], 0) + 1
            open_by = None
    if counter - outcome.counter not in ((0, 1) if open_by is not None else (0,)):
        outcome.mistakes.append(f"the counter is {outcome.counter}, the journal ends at {counter}")
    outcome.unfinished += open_by is not None
    return outcome
