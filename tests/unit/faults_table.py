"""The table of tests/unit/faults.md: the outcome of each fault, call by call, as the code behaves now.

`python tests/unit/faults_table.py` writes it anew; with names of operations (`Release …`), only their sections.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from holdfast._platform import linux
from holdfast.errors import HoldfastError
from unit.failing import alike, tapped
from unit.fault_operations import OPERATIONS, Operation, Wrong, cases, once

PAGE = Path(__file__).with_name("faults.md")
HEAD = """# When the system says no

Each system call of each operation below is made to fail: at each of its occurrences, with every error that its man page
documents and that can occur there, once and always from then on; a write is also cut short, and the disk be full after
half of it. Errors of one class share a run if the code compares their number with none of theirs;
`HOLDFAST_TEST_SECONDS=1` has a run for each. This page is written by `python tests/unit/faults_table.py` from what the
code does; `tests/unit/test_faults.py` runs every case again, compares, and checks after each that

- whoever says it holds the lock holds it alone: another contender is refused, and the record is its own;
- nothing is left: no descriptor, watch, place in a queue, hold, ticket, temporary file or claim;
- an error is one of holdfast's, or the system's own with the path of the lock;
- a release or a heartbeat that fails has not lost track of the lock;
- the next one gets the lock.

`tests/process/test_fault_injection.py` does the same to real system calls, from outside.

| outcome | means |
|---|---|
| error | it fails with that error, and nothing has happened |
| error: *Name* | it fails with holdfast's own error, which says what to do |
| ignored | it makes no difference |
| retried | the call is made again, and it makes no difference |
| another way | done, by another way of publishing or of proving life |
| not acquired | the lock is not to be had just now, as if another were faster |
| done otherwise | done, and less is told or known |
| waits | as long as the error lasts, and would not be too long a wait |

*left: …* is what stays until the process ends, because it cannot be removed or because the system says that it is not
there; without kernel locks (portable platforms) a lock file of a living process counts as held until then.

