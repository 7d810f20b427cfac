"""The results of a run, and their meaning for a fleet, as the two tables of docs/scaling.md.

The page has them between marks, and says in words which numbers are multiplied; so a run on another machine
(`--json FILE`, then `--fill docs/scaling.md --json FILE`) replaces every number of the page at once.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from marks import between
from procs import Failed
from tables import show

TTL = 10
"""Seconds of a lease that holdfast asks etcd for by default, and keeps alive three times in that time."""
MACHINES = 10_000
SHARE = 0.5
"""Share of a server's processors that the plan uses."""
CONNECTIONS = 1000
"""Connections of one PostgreSQL server that the plan uses."""
ENGINES = ("postgresql", "etcd")
_THREADS, _TASKS = "holdfast, threads", "holdfast AsyncLock, tasks"

Numbers = dict[str, float | None]


def fill(page: Path, report: dict[str, Any]) -> None:
    """Put the tables into the page. `Failed` if it has no marks for them, or the run lacks an engine."""
    missing = [engine for engine in ENGINES if engine not in report["engines"]]
    if missing:
        raise Failed(f"this run has nothing of {', '.join(missing)}")
    inputs = {engine: numbers_of(report["engines"][engine]) for engine in ENGINES}
    text = page.read_text(encoding="utf-8")
    for mark, table in (("measured", measured(inputs, report)), ("computed", computed(inputs))):
        text = between(text, mark, table, str(page))
    page.write_text(text, encoding="utf-8")


def numbers_of(suites: dict[str, Any]) -> Numbers:
    """The inputs of the plan, by the words of the page; None for inputs that the run has not measured."""
    cycle, turn = (suites.get(name, {}).get("holdfast", {}) for name in ("uncontended", "handoff"))
    rates = suites.get("throughput", {}).get("holdfast", {})
    waiters, many = suites.get("waiters", {}), suites.get("many", {})
    holds = many.get("each", {}).get("holdfast", [])
    found: Numbers = {
        "cycle": _ms(cycle, "median_ns"),
        "cycle p99": _ms(cycle, "p99_ns"),
        "hand-off": _ms(turn, "median_ns"),
        "crash": _ms(suites.get("crash", {}).get("holdfast", {}), "median_ns"),
        "round trips": _of(suites.get("uncontended", {}).get("round_trips", {}), "holdfast"),
        **{f"rate {count}": _of(rates.get(str(count), {}), "rate") for count in (1, 4, 16)},
        "lock server ms": _of(rates.get("16", {}), "server_cpu_ms"),
        "lock client ms": _of(rates.get("16", {}), "client_cpu_ms"),
        "lock KiB": _of(rates.get("16", {}), "written_kib"),
        "history KiB": suites.get("history_kib"),
        "hold server KiB": _median(holds, "server_kib"),
        "hold client KiB": _median(holds, "client_kib"),
        "hold connections": _median(holds, "connections"),
        "drain": _middle(waiters.get("drained_s", {}).get(_THREADS, [])),
    }
    if many.get("locks"):
        for side in ("server", "client"):
            total = _median(holds, f"{side}_cpu_ms")
            found[f"hold {side} ms"] = None if total is None else total / many["locks"]
    for who, label in (("waiter", _THREADS), ("task", _TASKS)):
        each = waiters.get("each", {}).get(label, [])
        names = ("server_cpu_ms", "client_cpu_ms", "messages", "connections", "client_kib", "server_kib")
        for name in names:
            found[f"{who} {name}"] = _median(each, name)
    return found


def measured(inputs: dict[str, Numbers], report: dict[str, Any]) -> str:
    """The first table, with the machine below it."""
    rows: list[tuple[str, Callable[[Numbers], str]]] = [
        (
            "acquire and release, uncontended: median / p99, ms",
            lambda n: f"{show(n['cycle'])} / {show(n['cycle p99'])}",
        ),
        ("`r`: round trips of that", _one("round trips")),
        ("hand-off between two processes, median, ms", _one("hand-off")),
        ("SIGKILL of the holder to the next one's acquire, median, ms", _one("crash")),
        ("locks a second, 1 / 4 / 16 clients", lambda n: " / ".join(show(n[f"rate {count}"]) for count in (1, 4, 16))),
        ("`c`: server's processor time for one lock, ms", _one("lock server ms")),
        ("client's processor time for one lock, ms", _one("lock client ms")),
        ("`b`: log that the server writes for one lock, KiB", _one("lock KiB")),
        ("`g`: what one lock leaves in the database until it is compacted, KiB", _one("history KiB")),
        ("idle waiter: connections", _one("waiter connections")),
        ("idle waiter: round trips in 10 s", _one("waiter messages")),
        ("idle waiter, memory of the client, KiB: thread / task", _two("waiter client_kib", "task client_kib")),
        ("`w`: idle waiter, memory of the server, KiB", _one("waiter server_kib")),
        ("`k`: idle waiter, server's processor time in 10 s, ms", _one("waiter server_cpu_ms")),
        ("idle waiter, client's processor time in 10 s, ms", _one("waiter client_cpu_ms")),
        ("hold: connections", _one("hold connections")),
        ("hold, memory of the client, KiB", _one("hold client KiB")),
        ("`h`: hold, memory of the server, KiB", _one("hold server KiB")),
        ("`j`: hold, server's processor time in 10 s, ms", _one("hold server ms")),
        ("`i`: hold, client's processor time in 10 s, ms", _one("hold client ms")),
        ("waiters for one lock, all through, s", _one("drain")),
    ]
    waiters = report["engines"]["etcd"].get("waiters", {}).get("waiters", "-")
    facts = report["facts"]
    lines = ["| | PostgreSQL | etcd |", "|---|---|---|"]
    for title, cell in rows:
        title = f"{waiters} {title}" if title.startswith("waiters") else title
        lines.append(f"| {title} | {' | '.join(cell(inputs[engine]) for engine in ENGINES)} |")
    names = ("machine", "where", "disk", "at the end", "postgresql", "etcd", "Python", "run")
    said = "; ".join(
        f"{facts[name]}" if name != "Python" else f"Python {facts[name]}" for name in names if name in facts
    )
    return "\n".join([*lines, "", f"*Measured on*: {said}."])


