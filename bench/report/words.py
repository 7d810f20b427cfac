"""What the page and the documentation say in sentences, by the key of a figure. Lines are broken here as they fit."""

from __future__ import annotations

from .numbers import AnyFigure

_SAYS = {
    "uncontended": """
        Acquire and release of a lock that nobody else wants, the lock object made beforehand. The C loop makes the
        system calls of a holdfast cycle and nothing else; a sample of the other two in C is the mean of 100 cycles.
        portalocker, fasteners, zc.lockfile, FileLock, the protocol flock and blocking flock lock a file that stays,
        the robust mutex is no file; the others make one appear and disappear.""",
    "asyncio": """
        One `async with` of a lock that nobody else wants, in a loop that does nothing else, on tmpfs; and the same
        library's lock without a loop.""",
    "handoff-own": """
        From before the holder's release to after the waiter's acquire; two processes take turns, each on a processor of
        its own, and the waiter has been blocked for 2 ms or more. Who polls finds out at its next look, whose interval
        is the library's default.""",
    "handoff-placed": """
        The same, with both processes where the scheduler puts them, and a releaser that sleeps at once: the most
        favourable case for all.""",
    "crash": """
        From SIGKILL of the holder to after the waiter's acquire, with what the kernel needs to take down a Python
        process, which is the same for all but the two in C, whose processes are small.""",
    "idle-cpu": """
        Of one of 20 processes that wait for a lock which is not given back, in a minute; the mean of all, in each
        window.""",
    "idle-woken": """
        How often one of them wakes up in a minute, though nothing has happened; the mean of all, in each window.""",
    "fairness-rate": """
        16 processes that acquire and release without a pause: acquisitions a second, of all together. A lock that lets
        its last holder in again saves a change of process, so compare this only between locks that are about as
        fair.""",
    "fairness-jain": """
        How evenly these acquisitions were spread over the 16, in each round: 1 when all got the same, 1/16 when one got
        everything.""",
    "fairness-longest": """
        The longest time that one of the 16 waited for one acquisition, in each round.""",
    "start": """
        From start to end of a process that takes a lock which is free and runs `true`. `holdfast try` leaves a keeper
        process with the lock, for the shell that called it.""",
    "imports": """
        From start to end of an interpreter that imports it and does nothing else.""",
    "listing": """
        Processor time of `holdfast ls` of 10 000 lock files, and of `holdfast ls -r` of trees of 100 000 files without
        one, beside `find`. Files whose names say nothing have to be opened, which `find` does not do.""",
    "waiters": """
        So many processes wait for one lock. It is released, and all get it, one after the other, each leaving at once:
        the time from the first release to the last acquisition, for each of them. A user has 128 inotify instances,
        unless the administrator has allowed more.""",
    "waiters-woken": """
        How many times any of them woke up for each release; 1 is the least. A poller is not woken, it looks; its looks
        count.""",
    "waiters-asleep": """
        How often each woke up before the first release, while nothing happened.""",
    "waiters-memory": """
        What a forked process has of its own beyond what it had before it waited, with each page that it is the first to
        write to; the median of ten of them.""",
    "tasks": """
        So many tasks of one process wait for a lock that another process holds. It is released, and all get it, one
        after the other: the time from the first release to the last acquisition, for each of them.""",
    "held": """
        Acquire and release of one more lock, while the process holds so many others, on tmpfs.""",
    "held-memory": """
        What the process has more, for each lock: the lock object and the hold, not what the kernel keeps.""",
}

VERDICTS = {
    "better": "Where holdfast does better than a library",
    "worse": "Where holdfast does worse than a library",
    "neither": "Where the rounds do not agree",
}

_VERDICTS = {
    "better": """
        A factor says how many times as much the other needs; of what more is better, how many times as much holdfast
        does.""",
    "worse": """
        A factor says how many times as much holdfast needs; of what more is better, how many times as much the other
        does.""",
    "neither": """
        In some rounds holdfast did better, in others the other did. A factor above 1 is worse.""",
}

MEANWHILE = "Of all processors: what this run had while a suite measured, what others had, what the host took."

_HOW_TO_READ = """
    Each suite works in rounds; in a round every subject has its turn, in an order drawn anew, so a machine that slows
    down half-way slows everyone. A median is the median over the rounds of each round's median.

    The dot is the median, as is the number at the end of the row. The thick line is the middle half of all samples,
    the thin one goes from the 5th to the 95th percentile (of fewer than 20 samples, from the least to the most), the
    upright stroke is the 99th (from 100 samples on). Where a round has one number, the thin line goes from the least
    round to the most.

    A ratio compares each round with itself: the median over the rounds, and in brackets the middle half of them, or of
    fewer than 8 the least and the most. Better and worse are said where all of that lies on one side of 1; of a chart
    of lines, at the largest size.

    holdfast stands out by colour and weight. References are hollow or dashed: they show what the system itself allows,
    and are no locks that one would use as they are.

    Compare ratios across machines, not microseconds. Most axes are logarithmic; what is 0 lies at their beginning.
"""


def says(key: str) -> str:
    """What a figure shows."""
    return _joined(_SAYS[key])


def described(figure: AnyFigure) -> str:
    """The same, and which way is better."""
    return f"{figure.says} {'More' if getattr(figure, 'more_is_better', False) else 'Less'} is better."


def verdict_says(key: str) -> str:
    """What the factors of a list of verdicts mean."""
    return _joined(_VERDICTS[key])


def how_to_read() -> list[str]:
    """Of the charts and tables alike."""
    return [_joined(words) for words in _HOW_TO_READ.split("\n\n")]


def _joined(words: str) -> str:
    return " ".join(words.split())