The ways are those of [architecture.md](architecture.md): *unnamed* (the usual one), *durable*, *without /proc*,
*named*, *exclusive*, *portable*, *without kernel locks*, *without events*. Where no way is named, it is all of them.
"""

Outcomes = dict[tuple[str, str], dict[str, set[str]]]
"""Errors by call and outcome, and the ways in which they come."""


def outcome(
    rehearsed: tuple[list[str], object], calls: list[str], at: int, seen: object, left: str, raised: object
) -> str:
    name = calls[at]
    if isinstance(raised, HoldfastError):
        text = f"error: {type(raised).__name__}"
    elif raised is not None:
        text = "error"
    elif isinstance(seen, str) and seen.startswith("waits"):
        text = "waits"
    elif seen == rehearsed[1]:
        more = calls.count(name) > rehearsed[0].count(name) and not name.endswith("/proc")
        text = "retried" if more else "ignored"
    elif seen == "refused":
        text = "not acquired"
    elif isinstance(seen, tuple) and seen[0] == "held":
        text = "another way"
    else:
        text = "done otherwise"
    return f"{text}; left: {left}" if left else text


def run(kind: type[Operation], place: Path, *, every: bool = False) -> tuple[list[str], list[str], int]:
    """The rows of one operation's table; the errors; the number of cases."""
    found: dict[str, dict[tuple[str, str], dict[str, set[str]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(set))
    )
    wrong: list[str] = []
    number = 0
    with tapped() as tap:
        for way in kind.ways:
            calls, seen, _, raised = once(place, tap, kind, way)
            assert raised is None, raised
            rehearsed = (calls, seen)
            known: dict[tuple[int, bool], list[tuple[str, set[int] | None, str]]] = defaultdict(list)
            for at, word, always in cases(calls, every=every):
                number += 1
                side = "always" if always else "once"
                result = next((told for one, asked, told in known[at, always] if _same(one, word, asked)), "")
                if result:
                    found[calls[at]][side, word][result].add(way)
                    continue
                where = f"{way}, {word} {'from' if always else 'at'} call {at}, {calls[at]}"
                complaint = ""
                try:
                    made, seen, left, raised = once(place, tap, kind, way, at, word, always=always)
                    if made[at : at + 1] != calls[at : at + 1]:
                        complaint = f"the calls before it were others: {made}"
                except Wrong as error:
                    complaint = str(error)
                except Exception as error:
                    complaint = repr(error)
                if complaint:
                    wrong.append(f"{where}: {complaint}")
                    continue
                result = outcome(rehearsed, made, at, seen, left, raised)
                found[calls[at]][side, word][result].add(way)
                if not every:
                    alone = not _comes_again(calls[at], made[at + 1 :])  # nothing would fail after it
                    for same in {always, always or alone}:
                        known[at, same].append((word, tap.compared, result))
    return _rows(found, kind.ways), wrong, number


def _same(one: str, other: str, compared: set[int] | None) -> bool:
    """Whether a run with one error shows how a run with the other would end. What the checks permit depends on the
    error only for those of `ANSWERS`, which have classes of their own, and EBADF."""
    return one == other or ("EBADF" not in (one, other) and alike(one, other, compared))


def _comes_again(call: str, later: list[str]) -> bool:
    """Whether there is a call that fails, too, if it always does from `call` on (`Tap.fails`)."""
    kind = call.partition(":")[0]
    return any(name.partition(":")[0] == kind for name in later)


def _rows(found: dict[str, dict[tuple[str, str], dict[str, set[str]]]], ways: tuple[str, ...]) -> list[str]:
    rows = []
    for call in sorted(found):
        words: dict[tuple[str, str], list[str]] = defaultdict(list)
        for word in dict.fromkeys(word for _, word in found[call]):
            sides = [_spoken(found[call].get((side, word), {}), ways) for side in ("once", "always")]
            words[sides[0], sides[1]].append(word)
        for (one, all_), those in sorted(words.items(), key=lambda item: sorted(item[1])):
            rows.append(f"| {call} | {' '.join(sorted(those))} | {one} | {all_} |")
    return rows


def _spoken(results: dict[str, set[str]], ways: tuple[str, ...]) -> str:
    """The outcomes, the commonest first; with the ways in which they come, unless all have them."""
    affected = set().union(*results.values()) if results else set()
    parts = []
    for result, those in sorted(results.items(), key=lambda item: (-len(item[1]), item[0])):
        where = "" if those == affected else f" ({', '.join(way for way in ways if way in those)})"
        parts.append(result + where)
    return " / ".join(parts)


def section(kind: type[Operation], rows: list[str]) -> str:
    ways = "" if len(kind.ways) == 1 else f"\nWays: {', '.join(kind.ways)}.\n"
    head = "| call | error | once | always from then on |\n|---|---|---|---|\n"
    return f"## {kind.name}\n{ways}\n{head}" + "".join(f"{row}\n" for row in rows)


def page_sections() -> dict[str, str]:
    """The sections of the page, by their headings."""
    parts = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
    return {part.partition("\n")[0]: f"## {part.rstrip()}\n" for part in parts}


def main(names: list[str]) -> None:
    text, failed = HEAD, False
    before = page_sections() if names else {}
    place = Path(tempfile.mkdtemp(prefix="holdfast-faults-", dir="/dev/shm"))
    try:
        for kind in OPERATIONS:
            if names and kind.__name__ not in names and kind.name in before:
                text += "\n" + before[kind.name]
                continue
            rows, wrong, number = run(kind, place)
            print(f"{kind.name}: {number} cases, {len(wrong)} wrong")
            for line in wrong:
                print(f"    {line}")
            failed = failed or bool(wrong)
            text += "\n" + section(kind, rows)
    finally:
        place.rmdir()
    if failed:
        sys.exit("not written: not all of it is as it must be")
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    linux._WORTH_A_LOG = math.inf  # as in unit/conftest.py
    main(sys.argv[1:])
