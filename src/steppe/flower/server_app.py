"""The generic ServerApp: the same round loop as in simulation, with the nodes as its executor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from steppe.core.errors import RunFailed, SteppeError
from steppe.engine.rounds import Result, simulate
from steppe.flower import federation_file
from steppe.flower.build import build_server, describe_data
from steppe.flower.keys import read_keys
from steppe.flower.nodes import Nodes, NodeStore
from steppe.flower.overhead import measure
from steppe.flower.server_status import LOG, lock, teller, write_status
from steppe.runs import folder


def make(app_folder: Path) -> ServerApp:
    """The ServerApp of the federation whose federation.toml lies in this folder."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        asked = context.run_config
        serve(grid, app_folder, str(asked.get("set", "")).split(), str(asked.get("out", "")),
              bool(asked.get("resume", False)))  # fmt: skip

    return app


def serve(grid: Grid, app_folder: Path, sets: list[str], out: str = "", resume: bool = False) -> Result:
    """Run the federation; its folder tells how it stands, also when this process is killed."""
    settings, config = federation_file.read(app_folder, sets)
    where = Path(out or settings.out)
    where.mkdir(parents=True, exist_ok=True)
    with lock(where):
        say = teller(where / LOG)
        write_status(where, "running", federation=settings.name, rounds=config.rounds)
        try:
            begun = (where / "config.json").exists()
            if begun and not resume:
                raise SteppeError(f"{where} already holds a run: resume it, or choose another folder with `out`.")
            result = federated(grid, settings, config, where, resume and begun, say, read_keys(Path()))
        except SteppeError as error:
            say(f"error: {error}")
            write_status(where, "failed", why=str(error), code=error.exit_code)
            raise
        except Exception as error:
            write_status(where, "failed", why=f"{type(error).__name__}: {error}", code=RunFailed.exit_code)
            raise
        told = measure(result.history, result.experiment.cost)
        folder.write_json(where / folder.DONE, {**result.summary, **({"nodes": told} if told else {})})
        write_status(where, "finished")
        return result


def federated(grid: Grid, settings: federation_file.FederationFile, config: Any, where: Path | None, resume: bool,
              say: Callable[[str], None], keys: dict[int, str] | None = None) -> Result:  # fmt: skip
    """Play the rounds; `keys` says which node's key each client is."""
    sample, test = describe_data(settings, config)
    built = build_server(settings, config, sample, test)
    store = NodeStore(lambda: built.algorithm.client_state(built.task.x0))
    nodes = Nodes(grid, settings, built, sample, store, say, keys, where)

    def watch(record: dict[str, Any]) -> None:
        if where is not None:
            built.federation.partition.save(where / "partition.json")  # with the sizes that the nodes have told
        # For Flower's log alone: the folder has the records.
        judged = f", accuracy {record['accuracy']:.4f}, loss {record['loss']:.4f}" if "accuracy" in record else ""
        print(f"steppe: round {record['round']}/{config.rounds}: {record['clients']} clients{judged}, "
              f"{record['seconds']['all']:.1f} s", flush=True)  # fmt: skip

    return simulate(built, where, resume, watch, say, executor=nodes, store=store)
