"""holdfast as the conformance kit asks for it: `holdfast_adapter.py PROTOCOL OPERATION [PATH]`."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import UTC, datetime
from typing import Any

from holdfast import Lock, LockStale
from holdfast.errors import HoldfastError, MalformedRecord
from holdfast.protocols import get

ABILITIES = {
    "sema": "decode decode-lines hold try release",
    "semats": "decode decode-lines hold try",
    "sidecar": "decode decode-lines hold try recover",
    "beads": "decode decode-lines hold try release",
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
    try:
        return on_a_path(protocol, operation, path[0])
    except LockStale:
        print("stale")
        return 1
    except (HoldfastError, OSError) as error:
        print(error, file=sys.stderr)
        return 2


def on_a_path(protocol: str, operation: str, path: str) -> int:
    options: dict[str, Any] = {"protocol": protocol, "stale": "protocol"}
    if protocol == "sidecar":
        options["payload"] = payload
    if protocol == "beads":
        options.update(holder="kit", version="1.0")
    if operation == "recover":
        options["stale"] = lambda status: status.age is None or status.age > 30
    lock = Lock(path, **options)
    if operation == "release":
        lock.break_lock()
        return 0
    hold = lock.acquire() if operation == "hold" else lock.try_acquire()
    if hold is None:
        print("refused")
        return 1
    with hold:
        print("held", flush=True)
        sys.stdin.read()
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
