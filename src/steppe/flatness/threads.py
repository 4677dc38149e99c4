"""Independent pieces of work on a CPU, one thread per piece, instead of all threads on each operation.

A convolution that is split over threads always waits for the slowest of them. With other programs on the machine, a
product with the Hessian then took twice as long.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier
from typing import TypeVar

import torch

Found = TypeVar("Found")


def run_in_threads(work: Callable[[int], Found], count: int) -> list[Found]:
    """Run work(0) … work(count − 1) in parallel.

    >>> run_in_threads(lambda i: i * i, 3)
    [0, 1, 4]
    """
    return [work(0)] if count == 1 else list(_pool(count, os.getpid()).map(work, range(count)))


@cache
def _pool(count: int, process: int) -> ThreadPoolExecutor:  # a forked process has none of its parent's threads
    """Return threads whose operations are not split further. They are kept, because set_num_threads is slow."""
    before = torch.get_num_threads()
    pool, all_here = ThreadPoolExecutor(count), Barrier(count)

    def alone(_: int) -> None:
        torch.set_num_threads(1)
        all_here.wait()

    list(pool.map(alone, range(count)))
    torch.set_num_threads(before)  # threads that are created later use the last setting
    return pool
