"""A server that does not answer: calls end in time, and leave nothing when it answers again (_drivers/apart.py)."""

from __future__ import annotations

from machines.test_leases import Start, start

__all__ = ["start"]


def test_calls_end_in_time_though_the_server_does_not_answer(start: Start) -> None:
    lab = start("silent")
    lab.wait("ready", 120)
    lab.tell("cut-1")
    lab.gone("cut-1")
    lab.tell("is-cut")
    lab.wait("asked", 120)
    lab.tell("mend-1")
    lab.gone("mend-1")
    lab.tell("is-mended")
    _, output = lab.results([0, 1])
    print(output)
    rows = dict(line.split("|", 1) for line in output.splitlines() if "|" in line)
    for name in ("acquire", "wait", "acquire async", "try_acquire", "status"):
        took, outcome = rows[name].split("|", 1)
        assert float(took) < 6, rows
        if outcome != "answered":  # by the kernel, which remembers for some seconds that no lock file is there
            assert "the server of /media/share (nfs4, 10.9.0.1:/) has not answered" in outcome
        assert outcome != "answered" or name in ("wait", "status")
    took, status = rows["exit of a process"].split("|")
    assert float(took) < 6, rows
    assert status == "status 5"
    assert rows["left"] == ""
