"""The scenarios of a protocol, run several at a time, and reports of the results.

A report has a line for each scenario, and more for a failure; or it is JSON, or the list of scenarios for people.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from . import contention, directories, foreign, holding, odd_paths, stale
from .adapter import STOPPED, Adapter, Unusable
from .bench import SCENARIOS, Bench, Failed, Reading, Scenario, Skipped, load, name_of, record_scenario
from .dialects import DIALECTS

SUBJECTS = (holding, foreign, stale, directories, odd_paths, contention)
"""Modules of scenarios, in the order in which they run; importing them has filled SCENARIOS."""
_GLANCE = 0.1
"""Seconds after which the main thread wakes: a signal may come just before it goes to sleep, and not wake it."""
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclass(frozen=True)
class Result:
    """The result of a scenario. `happened` says why if it was skipped."""

    scenario: Scenario
    outcome: str
    expected: str = ""
    happened: str = ""
    found: bytes | None = None
    seconds: float = 0.0


def scenarios(protocol: str, only: Sequence[str] = ()) -> list[Scenario]:
    """The scenarios of the protocol, records first; with `only`, those of these names, which may be patterns."""
    every = [*map(record_scenario, load(protocol)), *(each for each in SCENARIOS if protocol in each.protocols)]
    return [each for each in every if not only or any(fnmatchcase(each.name, pattern) for pattern in only)]


def run(
    adapter: Adapter,
    protocol: str,
    chosen: Iterable[Scenario],
    *,
    jobs: int = 4,
    tell: Callable[[Result], object] | None = None,
) -> list[Result]:
    """Run the chosen scenarios, `jobs` at a time; `tell` is given each result, in order. Unusable: nothing can run."""
    adapter.learn()
    chosen = list(chosen)
    names = {each.name for each in chosen}
    decoded = [vector for vector in load(protocol) if name_of(vector) in names]
    reading = Reading(adapter, decoded)
    results = []
    with ThreadPoolExecutor(max(1, jobs)) as pool:
        try:
            begin = sorted(chosen, key=lambda each: not each.waits)
            begun = {each.name: pool.submit(_run, adapter, protocol, each, reading) for each in begin}
            for future in [begun[each.name] for each in chosen]:
                while not wait([future], _GLANCE).done:
                    pass
                result = future.result()
                if adapter.stopped:
                    raise Unusable(STOPPED)
                results.append(result)
                if tell is not None:
                    tell(result)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            adapter.stop()  # leaving the pool waits for the scenarios that run: they clean up
            raise
        finally:
            pool.shutdown()
            adapter.close()
    return results


def _run(adapter: Adapter, protocol: str, scenario: Scenario, reading: Reading) -> Result:
    missing = scenario.needs - adapter.abilities
    if missing:
        return Result(scenario, SKIPPED, happened=f"not among the adapter's abilities: {', '.join(sorted(missing))}")
    began = time.monotonic()

    def result(outcome: str, expected: str = "", happened: str = "", found: bytes | None = None) -> Result:
        return Result(scenario, outcome, expected, happened, found, time.monotonic() - began)

    try:
        with Bench(adapter, DIALECTS[protocol], reading) as bench:
            scenario.run(bench)
    except Failed as failure:
        return result(FAILED, failure.expected, failure.happened, failure.found)
    except Skipped as reason:
        return result(SKIPPED, happened=str(reason))
    except Unusable as error:
        return result(FAILED, "a command that can be run", str(error))
    except OSError as error:
        # A file is gone that the scenario had just made: the adapter has done more than it should.
        return result(FAILED, "the files of the scenario to be left as they are", str(error))
    return result(PASSED)


_SHOWN = 1200
_WORDS = {PASSED: "ok  ", FAILED: "FAIL", SKIPPED: "skip"}


def line(result: Result) -> str:
    """A result as text, to be shown while other scenarios run."""
    text = f"{_WORDS[result.outcome]} {result.scenario.name}"
    if result.outcome == SKIPPED:
        return f"{text}: {result.happened}"
    if result.outcome == PASSED:
        return text
    happened = result.happened.strip().replace("\n", "\n               ")
    rows = [text, f"     why       {result.scenario.why}", f"     expected  {result.expected}"]
    rows += [f"     happened  {happened}"]
    if result.found is not None:
        rows.append(f"     found     {shown(result.found)}")
    return "\n".join(rows)


def summary(protocol: str, results: Sequence[Result]) -> str:
    """The last line: how many passed, failed and were skipped."""
    counts = [f"{sum(each.outcome == kind for each in results)} {kind}" for kind in (PASSED, FAILED, SKIPPED)]
    return f"{protocol}: {', '.join(counts)}"


def as_json(protocol: str, command: Sequence[str], results: Sequence[Result]) -> str:
    """The results as one JSON object; `found` are bytes as hex, null if there is no lock file or it does not matter."""
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
    """Names and reasons, each on a line."""
    return "\n".join(f"{each.name}\n    {each.why}" for each in chosen)


def shown(data: bytes) -> str:
    """Bytes for people: as text with escapes, cut where they are many."""
    cut = data[:_SHOWN]
    more = f" … ({len(data)} bytes)" if len(data) > len(cut) else ""
    return f"{cut!r}{more}"
