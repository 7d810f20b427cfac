"""gevent: greenlets that act as threads are told apart, and a waiting one lets the others run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("gevent", reason="gevent is not installed")

GREENLETS = """
import sys, holdfast, holdfast.events

path = sys.argv[1]
if "used" in sys.argv:
    holdfast.Lock(path).acquire().release()
from gevent import monkey; monkey.patch_all()
import gevent
from gevent.subprocess import PIPE, Popen

inside, order, ticks = [], [], [0]

def tick():
    while True:
        ticks[0] += 1
        gevent.sleep(0.002)

def work(number):
    with holdfast.Lock(path):
        assert not inside, "two are inside"
        inside.append(number)
        gevent.sleep(0.05)
        order.append(inside.pop())

gevent.spawn(tick)
gevent.joinall([gevent.spawn(work, number) for number in range(4)], raise_error=True)
assert order == [0, 1, 2, 3], order

shared, told = holdfast.Lock(path), []

def hear(event):
    told.append(event.kind)
    gevent.sleep(0.01)

def enter():
    with shared:
        gevent.sleep(0.01)

end = holdfast.events.listen(hear)
gevent.joinall([gevent.spawn(enter) for _ in range(3)], raise_error=True)
end()
assert (told.count("acquired"), told.count("released")) == (3, 3), told

with holdfast.Lock(path):
    try:
        holdfast.Lock(path).acquire()
    except holdfast.WouldDeadlock:
        print("told")

holder = "import holdfast, sys\\nhold = holdfast.Lock(sys.argv[1]).acquire(); print(flush=True); sys.stdin.read()"
other = Popen([sys.executable, "-c", holder, path], stdin=PIPE, stdout=PIPE)
other.stdout.readline()
waiting = gevent.spawn(lambda: holdfast.Lock(path).acquire(timeout=20).release())
before = ticks[0]
while ticks[0] < before + 50:  # for ever, if the wait stopped the hub
    gevent.sleep(0.002)
assert not waiting.ready()
other.stdin.close()
waiting.get(timeout=20)
other.wait()
print("done")
"""


@pytest.mark.parametrize("order", ["used", "imported"])
@pytest.mark.unmeasured("gevent replaces what measures")
def test_greenlets_are_told_apart_and_leave_each_other_at_work(tmp_path: Path, order: str) -> None:
    """Also where holdfast was imported, or used, before `monkey.patch_all()`; where they share one lock object, and
    where a listener lets others run."""
    done = subprocess.run(
        [sys.executable, "-c", GREENLETS, tmp_path / "l", order], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.split()) == (0, ["told", "done"]), done.stderr
    assert [*tmp_path.iterdir()] == []
