"""A holder on "another machine" whose network is cut. To be run by `unshare -n`: the server is in this namespace.

Prints the seconds from the cut to: the holder knows that its lock is lost; another one has the lock.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

from engines.postgresql.server import Postgres
from holdfast import Lock
from holdfast.engines.postgresql import init
from process.support import Peer

HOLDER = """
say("here")
hear()
lost = []
lock = Lock(path, stale_after=float(sys.argv[2]), on_lost=lambda error: lost.append(time.monotonic()))
hold = lock.acquire(timeout=10)
say("held")
while not lost:
    time.sleep(0.001)
say("lost", lost[0])
hear()
"""


def run(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True)


def main(stale_after: float) -> None:
    run("ip", "link", "set", "lo", "up")
    server = Postgres(settings=("listen_addresses=*",))
    peer: Any = None
    try:
        with (server.directory.path / "data" / "pg_hba.conf").open("a") as rules:
            rules.write("host all all 10.9.0.0/24 trust\n")
        server.ask("select pg_reload_conf()")
        init(server.url())
        peer = Peer(HOLDER, [server.url("a").replace("127.0.0.1", "10.9.0.1"), stale_after], prefix=["unshare", "-n"])
        peer.expect("here")
        inside = ("nsenter", "-t", peer.pid, "-n", "ip")
        run("ip", "link", "add", "hf0", "type", "veth", "peer", "name", "hf1", "netns", peer.pid)
        run("ip", "addr", "add", "10.9.0.1/24", "dev", "hf0")
        run("ip", "link", "set", "hf0", "up")
        run(*inside, "addr", "add", "10.9.0.2/24", "dev", "hf1")
        run(*inside, "link", "set", "hf1", "up")
        peer.say("go")
        peer.expect("held")
        assert Lock(server.url("a")).try_acquire() is None
        run("ip", "link", "set", "hf0", "down")
        cut = time.monotonic()
        with Lock(server.url("a")).acquire(timeout=60):
            next_in = time.monotonic() - cut
        print(float(peer.hear().split()[1]) - cut, next_in)
    finally:
        if peer is not None:
            peer.destroy()
        server.remove()


main(float(sys.argv[1]))
