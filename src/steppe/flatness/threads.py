"""Independent pieces of work on a CPU, a thread for each, instead of all threads on one operation after the other.

A convolution that is split over threads waits each time for the slowest of them; beside other programs a product with
the Hessian then took twice as long.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import torch

Found = TypeVar("Found")


def in_threads(work: Callable[[int], Found], count: int) -> list[Found]:
    """work(0) … work(count − 1), side by side.

    >>> in_threads(lambda i: i * i, 3)
    [0, 1, 4]
    """
    if count == 1:
        return [work(0)]
    whole = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(count, initializer=partial(torch.set_num_threads, max(1, whole // count))) as pool:
            return list(pool.map(work, range(count)))
    finally:
        torch.set_num_threads(whole)  # threads that are made later look at what was set last
