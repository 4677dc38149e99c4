"""What one client's round sends, keeps and computes, traced on a model without data."""

from __future__ import annotations

from collections.abc import Mapping

from tools.docs.catalogue import BATCH, CLASSES, SHAPE, model_size, trace
from tools.docs.tables import make_table

from steppe.algorithms import Parts

MODEL = f"the FedAvg paper's CNN for {SHAPE[1]} × {SHAPE[2]} images and {CLASSES} classes"


def _count(number: int) -> str:
    """
    >>> _count(1), _count(model_size())
    ('1 number', '1 vector')
    """
    vectors = number / model_size()
    if vectors < 0.5:
        return f"{number:,} number{'s' if number != 1 else ''}"
    return f"{vectors:.3g} vector{'s' if round(vectors, 3) != 1 else ''}"


def show_traffic(parts: Parts) -> str:
    """Return everything that is sent and kept, by name; a vector is as long as the model."""
    found, _ = trace(parts)
    places = (("server to client", found.down), ("client to server", found.up), ("client keeps", found.kept),
              ("server keeps", found.server))  # fmt: skip
    rows = [[place, ", ".join(f"`{name}` ({_count(n)})" for name, n in sizes.items() if n) or "nothing"]
            for place, sizes in places]  # fmt: skip
    return (
        f"Traced in one client's round of {MODEL}; a vector has the model's {model_size():,} numbers. `part.name` is a "
        "state or message of a part.\n\n" + make_table(["", "what"], rows)
    )


def show_costs(choices: Mapping[str, Parts]) -> str:
    """Return costs of the default and of every choice that costs something else."""
    base = trace(())[1]
    rows, seen = [], set()
    for label, parts in choices.items():
        c = trace(parts)[1]
        sizes = [f"{size / 1e6:.2f}" for size in (c.bytes_down, c.bytes_up, c.bytes_kept)]
        cells = [*sizes, str(c.gradients), str(c.forwards), f"{c.flops / 1e9:.1f}", f"{c.flops / base.flops:.2f}×"]
        if not rows or tuple(cells) not in seen:
            rows.append([label, *cells])
        seen.add(tuple(cells))
    same = "" if len(rows) == len(choices) else " Choices that are not listed cost as much as one that is."
    return (
        f"Per client and round in float32, FLOPs per step of {BATCH} examples, on the same model; × is a multiple of "
        f"FedAvg's.{same}\n\n"
        + make_table(
            ["", "down, MB", "up, MB", "kept, MB", "gradients per step", "further forward passes", "GFLOPs", "×"], rows
        )
    )


def say_cost(parts: Parts) -> str:
    """Return the costs in half a sentence."""
    base, c = trace(())[1], trace(parts)[1]
    ratio = (c.bytes_down + c.bytes_up) / (base.bytes_down + base.bytes_up)
    kept = f"a client keeps {c.kept:.3g} × the model" if round(c.kept, 3) else "a client keeps nothing"
    gradients = f"{c.gradients} gradient{'s' if c.gradients > 1 else ''} per step"
    return f"{ratio:.2f} × FedAvg's bytes, {gradients}, {c.flops / base.flops:.2f} × its FLOPs; {kept}"
