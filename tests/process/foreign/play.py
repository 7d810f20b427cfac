"""Other implementations and their stand-ins as processes, and helpers for tests with them."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from process.support import Peer

HERE = Path(__file__).parent
HEAD_START = 0.001
"""Most seconds by which one is told before another to go for a stale lock, so that each comes first at times."""


class Player(Peer):
    """A process of any kind that is spoken to in lines (talk.py)."""

    def __init__(self, command: Sequence[object], **environment: str) -> None:
        self._start(map(str, command), environment)

    def ask(self, *words: object) -> str:
        """Say these words; the answer."""
        self.say(*words)
        return self.hear()

    def stop_at(self, step: str, *words: object) -> None:
        """Tell it to do something, and leave it stopped before a step of that."""
        self.say("stop", step)
        self.say(*words)
        self.expect(f"at {step}")
        self.say("stop")

    def go(self) -> None:
        self.say("go")


def script(name: str, *arguments: object) -> list[object]:
    return [sys.executable, HERE / f"{name}.py", *arguments]


@contextmanager
def playing() -> Iterator[Callable[..., Player]]:
    """Start a script from here, by its name, or another command, given as a list; all end with the block."""
    players: list[Player] = []

    def start(what: str | list[object], *arguments: object, **environment: str) -> Player:
        command = script(what, *arguments) if isinstance(what, str) else [*what, *arguments]
        players.append(Player(command, **environment))
        return players[-1]

    try:
        yield start
    finally:
        for player in players:
            player.destroy()


def storm(state: Path, players: dict[str, tuple[Player, float]], seconds: float) -> dict[str, int]:
    """Have all of them go in and out for some seconds, each with its pause; the number of times that each was inside.

    Fails if the counter, which nothing but the lock protects, is not exact, or anybody has met another inside.
    """
    state.mkdir()
    (state / "counter").write_text("0")
    (state / "go").touch()
    for player, pause in players.values():
        player.say("storm", state, pause)
    time.sleep(seconds)
    (state / "go").unlink()
    done = {name: int(player.hear()) for name, (player, _) in players.items()}
    overlaps = (state / "overlaps").read_text() if (state / "overlaps").exists() else ""
    print(done, overlaps.count("\n"), "overlaps")
    assert overlaps == ""
    assert int((state / "counter").read_text()) == sum(done.values())
    assert min(done.values()) > 0, done
    return done


def stale_rounds(
    path: str,
    rounds: int,
    plant: Callable[[], object],
    theirs: Player,
    ours: Sequence[Player],
    *,
    they: str = "take",
    we: str = "take",
) -> dict[str, int]:
    """Have all of them go for a stale lock at once, again and again; the results.

    `together` counts the rounds that must not be: one of ours is inside, is not told that it has lost the lock, and is
    not alone.
    """
    seen = {"theirs": 0, "ours": 0, "nobody": 0, "robbed": 0, "together": 0}
    for _ in range(rounds):
        plant()
        for player in random.sample((theirs, *ours), len(ours) + 1):
            player.say(they if player is theirs else we)
            time.sleep(random.random() * HEAD_START)
        inside = [player for player in (theirs, *ours) if player.hear() == "acquired"]
        kept = [player for player in inside if player is theirs or player.ask("lost") == "kept"]
        seen["robbed"] += len(inside) - len(kept)
        seen["together"] += len(kept) > 1
        seen["theirs"] += theirs in kept
        seen["ours"] += any(player in kept for player in ours)
        seen["nobody"] += not kept
        for player in inside:
            player.ask("release")
        if os.path.exists(path):
            os.unlink(path)
    print(seen)
    return seen