def computed(inputs: dict[str, Numbers]) -> str:
    """The second table: fleets."""
    lines = [
        f"| fleet of {MACHINES} machines | holds | waiters | locks a second | | PostgreSQL | etcd |",
        "|---|---|---|---|---|---|---|",
    ]
    for title, holds, waiters, rate in _FLEETS:
        rows = [
            ("connections", [_whole(_connections(inputs[engine], holds, waiters)) for engine in ENGINES]),
            ("server memory, GiB", [show(_gib(inputs[engine], holds, waiters)) for engine in ENGINES]),
            ("keep-alives a second", ["0", _whole((holds + waiters) * 3 / TTL)]),
            ("server processors busy", [show(_busy(inputs[engine], holds, waiters, rate)) for engine in ENGINES]),
            ("log, GiB a day", [show(_daily(inputs[engine], rate)) for engine in ENGINES]),
            (
                "servers (clusters)",
                [
                    _shards(_busy(inputs["postgresql"], holds, waiters, rate), (holds + waiters) / CONNECTIONS),
                    _shards(_busy(inputs["etcd"], holds, waiters, rate), 0.0),
                ],
            ),
        ]
        head = [title, str(holds), str(waiters), show(rate)]
        for number, (what, cells) in enumerate(rows):
            lines.append(f"| {' | '.join(head if number == 0 else ['', '', '', ''])} | {what} | {' | '.join(cells)} |")
    return "\n".join(lines)


_FLEETS = (
    ("**cron**: each takes a lock of its own once a minute, for 1 s", MACHINES // 60, 0, MACHINES / 60),
    ("**leaders**: 1 000 services of 10 machines; one leads, nine wait", 1_000, 9_000, 1.0),
    ("**owners**: each keeps one lock of its own", MACHINES, 0, 1.0),
    ("**crowd**: all wait for one lock", 1, MACHINES - 1, 1.0),
)
"""Name, holds and waiters at any moment, locks taken a second (1 if that is rare: restarts)."""


def _busy(numbers: Numbers, holds: float, waiters: float, rate: float) -> float | None:
    parts = [(rate / 1000, "lock server ms"), (holds / 1e4, "hold server ms"), (waiters / 1e4, "waiter server_cpu_ms")]
    values = [(factor, numbers.get(name)) for factor, name in parts]
    return None if any(value is None for _, value in values) else sum(factor * (value or 0) for factor, value in values)


def _gib(numbers: Numbers, holds: float, waiters: float) -> float | None:
    hold, waiter = numbers["hold server KiB"], numbers["waiter server_kib"]
    return None if hold is None or waiter is None else max(0.0, holds * hold + waiters * waiter) / 2**20


def _daily(numbers: Numbers, rate: float) -> float | None:
    each = numbers["lock KiB"]
    return None if each is None else rate * 86400 * each / 2**20


def _shards(busy: float | None, others: float, processors: int = 2) -> str:
    if busy is None:
        return "-"
    return str(max(1, -int(-busy // (SHARE * processors)), -int(-others // 1)))


def _connections(numbers: Numbers, holds: float, waiters: float) -> float | None:
    hold, waiter = numbers["hold connections"], numbers["waiter connections"]
    return None if hold is None or waiter is None else holds * hold + waiters * waiter


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _one(name: str) -> Callable[[Numbers], str]:
    return lambda numbers: show(numbers.get(name))


def _two(first: str, second: str) -> Callable[[Numbers], str]:
    return lambda numbers: f"{show(numbers.get(first))} / {show(numbers.get(second))}"


def _ms(series: dict[str, Any], name: str) -> float | None:
    value = series.get(name)
    return None if value is None else value / 1e6


def _of(found: dict[str, Any], name: str) -> float | None:
    return found.get(name)


def _median(rounds: list[dict[str, float]], name: str) -> float | None:
    return _middle([one[name] for one in rounds])


def _middle(values: list[float]) -> float | None:
    return statistics.median(values) if values else None
