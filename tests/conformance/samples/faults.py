"""Broken implementations: one change to a sound one, and the scenarios that find it."""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    found_by: tuple[str, ...]
    changes: tuple[tuple[str, str], ...]
    says: str = ""
    """Text that the report must contain."""


def fault(*found_by: str, says: str = "", **changes: str) -> Fault:
    return Fault(found_by, tuple(zip(changes["old"].split("@@"), changes["new"].split("@@"), strict=True)), says)


PLAIN_SEMA = {
    "splits lines at any separator": fault(
        "record:sema-tag-nel-inside",
        "other-line-separators-are-data",
        old='text.split("\\n")',
        new="text.splitlines()",
        says="\\xc2\\x85",
    ),
    "reclaims at 3600 s": fault(
        "a-lock-is-stale-after-3600-seconds-and-not-before", old="> 3600", new=">= 3600", says="at 3600."
    ),
    "never reclaims": fault("a-stale-lock-is-reclaimed", old="> 3600", new="> 36000", says="'refused'"),
    "reclaims what it cannot read": fault(
        "a-malformed-lock-is-respected", old="if record and int(", new="if seen and not record or record and int("
    ),
    "reclaims what a dead process has written": fault(
        "a-fresh-lock-of-a-dead-process-is-respected",
        old="> 3600",
        new="> 3600 or record and not os.path.exists(f\"/proc/{record['pid']}\")",
    ),
    "creates with rename": fault(
        "a-lock-that-appears-in-the-last-moment-is-respected",
        old="        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)\n@@        os.fsync(fd)\n",
        new="        if look(path): return None\n"
        '        fd = os.open(f"{path}.{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)\n'
        "@@        time.sleep(0.02)\n"  # else only chance has the kit come between, and seldom on a busy machine
        "        os.rename(f'{path}.{os.getpid()}', path)\n",
        says="another file is in its place",
    ),
    "looks, and then writes": fault(
        "of-four-who-try-at-once-one-gets-in",
        old="        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)\n",
        new="        if look(path): return None\n"
        "        time.sleep(0.5)\n"
        "        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)\n",
    ),
    "releases without checking": fault(
        "a-lock-of-somebody-else-in-its-place-is-left",
        old="if look(path) == ours:",
        new="if True:",
        says="it was removed or changed",
    ),
    "does not release": fault(
        "a-free-lock-is-acquired", old="if look(path) == ours:", new="if False:", says="it is still there"
    ),
    "stamps the record before it waits": fault(
        "a-waiter-gets-in-after-a-release",
        old="import time\n@@ntimestamp={int(time.time())}",
        new="import time\nBEGAN = time.time()\n@@ntimestamp={int(BEGAN)}",
    ),
    "leaves a file behind": fault(
        "nothing-is-left",
        old="        os.unlink(path)\n",
        new='        os.rename(path, path + ".old")\n',
        says="lock.old",
    ),
    "hides its lock file": fault("the-mode-is-the-protocols", old="0o644", new="0o600", says="0600"),
    "names another process": fault(
        "a-free-lock-is-acquired-at-the-first-try", old="pid={os.getpid()}", new="pid={os.getppid()}", says="it names"
    ),
    "writes blanks": fault("a-free-lock-is-acquired", old='f"pid={', new='f"pid = {', says="b'pid = "),
    "hangs on a FIFO": fault("a-fifo-is-refused", old="os.O_NONBLOCK", new="0", says="did not answer in time"),
    "follows links": fault(
        "a-symbolic-link-is-refused",
        old=" | os.O_NOFOLLOW@@        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)\n",
        new="@@        if look(path): return None\n        fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)\n",
    ),
    "makes directories": fault(
        "a-missing-directory-is-not-made",
        old='    data = f"pid',
        new='    os.makedirs(os.path.dirname(path), exist_ok=True)\n    data = f"pid',
    ),
    "prints garbage": fault("a-free-lock-is-acquired", old='"held"', new='"\\N{SNOWMAN} HELD!"', says="HELD!"),
    "decodes into garbage": fault(
        "record:sema-canonical-tag",
        old='            print("malformed" if record is None else json.dumps(record))',
        new="            print(record)",
        says="JSON",
    ),
    "decodes the half": fault(
        "record:sema-uppercase-keys",
        old="        for line in sys.stdin:\n",
        new="        for line in [*sys.stdin][:-1]:\n",
        says="the lines end before",
    ),
    "crashes": fault("a-free-lock-is-acquired", old="    sys.stdin.read()\n", new="    os.abort()\n", says="SIGABRT"),
    "dies of an exception": fault(
        "a-free-lock-is-acquired",
        old="    ours = attempt(path)\n    while",
        new="    ours = 1 / 0\n    while",
        says="ZeroDivisionError",
    ),
    "does not end": fault(
        "a-free-lock-is-acquired",
        old="    sys.stdin.read()\n",
        new="    time.sleep(1000)\n",
        says="did not end in time",
    ),
}
"""Faults of plain_sema.py."""

SLOWLY_FOUND = (
    "does not end",
    "hangs on a FIFO",
    "stamps the record before it waits",
    "reclaims at 3600 s",
    "leaves a file behind",
)
"""Those of its faults that take the kit seconds to find."""

