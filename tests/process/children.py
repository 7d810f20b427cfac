"""Forked children, for programs of this directory that are run as they are."""

from __future__ import annotations

import os
from collections.abc import Callable


def fork(what: Callable[[], object]) -> int:
    """Fork a child that does that; its exit status is 1 if it fails."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            what()
            status = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(status)
    return pid
