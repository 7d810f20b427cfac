"""holdfast as an adapter for the conformance kit: `holdfast_adapter.py PROTOCOL OPERATION [PATH]`."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from holdfast import Lock, LockStale, beads, semats
from holdfast.errors import HoldfastError, MalformedRecord, NotHeld
from holdfast.protocols import get

ABILITIES = {
    "sema": "decode decode-lines hold try reclaim release serve",
    "semats": "decode decode-lines hold try reclaim release serve",
    "sidecar": "decode decode-lines hold try recover serve",
    "proper-lockfile": "hold try serve",
    "beads": "decode decode-lines hold try reclaim release skip serve",
}


def main() -> int:
    protocol, operation, *path = sys.argv[1:]
    if operation == "abilities":
        print(ABILITIES[protocol])
        return 0
    if operation == "decode":
        fields = decoded(protocol, sys.stdin.buffer.read())
        if fields is not None:
            print(fields)
        return 0 if fields is not None else 1
    if operation == "decode-lines":
        for line in sys.stdin:
            print(decoded(protocol, bytes.fromhex(line)) or "malformed")
        return 0
    if operation == "serve":
        for line in iter(sys.stdin.readline, ""):
            operation, _, asked = line.removesuffix("\n").partition(" ")
            if operation:
                print("exit", answer(protocol, operation, asked, sys.stdin.readline), flush=True)
        return 0
    return answer(protocol, operation, path[0], sys.stdin.read)


def answer(protocol: str, operation: str, path: str, until_told: Callable[[], object]) -> int:
    """Carry out one operation; the exit status. `until_told` returns when the lock is to be released."""
    try:
        return on_a_path(protocol, operation, path, until_told)
    except LockStale:
        print("stale")
        return 1
    except (HoldfastError, OSError) as error:
        print(error, file=sys.stderr)
        return 2


def on_a_path(protocol: str, operation: str, path: str, until_told: Callable[[], object]) -> int:
    if operation == "release":
        return release(protocol, path)
    if operation == "skip":
        skip, _, _ = beads.should_skip_database(path)
        print("skip" if skip else "proceed")
        return 1 if skip else 0
    options: dict[str, Any] = {"protocol": protocol, "stale": "protocol"}
    if protocol == "sidecar":
        options["payload"] = payload
    if protocol == "beads":
        options.update(holder="kit", version="1.0")
    if operation == "recover":
        options["stale"] = lambda status: status.record_age is None or status.record_age > 30
    lock = Lock(path, **options)
    hold = lock.acquire() if operation == "hold" else lock.try_acquire()
    if hold is None:
        print("refused")
        return 1
    with hold:
        print("held", flush=True)
        until_told()
    return 0


def release(protocol: str, path: str) -> int:
    """Release as the existing systems do from a process that did not acquire."""
    if protocol == "beads":
        beads.release(path, force=True)
        return 0
    if protocol == "semats":
        try:
            semats.Semaphore(path).release()
        except NotHeld:
            return 1
        return 0
    Lock(path, protocol=protocol).break_lock()
    return 0


def payload() -> dict[str, Any]:
    now = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"pid": os.getpid(), "createdAt": now}


def decoded(protocol: str, data: bytes) -> str | None:
    try:
        return json.dumps(dict(get(protocol).decode(data).fields))
    except MalformedRecord:
        return None


if __name__ == "__main__":
    sys.exit(main())
