"""The sentences of the page and the documentation, by the key of a figure. Their line breaks do not matter."""

from __future__ import annotations

from .numbers import AnyFigure

_SAYS = {
    "uncontended": """
        Acquire and release of a lock without contenders, with an existing lock object. The C loop makes the system
        calls of a holdfast cycle and nothing else; a sample of the other two in C is the mean of 100 cycles.
        portalocker, fasteners, zc.lockfile, FileLock, the protocol flock and blocking flock lock a file that stays. The
        robust mutex is not a file. All others make a file appear and disappear.""",
    "asyncio": """
        One `async with` of a lock without contenders, in a loop that does nothing else, on tmpfs; and the same
        library's lock without a loop.""",
    "handoff-own": """
        From just before the holder's release to just after the waiter's acquire. Two processes take turns, each on a
        processor of its own, and the waiter has been blocked for 2 ms or more. A poller notices at its next look; its
        interval is the library's default.""",
    "handoff-placed": """
        The same, with both processes where the scheduler puts them, and a releaser that sleeps at once: the most
        favourable case for all.""",
    "crash": """
        From SIGKILL of the holder to just after the waiter's acquire. This includes the time that the kernel needs to
        tear down a Python process. It is the same for all but the two in C, whose processes are small.""",
    "idle-cpu": """
        Processor time that one of 20 processes uses in a minute while it waits for a lock that stays held; the mean of
        all 20, in each window.""",
    "idle-woken": """
        How often one of these processes wakes up in a minute, though nothing happens; the mean of all 20, in each
        window.""",
    "fairness-rate": """
        16 processes that acquire and release without a pause: acquisitions a second, of all together. A lock that lets
        its last holder in again avoids a process switch, so compare this only between locks that are about equally
        fair.""",
    "fairness-jain": """
        How evenly these acquisitions were spread over the 16 processes, in each round: 1 if all got the same share,
        1/16 if one got everything.""",
    "fairness-longest": """
        The longest wait of any of the 16 processes for one acquisition, in each round.""",
    "start": """
        From start to end of a process that acquires a free lock and runs `true`. `holdfast try` leaves a keeper process
        with the lock, for the calling shell.""",
    "imports": """
        From start to end of an interpreter that imports the library and does nothing else.""",
    "listing": """
        Processor time of `holdfast ls` of 10 000 lock files, and of `holdfast ls -r` of trees of 100 000 files without
        a lock file, beside `find`. Files whose names say nothing have to be opened, which `find` does not do.""",
    "waiters": """
        This many processes wait for one lock. It is released, and all acquire it in turn and release it at once: the
        time from the first release to the last acquisition, divided by their number. A user has 128 inotify instances,
        unless the administrator has allowed more.""",
    "waiters-woken": """
        How many times any of them woke up for each release; 1 is the minimum. A poller is not woken; each of its looks
        counts.""",
    "waiters-asleep": """
        How often each woke up before the first release, while nothing happened.""",
    "waiters-memory": """
        Private memory that a forked process gains by waiting, including each page that it is the first to write to; the
        median of ten of them.""",
    "tasks": """
        This many tasks of one process wait for a lock that another process holds. It is released, and all acquire it in
        turn: the time from the first release to the last acquisition, divided by their number.""",
    "held": """
        Acquire and release of one more lock, while the process already holds this many others, on tmpfs.""",
    "held-memory": """
        Memory that the process gains for each lock: the lock object and the hold, but not what the kernel keeps.""",
}

VERDICTS = {
    "better": "Where holdfast does better than a library",
    "worse": "Where holdfast does worse than a library",
    "neither": "Where the rounds do not agree",
}

_VERDICTS = {
    "better": """
        A factor says how many times as much the other library needs. Where more is better, it says how many times as
        much holdfast does.""",
    "worse": """
        A factor says how many times as much holdfast needs. Where more is better, it says how many times as much the
        other library does.""",
    "neither": """
        In some rounds holdfast did better, in others the other library did. A factor above 1 means that holdfast did
        worse.""",
}

MEANWHILE = "Shares of all processors while a suite measured: this run, other processes, and the host."

_HOW_TO_READ = """
    Each suite works in rounds. In each round, every subject has its turn, in a new random order, so a machine that
    slows down half-way slows all subjects. A median is the median over the rounds of each round's median.

    The dot is the median, as is the number at the end of the row. The thick line is the middle half of all samples. The
    thin line goes from the 5th to the 95th percentile, or with fewer than 20 samples from the smallest to the largest.
    The upright stroke is the 99th percentile (from 100 samples on). Where a round has one number, the thin line goes
    from the smallest round to the largest.

    A ratio compares subjects within each round: it is the median over the rounds. In brackets is the middle half of the
    rounds, or with fewer than 8 the smallest and the largest. A library is called better or worse only if that whole
    range lies on one side of 1; for a line chart, at the largest size.

    holdfast stands out by colour and weight. References are hollow or dashed: they show what the system itself allows,
    and are not locks for practical use.

    Compare ratios across machines, not microseconds. Most axes are logarithmic; a value of 0 is drawn at their start.
"""


def says(key: str) -> str:
    """The description of a figure."""
    return _joined(_SAYS[key])


def described(figure: AnyFigure) -> str:
    """The description of a figure, with the direction that is better."""
    return f"{figure.says} {'More' if getattr(figure, 'more_is_better', False) else 'Less'} is better."


def verdict_says(key: str) -> str:
    """The meaning of the factors in a list of verdicts."""
    return _joined(_VERDICTS[key])


def how_to_read() -> list[str]:
    """Of the charts and tables alike."""
    return [_joined(words) for words in _HOW_TO_READ.split("\n\n")]


def _joined(words: str) -> str:
    return " ".join(words.split())
