"""What a step touches, so that two steps can be seen to commute.

A footprint is a pair of sets of bits, (`own`, `against`). Each simulated object has three bits: somebody reads it,
writes it, or adds to it. Two steps may be exchanged unless the `own` of one meets the `against` of the other:

    reads commute with reads; additions to a directory commute with additions; a write commutes with nothing

The objects are: each path name, each inode (content, links, kernel locks and watches together), the content of each
directory, each process, and what only the simulation knows (the critical section, the number of crashes that are left).
"""

from __future__ import annotations

Footprint = tuple[int, int]

NOTHING: Footprint = (0, 0)
EVERYTHING: Footprint = ((1 << 3000) - 1, (1 << 3000) - 1)
"""Of a step after which another time is read everywhere."""


class Mark:
    """One object's footprints: `r` of who reads it, `w` of who writes it, `i` of who adds to it."""

    __slots__ = ("i", "r", "w")

    def __init__(self, number: int) -> None:
        at = 3 * number
        self.r: Footprint = (1 << at, 6 << at)
        self.w: Footprint = (2 << at, 7 << at)
        self.i: Footprint = (4 << at, 3 << at)


_marks: list[Mark] = []


def mark(number: int) -> Mark:
    """The mark of the object of that number: made once, as each run numbers its objects anew."""
    while number >= len(_marks):
        _marks.append(Mark(len(_marks)))
    return _marks[number]


def both(one: Footprint, other: Footprint) -> Footprint:
    """The footprint of a step that touches what either touches."""
    return (one[0] | other[0], one[1] | other[1])


def commute(one: Footprint, other: Footprint) -> bool:
    """Whether two steps of different processes lead to the same, whichever comes first."""
    return not one[0] & other[1]
