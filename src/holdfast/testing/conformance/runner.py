"""Which scenarios there are for a protocol, and running them: several at a time, each with a result of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from fnmatch import fnmatchcase

from . import contention, foreign, holding, odd_paths, stale, vectors
from .adapter import STOPPED, Adapter
from .bench import Bench
from .dialects import DIALECTS
from .process import Unusable
from .scenario import SCENARIOS, Failed, Scenario, Skipped

SUBJECTS = (holding, foreign, stale, odd_paths, contention)
"""In the order in which they are run; importing them has filled SCENARIOS."""
_GLANCE = 0.1
"""Seconds after which the main thread looks up: a signal may come just before it goes to sleep, and not wake it."""
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclass(frozen=True)
class Result:
    """What came of a scenario. `happened` says why where it was skipped."""

    scenario: Scenario
    outcome: str
    expected: str = ""
    happened: str = ""
    found: bytes | None = None
    seconds: float = 0.0


def scenarios(protocol: str, only: Sequence[str] = ()) -> list[Scenario]:
    """Those of the protocol, records first; with `only`, those of these names, which may be patterns."""
    every = [*vectors.scenarios(protocol), *(each for each in SCENARIOS if protocol in each.protocols)]
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
    decoded = [vector for vector in vectors.load(protocol) if vectors.name_of(vector) in names]
    reading = vectors.Reading(adapter, decoded)
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


def _run(adapter: Adapter, protocol: str, scenario: Scenario, reading: vectors.Reading) -> Result:
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
        # Something of the scene is gone that the scenario had just made: the adapter has done more than it should.
        return result(FAILED, "the files of the scenario to be left as they are", str(error))
    return result(PASSED)
