"""The ClientApp of a node that may misbehave: what it does in which round stands in a file beside its state.

nodes/<client>/faults.json: {"<round>": "nan" | "shape" | "stale" | "other" | "wait"}. A file busy-<round> shows that
the node is at work; under "wait" it goes on when a file gate-<round> is there.
"""

import json
import time
from pathlib import Path

from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.clientapp import ClientApp

from steppe.flower.client_app import make

app = ClientApp()


def honest(message, context):
    return make(Path(__file__).parent.parent)(message, context)


@app.query()
def query(message, context):
    return honest(message, context)


@app.train()
def train(message, context):
    home = Path(context.node_config["state"]).parent
    round_ = int(message.content.config_records["terms"]["round"])
    faults = json.loads((home / "faults.json").read_text()) if (home / "faults.json").exists() else {}
    fault = faults.get(str(round_))
    (home / f"busy-{round_}").touch()
    reply = honest(message, context)
    while fault == "wait" and not (home / f"gate-{round_}").exists():
        time.sleep(0.1)
    told, arrays = dict(reply.content["facts"]), {k: v.numpy().copy() for k, v in reply.content["arrays"].items()}
    if fault == "nan":
        arrays["update"][0] = float("nan")
    if fault == "shape":
        arrays["update"] = arrays["update"].reshape(-1, 2)
    if fault == "stale":
        told["round"] = round_ - 1
    if fault == "other":
        told["fingerprint"] = "0" * 16
    reply.content["facts"] = ConfigRecord(told)
    reply.content["arrays"] = ArrayRecord({k: Array(v) for k, v in arrays.items()})
    return reply
