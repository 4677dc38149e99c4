"""The generic ServerApp: the same round loop as in simulation, with the nodes as its executor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from steppe.core.errors import RunFailed, SteppeError
from steppe.engine.rounds import Result, simulate
from steppe.flower import federation_file as charters
from steppe.flower.build import described, server_side
from steppe.flower.liveness import LOG, locked, status, teller
from steppe.flower.nodes import Nodes, NodeStore
from steppe.flower.overhead import overhead
from steppe.runs import folder


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
    with locked(where):
        say = teller(where / LOG)
        status(where, "running", federation=charter.name, rounds=config.rounds)
        try:
            begun = (where / "config.json").exists()
            if begun and not resume:
                raise SteppeError(f"{where} already holds a run: resume it, or choose another folder with `out`.")
            result = federated(grid, charter, config, where, resume and begun, say)
        except SteppeError as error:
            say(f"error: {error}")
            status(where, "failed", why=str(error), code=error.exit_code)
            raise
        except Exception as error:
            status(where, "failed", why=f"{type(error).__name__}: {error}", code=RunFailed.exit_code)
            raise
        told = overhead(result.history, result.experiment.cost)
        folder.write_json(where / folder.DONE, {**result.summary, **({"nodes": told} if told else {})})
        status(where, "finished")
        return result


def federated(grid: Grid, charter: charters.Charter, config: Any, where: Path | None, resume: bool,
              say: Callable[[str], None]) -> Result:  # fmt: skip
    sample, test = described(charter, config)
    built = server_side(charter, config, sample, test)
    store = NodeStore(lambda: built.algorithm.client_state(built.task.x0))
    nodes = Nodes(grid, charter, built, sample, store, say)

    def watch(record: dict[str, Any]) -> None:
        if where is not None:
            built.federation.partition.save(where / "partition.json")  # with the sizes that the nodes have told
        # For Flower's log alone: the folder has the records.
        judged = f", accuracy {record['accuracy']:.4f}, loss {record['loss']:.4f}" if "accuracy" in record else ""
        print(f"steppe: round {record['round']}/{config.rounds}: {record['clients']} clients{judged}, "
              f"{record['seconds']['all']:.1f} s", flush=True)  # fmt: skip

    return simulate(built, where, resume, watch, say, executor=nodes, store=store)
