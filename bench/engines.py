"""Benchmarks of the engines: `make bench-engines`, or `python bench/engines.py [suite ...]`. See README.md."""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from context import Context
from engines_crowds import order, waiters
from engines_load import many_held, throughput
from engines_peers import PEERS, HoldfastPostgresql, Peer, load
from engines_scaling import fill
from engines_servers import SERVERS, Etcd, Server, fsync_ms
from engines_times import Bench, crash, handoff, uncontended
from machine import filesystem_of, machine_line, versions_of
from procs import Failed, NotAvailable, spawn
from session import directories
from tables import Goal, Outcome, goals_table

SUITES: dict[str, Callable[[Bench], Outcome]] = {
    "uncontended": uncontended,
    "handoff": handoff,
    "crash": crash,
    "order": order,
    "waiters": waiters,
    "throughput": throughput,
    "many": many_held,
}


def main() -> int:
    """Run; 0: measured, whether or not the goals were met; 1: a measurement failed; 2: it could not start."""
    options = _parse()
    if options.fill:
        return _fill(options)
    try:
        with directories(options.disk) as (directory,):
            seed = random.Random(20_240_601)
            return _run(Context(directory, directory, options.quick, options.peers_only, seed), options)
    except (Failed, OSError) as error:
        print(error, file=sys.stderr)
        return 2


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/engines.py",
        description="Measure holdfast on PostgreSQL and etcd beside their own clients and tooz.",
    )
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"any of {', '.join(SUITES)}; all when omitted")
    parser.add_argument("--engine", choices=sorted(SERVERS), help="this one only")
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="of etcd, all on this machine; default 1")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: under 1 min instead of under 6 min")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write every number to FILE as well")
    parser.add_argument(
        "--disk", metavar="DIR", type=Path, default=Path(tempfile.gettempdir()), help="where the servers' data are"
    )
    parser.add_argument("--peers-only", action="store_true", help="leave holdfast out")
    parser.add_argument(
        "--fill", metavar="PAGE", type=Path, help="measure nothing: put what --json FILE has into docs/scaling.md"
    )
    options = parser.parse_args()
    unknown = [name for name in options.suites if name not in SUITES]
    if unknown:
        parser.error(f"no such suite: {', '.join(unknown)} (there are {', '.join(SUITES)})")
    Etcd.nodes = options.nodes
    if options.fill and not options.json:
        parser.error("--fill needs --json FILE, of an earlier run")
    return options


def _fill(options: argparse.Namespace) -> int:
    try:
        fill(options.fill, json.loads(options.json.read_text(encoding="utf-8")))
    except (Failed, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


@contextmanager
def _server(kind: type[Server], directory: Path) -> Iterator[Server]:
    server = kind(directory)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def _run(context: Context, options: argparse.Namespace) -> int:
    facts = _facts(context)
    for name, value in facts.items():
        print(f"{name}: {value}")
    goals: list[Goal] = []
    data: dict[str, Any] = {}
    failures: list[str] = []
    took: dict[str, float] = {}

    def keep() -> None:
        if options.json:
            report: dict[str, Any] = {"facts": facts, "engines": data, "seconds": took, "failures": failures}
            report["goals"] = [goal.data() for goal in goals]
            options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")

    begin = time.monotonic()
    for engine in [options.engine] if options.engine else SERVERS:
        with ExitStack() as stack:
            try:
                server = stack.enter_context(_server(SERVERS[engine], context.disk))
                if not context.peers_only:
                    _prepare(server)
            except NotAvailable as error:
                print(f"\n{engine}: {error}")
                continue
            except Failed as error:
                failures.append(f"{engine}: {error}")
                continue
            facts[engine] = server.version()
            print(f"\n{engine}: {facts[engine]}", flush=True)
            data[engine] = {}
            for name in options.suites or SUITES:
                since = time.monotonic()
                outcome = SUITES[name](Bench(context, server))
                took[f"{engine}, {name}"] = time.monotonic() - since
                for table in outcome.tables:
                    print(f"\n{table}", flush=True)
                goals += outcome.goals
                data[engine][name] = outcome.data
                failures += [f"{engine}, {name}: {failure}" for failure in outcome.failures]
                data[engine]["history_kib"] = server.history_kib()
                keep()  # the results so far, should the rest fail
    facts["at the end"] = (
        f"load {os.getloadavg()[0]:.2f}, of which this run has a share; disk {fsync_ms(context.disk):.2f} ms"
    )
    print(f"\n{goals_table(goals)}\n\nat the end: {facts['at the end']}\n{time.monotonic() - begin:.0f} s")
    keep()
    for failure in failures:
        print(f"failed: {failure}", file=sys.stderr)
    return (1 if failures else 0) if data else 2


def _prepare(server: Server) -> None:
    """Prepare the server for holdfast, in a child, because this process stays free of the libraries."""
    child = spawn(_import_and_init, server)
    try:
        child.answer(30)
    except Failed as error:
        raise Failed(f"holdfast cannot be used on {server.engine}: {error}") from None
    finally:
        child.end()


def _import_and_init(pipe: Connection, server: Server) -> None:
    load(next(one for one in PEERS if issubclass(one, HoldfastPostgresql) and one.engine == server.engine))
    if server.engine == "postgresql":
        from holdfast.engines.postgresql import init

        init(server.url("init"))
    pipe.send(None)


def _facts(context: Context) -> dict[str, str]:
    packages: list[type[Peer]] = context.subjects(list(PEERS))
    return {
        "machine": machine_line(),
        "where": "clients and servers on this machine, loopback",
        "disk": f"{filesystem_of(context.disk)}, {fsync_ms(context.disk):.2f} ms for a write of 8 KiB to reach it",
        "Python": platform.python_version(),
        "versions": versions_of(one.package for one in packages if one.package is not None),
        "run": "quick" if context.quick else "full",
    }


if __name__ == "__main__":
    sys.exit(main())
