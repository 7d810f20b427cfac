"""What the kit says: a line for each scenario, more for a failure; or all of it as JSON; or the list for people."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from . import vectors
from .dialects import DIALECTS
from .runner import FAILED, PASSED, SKIPPED, SUBJECTS, Result
from .scenario import SCENARIOS, Scenario

_SHOWN = 1200
_WORDS = {PASSED: "ok  ", FAILED: "FAIL", SKIPPED: "skip"}


def line(result: Result) -> str:
    """A result as it is shown while others run."""
    text = f"{_WORDS[result.outcome]} {result.scenario.name}"
    if result.outcome == SKIPPED:
        return f"{text}: {result.happened}"
    if result.outcome == PASSED:
        return text
    rows = [text, f"     why       {result.scenario.why}", f"     expected  {result.expected}"]
    rows += [f"     happened  {_one_line(result.happened)}"]
    if result.found is not None:
        rows.append(f"     found     {shown(result.found)}")
    return "\n".join(rows)


def summary(protocol: str, results: Sequence[Result]) -> str:
    """The last line."""
    counts = [f"{sum(each.outcome == kind for each in results)} {kind}" for kind in (PASSED, FAILED, SKIPPED)]
    return f"{protocol}: {', '.join(counts)}"


def as_json(protocol: str, command: Sequence[str], results: Sequence[Result]) -> str:
    """One object; `found` are bytes as hex, null where there is no lock file or it does not matter."""
    said: dict[str, Any] = {"protocol": protocol, "command": list(command)}
    for kind in (PASSED, FAILED, SKIPPED):
        said[kind] = sum(each.outcome == kind for each in results)
    said["results"] = [
        {
            "name": each.scenario.name,
            "outcome": each.outcome,
            "why": each.scenario.why,
            "basis": each.scenario.basis,
            "expected": each.expected,
            "happened": each.happened,
            "found": None if each.found is None else each.found.hex(),
            "seconds": round(each.seconds, 3),
        }
        for each in results
    ]
    return json.dumps(said, indent=2)


def listed(chosen: Iterable[Scenario]) -> str:
    """Names and reasons, a line each."""
    return "\n".join(f"{each.name}\n    {each.why}" for each in chosen)


def as_markdown() -> str:
    """The list of scenarios in docs/conformance.md."""
    rows = []
    for subject in SUBJECTS:
        title = re.sub(r"^Scenarios (of|with) |[:,.].*", "", (subject.__doc__ or "").splitlines()[0])
        rows += [f"### {title[:1].upper()}{title[1:]}", "", "| scenario | protocols | why |", "|---|---|---|"]
        for each in SCENARIOS:
            if each.run.__module__ == subject.__name__:
                named = [name for name in DIALECTS if name in each.protocols]
                protocols = "all" if len(named) == len(DIALECTS) else ", ".join(named)
                care = "" if each.basis == "letter" else " *(care)*"
                rows.append(f"| `{each.name}`{care} | {protocols} | {each.why} |")
        rows.append("")
    counts = ", ".join(f"{len(vectors.load(name))} of {name}" for name in DIALECTS)
    return "\n".join([*rows, f"And `record:…`, one for each vector: {counts}."])


def shown(data: bytes) -> str:
    """Bytes for people: as text with escapes, cut where they are many."""
    cut = data[:_SHOWN]
    more = f" … ({len(data)} bytes)" if len(data) > len(cut) else ""
    return f"{cut!r}{more}"


def _one_line(text: str) -> str:
    return text.strip().replace("\n", "\n               ")
