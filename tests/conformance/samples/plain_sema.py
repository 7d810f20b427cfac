"""The sema protocol in plain Python, as the conformance kit asks for it: `plain_sema.py OPERATION [PATH]`."""

import json
import os
import stat
import sys
import time


def decode(data):
    """The fields of a record, or None for one that is malformed."""
    try:
        text = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8")
    except UnicodeDecodeError:
        return None
    if len(data) > 1 << 20:
        return None
    found = {}
    for line in text.split("\n"):  # at LF only: other separators are data
        key, equals, value = line.partition("=")
        if equals:
            found[key.strip()] = value.strip()
    pid, timestamp = number(found.get("pid"), 2**32), number(found.get("timestamp"), 2**64)
    if pid is None or timestamp is None:
        return None
    return {"pid": pid, "timestamp": timestamp, "tag": found.get("tag")}


def number(text, limit):
    digits = (text or "").removeprefix("+")
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > 4000 or int(digits) >= limit:
        return None
    return int(digits)


def look(path):
    """What is in the lock file and which file it is; None for no file. OSError for what is no file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{path} is no file")
        return os.read(fd, (1 << 20) + 1), (found.st_dev, found.st_ino)
    finally:
        os.close(fd)


def attempt(path):
    """The lock file that is now ours, as `look` sees it; None when somebody holds the lock."""
    try:
        seen = look(path)
    except PermissionError:
        return None
    record = decode(seen[0]) if seen else None
    if record and int(time.time()) - record["timestamp"] > 3600:
        remove_if(path, seen)
    data = f"pid={os.getpid()}\ntimestamp={int(time.time())}\n".encode()
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return None
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        os.fsync(fd)
        found = os.fstat(fd)
    return data, (found.st_dev, found.st_ino)


def remove_if(path, seen):
    """Remove the lock file if it is still the one that was seen. It is moved away first: one of several can do that."""
    aside = f"{path}.{os.getpid()}.aside"
    try:
        os.rename(path, aside)
    except FileNotFoundError:
        return
    if look(aside) != seen:
        try:
            os.link(aside, path)  # somebody's fresh lock: back with it
        except FileExistsError:
            pass
    os.unlink(aside)


def on_a_path(operation, path):
    ours = attempt(path)
    while ours is None and operation == "hold":
        time.sleep(0.02)
        ours = attempt(path)
    if ours is None:
        print("refused")
        return 1
    print("held", flush=True)
    sys.stdin.read()
    if look(path) == ours:
        os.unlink(path)
    return 0


def main():
    operation, *arguments = sys.argv[1:]
    if operation == "abilities":
        print("decode decode-lines hold reclaim try")
    elif operation == "decode":
        record = decode(sys.stdin.buffer.read())
        if record is None:
            return 1
        print(json.dumps(record))
    elif operation == "decode-lines":
        for line in sys.stdin:
            record = decode(bytes.fromhex(line))
            print("malformed" if record is None else json.dumps(record))
    else:
        try:
            return on_a_path(operation, *arguments)
        except OSError as error:
            print(error, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
