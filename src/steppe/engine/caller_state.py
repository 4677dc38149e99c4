"""Process-wide state that a run changes and then restores: random generators, TF32 switches, threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def keep_caller_state() -> Iterator[None]:
    """Restore PyTorch's generators, TF32 switches and number of threads on exit."""
    used = torch.cuda.is_available() and torch.cuda.is_initialized()
    generator, cards = torch.get_rng_state(), torch.cuda.get_rng_state_all() if used else []
    products, convolutions = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_rng_state(generator)
        if cards:
            torch.cuda.set_rng_state_all(cards)
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = products, convolutions
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
