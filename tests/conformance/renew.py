"""Write tests/conformance/costs.json again; look at the difference before you commit it."""

import json
from pathlib import Path

from steppe.algorithms import CATALOGUE
from steppe.engine.traced_costs import CostTracer


def measured():
    tracer = CostTracer("cnn")
    rows = [tracer.trace_written(name, [], []) for name in CATALOGUE]
    keys = ("down", "up", "kept", "gradients", "forwards", "flops_x", "bytes_x")
    return {r["algorithm"]: {k: round(float(r[k]), 4) for k in keys} for r in rows}


if __name__ == "__main__":
    path = Path(__file__).parent / "costs.json"
    path.write_text(json.dumps(measured(), indent=1) + "\n")
