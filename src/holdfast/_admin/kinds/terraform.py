"""Terraform and OpenTofu with state in a local file: `.terraform.tfstate.lock.info`, which says who works with it.

The lock itself is the kernel's (`fcntl`), on the state file beside it. A file that a killed command has left keeps
nobody out.
"""

from __future__ import annotations

import json

from ..._core.messages import printable, quoted
from ...liveness import Liveness
from ...model import Holder
from ..found import FREE, LEFTOVER, Found
from .base import View

_TEXTS = ("ID", "Operation", "Who", "Created")


def look(view: View) -> Found | None:
    found = _info(view.data())
    if found is None:
        return None
    state = f"{view.where}/{view.name[1 : -len('.lock.info')]}"
    about = view.stat(state)
    verdict = view.beside(state, about).of_kernel() if about is not None else view.of_nobody("its state file is gone")
    tag = f"{found['Operation']} by {found['Who']}, id {found['ID']}"
    if verdict.condition == FREE:
        verdict = view.of_nobody(f"nobody has the kernel lock on {printable(state)}")
    if verdict.liveness is not Liveness.ALIVE:
        verdict = verdict.replaced(holders=(Holder(None, None, None, tag),))
    else:
        verdict = verdict.replaced(holders=tuple(one.replaced(tag=tag) for one in verdict.holders))
    if verdict.condition == LEFTOVER:
        reason = "it keeps nobody out: the next command locks the state, and rewrites it"
        return view.described(verdict, reason, f"rm {quoted(view.path)}, or leave it")
    advice = (
        "Wait until that command has ended (-lock-timeout=5m); terraform force-unlock does not unlock a local state"
    )
    return view.described(verdict, "other commands refuse: Error acquiring the state lock", advice)


def _info(data: bytes) -> dict[str, str] | None:
    """The texts of such a file, by name; None if it is none."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not all(isinstance(found.get(name), str) for name in _TEXTS):
        return None
    return {name: found[name][:200] for name in _TEXTS}
