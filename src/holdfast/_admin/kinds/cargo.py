"""Cargo: files that stay in its home and in a target directory, with a kernel lock (`flock`) while a command works."""

from __future__ import annotations

from .base import FREE, Kind, Sighting, View


class Cargo(Kind):
    name = "cargo"

    def look(self, view: View) -> Sighting | None:
        if not view.is_file:
            return None
        verdict = view.of_kernel()
        if verdict.condition == FREE:
            return view.sighting(self.name, verdict, "nobody has locked it; the file stays", "", aged=False)
        what = "the build directory" if view.name.startswith(".cargo") else "the package cache"
        reason = f"other commands block, waiting for file lock on {what}"
        advice = f"Wait until {view.who(verdict)} has ended"
        if what == "the build directory":
            advice += ", or build into another directory (CARGO_TARGET_DIR)"
        return view.sighting(self.name, verdict, reason, f"{advice}; an IDE may have started it", aged=False)
