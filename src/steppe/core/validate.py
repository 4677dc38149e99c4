"""Decide which replies the server accepts. The simulator and a real federation make the same checks.

A node may send anything, so `find_misfit` compares it with the expected shape (`client.make_empty_replies`)
before it is stacked with the others; `find_faults` checks the numbers of stacked replies. A refused reply is never
averaged; the reason is a phrase that follows the client's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from steppe.core.client import Reply
from steppe.core.stacking import flatten_rows, joint_norms


def name_uploads(reply: Reply) -> Iterator[tuple[str, Any]]:
    """Return everything that a reply uploads, by name."""
    yield "update", reply.update
    for part, tensors in reply.up.items():
        yield from ((f"{part}.{name}", value) for name, value in tensors.items())
    yield from ((f"@{name}", value) for name, value in reply.buffers.items())


def find_misfit(reply: Reply, like: Reply) -> str:
    """Return why a reply is not of the expected form; empty if it is. `like` is stacked, with any number of rows.

    >>> from steppe.core.client import Reply
    >>> of = lambda u: Reply(u, {}, {}, torch.zeros(()), torch.zeros(()), {})
    >>> find_misfit(of(torch.zeros(3)), of(torch.zeros(0, 4)))
    'its update has shape (3,) where (4,) is expected'
    """
    sent, expected = dict(name_uploads(reply)), dict(name_uploads(like))
    for name in expected.keys() - sent.keys():
        return f"it lacks {name}"
    for name in sent.keys() - expected.keys():
        return f"it has {name}, which was not requested"
    for name, wanted in expected.items():
        value = sent[name]
        if not isinstance(value, Tensor):
            return f"its {name} is not a tensor"
        if value.shape != wanted.shape[1:]:
            return f"its {name} has shape {tuple(value.shape)} where {tuple(wanted.shape[1:])} is expected"
        if value.dtype != wanted.dtype:
            return f"its {name} has type {value.dtype} where {wanted.dtype} is expected"
    return ""


def find_faults(replies: Reply, limit: float | None = None, lengths: Tensor | None = None) -> list[str]:
    """Return what is wrong with each of the stacked replies; empty if nothing is.

    Every number that is uploaded or kept must be finite. With a limit, the norm of all uploads except running
    statistics must not exceed it. If the lengths of the updates are given, the updates need not be read again: a
    vector of finite length is finite.
    """
    kept = [v for tensors in replies.state.values() for v in tensors.values()]
    travels = dict(name_uploads(replies))
    known = lengths is not None and bool(lengths.isfinite().all())
    looked_at = {**travels, "update": lengths} if known else travels
    good = torch.stack([find_finite(v) for v in (*looked_at.values(), *kept)]).all(0).tolist()
    told = ["" if fine else "is not finite" for fine in good]
    if limit is None:
        return told
    norms = joint_norms({name: v for name, v in travels.items() if not name.startswith("@")}).tolist()
    return [why or (f"has norm {n:.4g}, above the limit of {limit:g}" if n > limit else "")
            for why, n in zip(told, norms, strict=True)]  # fmt: skip


def find_finite(rows: Tensor) -> Tensor:
    """Return which rows have only finite numbers.

    If a sum is finite, so are its terms, and on a CPU the sum costs a tenth of checking each term, so it is checked
    first. Finite terms may still have a sum that is not finite.
    """
    if not rows.is_cuda:
        good = flatten_rows(rows).sum(1).isfinite()
        if bool(good.all()):
            return good
    return flatten_rows(rows).isfinite().all(1)


def sift_replies(ids: Sequence[int], replies: Reply, why: Sequence[str]) -> tuple[list[int], Reply]:
    """Return the accepted clients and their replies; `why` has the faults of each, as `find_faults` returns them."""
    keep = [k for k, reason in enumerate(why) if not reason]
    accepted: Reply = tree_map(lambda v: v[keep], replies)
    return [ids[k] for k in keep], accepted
