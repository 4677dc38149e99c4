"""Overhead of a federation in addition to training: seconds per round, and bytes compared with the cost table."""

from __future__ import annotations

from typing import Any

from steppe.core.cost import Cost


def measure(history: list[dict[str, Any]], cost: Cost) -> dict[str, Any]:
    """Return means over the rounds, the samples of each client that took part, and how often clients did not."""
    rounds = [r["nodes"] for r in history if "nodes" in r]
    if not rounds:
        return {}

    def mean(key: str) -> float:
        return float(sum(r[key] for r in rounds) / len(rounds))

    each = {i: n for r in history for i, n in zip(r.get("participants", ()), r.get("samples", ()), strict=False)}
    return {
        **({"samples": {str(i): each[i] for i in sorted(each)}} if each else {}),  # not if participation is secret
        "overhead_seconds": round(mean("overhead"), 3), "training_seconds": round(mean("training"), 3),
        "bytes_down": round(mean("bytes_down")), "bytes_up": round(mean("bytes_up")),
        "table_down": cost.bytes_down, "table_up": cost.bytes_up,
        "missing": sum(len(r.get("dropped", ())) for r in history),
        "refused": sum(len(r.get("refused", ())) for r in history),
    }  # fmt: skip


def describe(told: dict[str, Any]) -> list[str]:
    def against(kind: str) -> str:
        real, table = told[f"bytes_{kind}"], told[f"table_{kind}"]
        return (
            f"{real:,} bytes {kind} (cost table {table:,}, ×{real / table:.3f})" if table else f"{real:,} bytes {kind}"
        )

    return [
        f"overhead {told['overhead_seconds']:.2f} s per round in addition to the slowest client's training "
        f"({told['training_seconds']:.2f} s)",
        f"sent per client and round: {against('down')}, {against('up')}",
        f"replies missing {told['missing']}, refused {told['refused']}",
    ]
