"""`python -m holdfast.testing.conformance --protocol sema -- CMD ARGS…`."""

from __future__ import annotations

import argparse
import math
import signal
import sys
from collections.abc import Sequence

from . import runner
from .adapter import Adapter, Unusable
from .dialects import DIALECTS
from .runner import FAILED, run, scenarios

DONE, SOME_FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the kit; 0 all passed, 1 some failed, 2 usage."""
    options = _parser().parse_args(arguments)
    chosen = scenarios(options.protocol, options.only)
    if not chosen:
        return _complain(f"no scenario of {options.protocol} is called {' or '.join(options.only)}; see --list")
    if options.list:
        _say(runner.listed(chosen))
        return DONE
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        return _complain("the command of an adapter is missing: … --protocol sema -- CMD ARGS…")
    adapter = Adapter(command, options.timeout)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: adapter.stop())  # no exception: it could come where something is half done
    tell = None if options.json else lambda result: _say(runner.line(result))
    try:
        results = run(adapter, options.protocol, chosen, jobs=options.jobs, tell=tell)
    except Unusable as error:
        return INTERRUPTED if adapter.stopped else _complain(f"the adapter cannot be run: {error}")
    if options.json:
        _say(runner.as_json(options.protocol, command, results))
    else:
        _say(runner.summary(options.protocol, results))
    return SOME_FAILED if any(result.outcome == FAILED for result in results) else DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m holdfast.testing.conformance",
        description="Check an implementation of a lock-file protocol, in whatever language (docs/conformance.md).",
        epilog="Exit status: 0 all passed, 1 some failed, 2 usage.",
        allow_abbrev=False,
    )
    parser.add_argument("--protocol", required=True, choices=sorted(DIALECTS))
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="only this scenario, or those like it: 'record:*'"
    )
    parser.add_argument("--list", action="store_true", help="say which scenarios there are, and run none")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument(
        "--timeout", type=_seconds, default=10.0, metavar="SECONDS", help="for whatever an adapter is asked (10)"
    )
    parser.add_argument("--jobs", type=_jobs, default=4, metavar="N", help="scenarios at a time (4)")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD ARGS…", help="the adapter")
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise ValueError
    return value


def _jobs(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 64:
        raise ValueError
    return value


def _say(text: str) -> None:
    sys.stdout.write(text.encode("utf-8", "backslashreplace").decode("utf-8") + "\n")
    sys.stdout.flush()


def _complain(text: str) -> int:
    sys.stderr.write(f"conformance: {text}\n")
    return USAGE


if __name__ == "__main__":
    sys.exit(main())
