"""Random numbers that depend only on a key, not on earlier draws.

With a shared stream, a client's batches would depend on the other clients and on the executor. Here every
draw is a hash of (seed, round, client, …), computed in integer arithmetic that is the same on every
device. Executors, ranks and federated nodes therefore agree to the bit, and a resumed run continues as
if it had not been interrupted.

    >>> a = uniform(key(0, 3, 7), 4)
    >>> bool((a == uniform(key(0, 3, 7), 4)).all()), bool((a == uniform(key(0, 3, 8), 4)).any())
    (True, False)
    >>> int(permutation(key(1), 5).sum())
    10
"""

from __future__ import annotations

import torch
from torch import Tensor

from steppe.core.widest_float import find_widest

_GOLDEN = -7046029254386353131  # 2**64 / golden ratio, as a signed 64-bit integer
_MIX1 = -4658895280553007687  # the multipliers of the splitmix64 finaliser
_MIX2 = -7723592293110705685
_ALL = (1 << 64) - 1


def _mix(z: Tensor) -> Tensor:
    """Apply the splitmix64 finaliser; int64 products wrap, and the masks make the shifts logical."""
    z = (z ^ ((z >> 30) & ((1 << 34) - 1))) * _MIX1
    z = (z ^ ((z >> 27) & ((1 << 37) - 1))) * _MIX2
    return z ^ ((z >> 31) & ((1 << 33) - 1))


def key(*parts: int | Tensor) -> Tensor:
    """Return one int64 key from any integers; tensors broadcast, so a batch of clients gets a batch of keys.

    Leading integers are mixed by Python: on a GPU, each of their tensor operations would be a launch.
    """
    state: int | Tensor = 0
    for part in parts:
        if isinstance(part, Tensor):
            part = part.to(torch.int64)
            if isinstance(state, int):
                state = _mix(part + _signed(state * 31 + _GOLDEN))
            else:
                state = _mix((state.to(part.device) if state.ndim == 0 else state) * 31 + part + _GOLDEN)
        elif isinstance(state, int):
            state = _mix_integer(state * 31 + int(part) + _GOLDEN)
        else:
            state = _mix(state * 31 + _signed(int(part) + _GOLDEN))
    return torch.tensor(_signed(state)) if isinstance(state, int) else state


def _mix_integer(z: int) -> int:
    """Do what `_mix` does, with Python's integers."""
    z &= _ALL
    z = (z ^ (z >> 30)) * _MIX1 & _ALL
    z = (z ^ (z >> 27)) * _MIX2 & _ALL
    return z ^ (z >> 31)


def _signed(z: int) -> int:
    """Return the int64 with the same last 64 bits."""
    z &= _ALL
    return z - (1 << 64) if z >> 63 else z


def bits(k: Tensor, n: int) -> Tensor:
    """Return n independent 63-bit non-negative integers for each key: shape (*k.shape, n)."""
    # Adding a zero made of the keys keeps the compiler from multiplying 32-bit positions by a 64-bit constant.
    counter = torch.arange(1, n + 1, device=k.device, dtype=torch.int64) + (k[..., None] & 0)
    return _mix(_mix(k)[..., None] + counter * _GOLDEN) & ((1 << 63) - 1)


def uniform(k: Tensor, n: int) -> Tensor:
    """Return n numbers in [0, 1) for each key, in float64; in float32 on a device without float64."""
    wide = find_widest(k.device)
    digits = 53 if wide == torch.float64 else 24  # as many as fit: more would round up to 1
    return (bits(k, n) >> (63 - digits)).to(wide) / (1 << digits)


def permutation(k: Tensor, n: int) -> Tensor:
    """Return a random order of range(n) for each key."""
    return torch.argsort(bits(k, n), dim=-1, stable=True)


def choose(k: Tensor, n: int, count: int) -> Tensor:
    """Return `count` different numbers of range(n) in random order; the cost grows with `count`, not with n.

    >>> choose(key(3), 10**8, 4).unique().numel()
    4
    """
    if 4 * count > n:
        return permutation(k, n)[:count]
    drawn = 2 * count
    while True:  # a longer sequence of draws begins with the shorter one, so the result does not depend on its length
        different = list(dict.fromkeys((bits(k, drawn) % n).tolist()))
        if len(different) >= count:
            return torch.tensor(different[:count])
        drawn *= 2


def as_seed(k: Tensor) -> int:
    """Return a Python integer for libraries that need their own seed."""
    return int(k) & ((1 << 63) - 1)
