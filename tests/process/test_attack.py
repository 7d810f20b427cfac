"""Safety under attack (docs/security.md): another user swaps all files it can, as fast as it can, beside contenders.

`make attack SECONDS=600` runs it for longer, and prints the actions of each process."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from process.attack import KINDS, Attack
from unit.elsewhere import needs_root
from unit.swaps import Outside

SECONDS = float(os.environ.get("HOLDFAST_ATTACK_SECONDS", "3"))
LONG = 30.0


@needs_root
@pytest.mark.needs("unnamed", "flock", "proc", "events")
@pytest.mark.unmeasured("its processes are killed, and one of them is another user")
def test_an_attacker_changes_no_file_outside_and_breaks_only_its_own_locks(disk: Path) -> None:
    """Two attackers; contenders of each kind, killed all the while; clean --yes, reap, doctor and ls in loops."""
    outside = Outside(disk / "outside")
    disk.chmod(0o755)
    attack = Attack(disk, outside.root, int(os.environ.get("HOLDFAST_TEST_SEED", "1") or 1))
    try:
        wrong = attack.run(SECONDS)
        figures = attack.figures()
        print(json.dumps({"killed": attack.killed, **figures}, indent=1))
        assert not wrong, "\n".join(wrong[:100])
        assert not outside.differences(bytewise=True)
        assert figures["attacker 0"][0]
        if SECONDS >= LONG:
            assert all(figures[f"{kind} in sticky"][0] for kind in KINDS)
    finally:
        for where in (*attack.everywhere, attack.den, attack.private):
            shutil.rmtree(where)
        outside.end()
