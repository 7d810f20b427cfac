"""Stand-ins for the two sides of the beads lock.

The tool writes over any file there, so that its file is empty for a moment, and unlinks any file there. The daemon
removes the lock of a dead process some time after it has read it.

    python beads.py DIRECTORY
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

from talk import serve, step


class Beads:
    def __init__(self, directory: str) -> None:
        self.path = f"{directory}/.exclusive-lock"

    def create(self, holder: str) -> str:
        record = {
            "holder": holder,
            "pid": os.getpid(),
            "hostname": socket.gethostname(),
            "started_at": time.strftime("%Y-%m-%dT%H:%M:%S.123456789Z", time.gmtime()),
            "version": "1.0.0",
        }
        step("open")
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        step("write")
        os.write(fd, json.dumps(record, indent=2).encode())
        os.close(fd)
        return "created"

    def release(self) -> str:
        step("release")
        os.unlink(self.path)
        return "released"

    def cycle(self) -> str:
        """Act as the daemon at the start of a cycle: `proceed`, `skip HOLDER` or `removed HOLDER`."""
        try:
            with open(self.path) as file:
                text = file.read()
        except FileNotFoundError:
            return "proceed"
        try:
            record = json.loads(text)
            holder, pid, host = str(record["holder"]), int(record["pid"]), str(record["hostname"])
        except (ValueError, KeyError, TypeError):
            return "skip malformed"
        if host.lower() != socket.gethostname().lower():
            return f"skip {holder}"
        step("kill")
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            step("remove")
            os.unlink(self.path)
            return f"removed {holder}"
        except PermissionError:
            pass
        return f"skip {holder}"


if __name__ == "__main__":
    serve(Beads(*sys.argv[1:]))
