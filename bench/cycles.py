"""A child that times cycles of one lock, acquire and release, a slice of time for each request."""

from __future__ import annotations

import asyncio
import time
from array import array
from contextlib import AbstractAsyncContextManager
from multiprocessing.connection import Connection
from typing import Any

from async_peers import AsyncSubject
from peers import Subject

WARM_UP = 20


def serve(pipe: Connection, subject: type[Subject] | type[AsyncSubject], path: str, warm_up: int = WARM_UP) -> None:
    """Time one lock object: for each number of ns received, send samples of cycles for that long. Ends with its
    parent."""
    if issubclass(subject, AsyncSubject):
        loop, entered = asyncio.new_event_loop(), subject(path).lock
        while True:
            pipe.send(loop.run_until_complete(_async_slice(entered, pipe.recv(), warm_up)))
    lock = subject(path)
    while True:
        slice_ns = pipe.recv()
        counted(lock, warm_up)
        pipe.send(_slice(lock, slice_ns))


def counted(lock: Subject, count: int) -> array[int]:
    """The times of `count` cycles, in ns."""
    clock, acquire, release = time.monotonic_ns, lock.acquire, lock.release
    samples = array("q")
    for _ in range(count):
        begin = clock()
        acquire()
        release()
        samples.append(clock() - begin)
    return samples


def _slice(lock: Subject, slice_ns: int) -> array[int]:
    clock, acquire, release = time.monotonic_ns, lock.acquire, lock.release
    samples = array("q")
    begin = clock()
    stop = begin + slice_ns
    while begin < stop:
        begin = clock()
        acquire()
        release()
        samples.append(clock() - begin)
    return samples


async def _async_slice(lock: AbstractAsyncContextManager[Any], slice_ns: int, warm_up: int) -> array[int]:
    clock, samples = time.monotonic_ns, array("q")
    for _ in range(warm_up):
        async with lock:
            pass
    begin = clock()
    stop = begin + slice_ns
    while begin < stop:
        begin = clock()
        async with lock:
            pass
        samples.append(clock() - begin)
    return samples