HOLDFAST = {
    "sema": {
        "crashes": fault(
            "a-free-lock-is-acquired", old="        until_told()\n", new="        os.abort()\n", says="SIGABRT"
        ),
        "does not end": fault(
            "a-free-lock-is-acquired",
            old="        until_told()\n",
            new="        time.sleep(1000)\n",
            says="did not end in time",
        ),
    },
    "sidecar": {
        "does not tell stale": fault(
            "a-stale-lock-fails-closed", old='print("stale")', new='print("refused")', says="line `stale`"
        ),
        "waits for what is stale": fault(
            "a-stale-lock-fails-closed", old='"stale": "protocol"', new='"stale": "never"', says="line `stale`"
        ),
    },
    "beads": {
        "never reclaims": fault(
            "the-lock-of-a-dead-process-is-reclaimed", old='"stale": "protocol"', new='"stale": "never"'
        ),
        "proceeds always": fault(
            "the-daemon-skips-what-is-locked", old="skip, _, _ = beads.should_skip_database(path)", new="skip = False"
        ),
    },
    "semats": {
        "releases what is another's": fault(
            "release-leaves-the-lock-of-another-process", old=".release()", new=".release(force=True)"
        ),
        "does not follow links": fault(
            "a-symbolic-link-is-followed",
            old="lock = Lock(path, **options)",
            new='lock = Lock(path, **{**options, "protocol": "sema"})',
        ),
    },
}
"""Faults of holdfast_adapter.py, by protocol."""

SEMA_FOR_SEMATS = {
    "the-mode-is-the-protocols",
    "a-symbolic-link-is-followed",
    "a-path-with-dots-is-refused",
    "an-old-lock-of-a-living-process-is-respected",
    "an-old-lock-with-pid-0-is-respected",
}
"""Scenarios that plain_sema.py fails when it is checked as semats."""

PLAIN_DIRECTORIES = {
    "takes over what is fresh": fault("a-fresh-directory-is-respected", old="> 10", new="> 5", says="it said 'held'"),
    "takes over a moment early": fault(
        "a-directory-is-stale-after-10-seconds-and-not-before", old="> 10", new="> 9.5", says="before that"
    ),
    "never takes over": fault("a-stale-directory-is-taken-over", old="> 10", new="> 1e6", says="'refused'"),
    "takes a time ahead for an old one": fault(
        "a-directory-from-the-future-is-respected",
        old="time.time() - seen[1] / 1e9",
        new="abs(time.time() - seen[1] / 1e9)",
    ),
    "keeps the old time": fault(
        "a-stale-directory-is-taken-over",
        old="            remove_if(lock, seen)\n            return attempt(target)\n",
        new="            return lock, seen\n",
        says="a directory that is fresh again",
    ),
    "never refreshes": fault(
        "a-holder-keeps-its-directory-fresh", old="os.utime(lock)", new="pass", says="it has not changed"
    ),
    "refreshes once": fault(
        "a-holder-keeps-its-directory-fresh",
        old="        ours[0] = look(lock)\n",
        new="        ours[0] = look(lock)\n        return\n",
        says="it has not changed",
    ),
    "remembers the time that it set, not the one that the directory has": fault(
        "a-holder-keeps-its-directory-fresh",
        old="        ours[0] = look(lock)\n",
        new="        ours[0] = ours[0][0], int(time.time()) * 10**9\n",
        says="it has not changed",
    ),
    "refreshes whatever is there": fault(
        "a-holder-that-was-robbed-refreshes-nothing",
        "a-holder-that-was-robbed-in-place-refreshes-nothing",
        old="if look(lock) != ours[0]:",
        new="if False:",
        says="refreshed",
    ),
    "refreshes the directory, whatever its time": fault(
        "a-holder-that-was-robbed-in-place-refreshes-nothing",
        old="if look(lock) != ours[0]:",
        new="if look(lock)[0] != ours[0][0]:",
        says="refreshed",
    ),
    "removes the directory, whatever its time": fault(
        "a-lock-that-was-taken-over-in-place-is-left",
        old="if look(lock) == ours[0]:",
        new="if look(lock)[0] == ours[0][0]:",
        says="removed",
    ),
    "removes whatever is there": fault(
        "a-lock-of-somebody-else-in-its-place-is-left",
        "a-lock-that-was-taken-over-in-place-is-left",
        old="if look(lock) == ours[0]:",
        new="if True:",
        says="removed",
    ),
    "judges, and then removes": fault(
        "two-who-take-over-one-stale-directory-are-never-both-inside",
        old="            remove_if(lock, seen)\n",
        new="            time.sleep(0.02 * (os.getpid() % 9))\n            os.rmdir(lock)\n",
    ),
    "removes what is in it": fault(
        "what-is-in-a-stale-directory-is-left",
        old="        os.rmdir(aside)\n",
        new="        import shutil; shutil.rmtree(aside)\n",
        says="held",
    ),
    "removes a file": fault(
        "a-file-is-left-alone",
        old="        os.rmdir(aside)\n",
        new="        os.unlink(aside)\n",
        says="held",
    ),
    "follows no links": fault(
        "a-link-to-the-target-is-the-same-lock", old="os.path.realpath(target, strict=True)", new="target", says="held"
    ),
    "locks what is not there": fault("a-target-that-is-missing-is-refused", old=", strict=True", new="", says="held"),
}
