"""The generic ServerApp: the same round loop as in simulation, with the nodes as its executor."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from steppe.core.errors import RunFailed, SteppeError
from steppe.engine.result import Result
from steppe.engine.rounds import simulate
from steppe.flower import federation_file
from steppe.flower.build_server_and_node import build_server, describe_data
from steppe.flower.keys import read_keys
from steppe.flower.node_store import NodeStore
from steppe.flower.nodes import Nodes
from steppe.flower.overhead import measure
from steppe.flower.server_status import LOG, lock, log_to, write_status
from steppe.references import look_in
from steppe.runs.folder import RunFolder, check_place

log = logging.getLogger("steppe")


def make(app_folder: Path) -> ServerApp:
    """Return the ServerApp of the federation whose federation.toml is in this folder."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        asked = context.run_config
        serve(grid, app_folder, str(asked.get("set", "")).split(), str(asked.get("out", "")),
              bool(asked.get("resume", False)))  # fmt: skip

    return app


def serve(grid: Grid, app_folder: Path, sets: list[str], out: str = "", resume: bool = False) -> Result:
    """Run the federation; its folder records its state, even if this process is killed."""
    look_in(app_folder)
    settings, config = federation_file.read_federation_file(app_folder, sets)
    where = Path(out or settings.out)
    check_place(where)
    where.mkdir(parents=True, exist_ok=True)
    with lock(where), log_to(where / LOG):
        write_status(where, "running", federation=settings.name, rounds=config.rounds)
        try:
            begun = RunFolder(where).exists
            if begun and not resume:
                raise SteppeError(f"{where} already holds a run: resume it, or choose another folder with `out`.")
            keys = read_keys(Path())
            if keys is None and Path("operator/ca.crt").exists():
                raise SteppeError("operator/keys.json, with the key of each client, is missing: write it with steppe "
                                  "federate register.")  # fmt: skip
            result = run_federation(grid, settings, config, where, resume and begun, keys)
        except SteppeError as error:
            log.error(f"error: {error}")
            write_status(where, "failed", why=str(error), code=error.exit_code)
            raise
        except Exception as error:
            write_status(where, "failed", why=f"{type(error).__name__}: {error}", code=RunFailed.exit_code)
            raise
        told = measure(result.history, result.experiment.cost)
        RunFolder(where).write("result.json", {**result.summary, **({"nodes": told} if told else {})})
        write_status(where, "finished")
        return result


def run_federation(grid: Grid, settings: federation_file.FederationFile, config: Any, where: Path | None, resume: bool,
              keys: dict[int, str] | None = None) -> Result:  # fmt: skip
    """Run the rounds; `keys` maps each client to its node's key."""
    sample, test = describe_data(settings, config)
    built = build_server(settings, config, sample, test)
    store = NodeStore(lambda: built.algorithm.client_state(built.task.x0))
    nodes = Nodes(grid, settings, built, sample, store, keys, where)

    def watch(record: dict[str, Any]) -> None:
        # Only for Flower's log: the folder has the records.
        metric = built.task.metric
        judged = f", {metric.text(record[metric.name])}, loss {record['loss']:.4f}" if metric.name in record else ""
        print(f"steppe: round {record['round']}/{config.rounds}: {record['clients']} clients{judged}, "
              f"{record['seconds']['all']:.1f} s", flush=True)  # fmt: skip

    return simulate(built, where, resume, watch, executor=nodes, store=store)
