"""Independent pieces of work on a CPU, a thread for each, instead of all threads on one operation after the other.

A convolution that is split over threads waits each time for the slowest of them; beside other programs a product with
the Hessian then took twice as long.
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


def in_threads(work: Callable[[int], Found], count: int) -> list[Found]:
    """work(0) … work(count − 1), side by side.

    >>> in_threads(lambda i: i * i, 3)
    [0, 1, 4]
    """
    return [work(0)] if count == 1 else list(_pool(count, os.getpid()).map(work, range(count)))


@cache
def _pool(count: int, process: int) -> ThreadPoolExecutor:  # a forked process has none of its parent's threads
    """Threads whose operations are not split further; kept, because PyTorch takes long to change its mind."""
    before = torch.get_num_threads()
    pool, all_here = ThreadPoolExecutor(count), Barrier(count)

    def alone(_: int) -> None:
        torch.set_num_threads(1)
        all_here.wait()

    list(pool.map(alone, range(count)))
    torch.set_num_threads(before)  # threads that others make later look at what was set last
    return pool
