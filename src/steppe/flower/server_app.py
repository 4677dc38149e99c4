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
from steppe.flower import federation_file as charters
from steppe.flower.build import described, server_side
from steppe.flower.liveness import LOG, locked, status, telling
from steppe.flower.nodes import Nodes, NodeStore
from steppe.flower.overhead import overhead
from steppe.runs.folder import RunFolder

log = logging.getLogger("steppe")


def make(app_folder: Path) -> ServerApp:
    """The ServerApp of the federation whose charter lies in this folder."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        asked = context.run_config
        serve(grid, app_folder, str(asked.get("set", "")).split(), str(asked.get("out", "")),
              bool(asked.get("resume", False)))  # fmt: skip

    return app


def serve(grid: Grid, app_folder: Path, sets: list[str], out: str = "", resume: bool = False) -> Result:
    """Run the federation; its folder tells how it stands, also when this process is killed."""
    charter, config = charters.read(app_folder, sets)
    where = Path(out or charter.out)
    where.mkdir(parents=True, exist_ok=True)
    with locked(where), telling(where / LOG):
        status(where, "running", federation=charter.name, rounds=config.rounds)
        try:
            begun = RunFolder(where).exists
            if begun and not resume:
                raise SteppeError(f"{where} already holds a run: resume it, or choose another folder with `out`.")
            result = federated(grid, charter, config, where, resume and begun)
        except SteppeError as error:
            log.error(f"error: {error}")
            status(where, "failed", why=str(error), code=error.exit_code)
            raise
        except Exception as error:
            status(where, "failed", why=f"{type(error).__name__}: {error}", code=RunFailed.exit_code)
            raise
        told = overhead(result.history, result.experiment.cost)
        RunFolder(where).write("result.json", {**result.summary, **({"nodes": told} if told else {})})
        status(where, "finished")
        return result


def federated(grid: Grid, charter: charters.Charter, config: Any, where: Path | None, resume: bool) -> Result:
    """Play the federation's rounds, with the nodes that the grid reaches."""
    sample, test = described(charter, config)
    built = server_side(charter, config, sample, test)
    store = NodeStore(lambda: built.algorithm.client_state(built.task.x0))
    nodes = Nodes(grid, charter, built, sample, store)

    def watch(record: dict[str, Any]) -> None:
        # For Flower's log alone: the folder has the records.
        metric = built.task.metric
        judged = f", {metric.text(record[metric.name])}, loss {record['loss']:.4f}" if metric.name in record else ""
        print(f"steppe: round {record['round']}/{config.rounds}: {record['clients']} clients{judged}, "
              f"{record['seconds']['all']:.1f} s", flush=True)  # fmt: skip

    return simulate(built, where, resume, watch, executor=nodes, store=store)
