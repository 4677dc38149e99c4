"""What a hostile client may send; for tests only."""

import torch


def sign_flip(honest):
    return -10 * honest


def huge(honest):
    return torch.full_like(honest, 1e30)


def not_numbers(honest):
    return torch.full_like(honest, float("nan"))


def poisoned(replies, who, attack, update=True):
    """The same stacked replies, with all that these rows upload replaced; or all but the update, which looks decent."""
    bad = torch.zeros(len(replies.update), dtype=torch.bool)
    bad[list(who)] = True

    def spoilt(rows):
        return torch.where(bad.reshape(-1, *[1] * (rows.ndim - 1)), attack(rows), rows)

    up = {part: {k: spoilt(v) for k, v in tensors.items()} for part, tensors in replies.up.items()}
    return replies._replace(update=spoilt(replies.update) if update else replies.update, up=up)
