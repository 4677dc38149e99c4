"""The status of a federation, from its folder and, if its SuperLink is running, from Flower."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from steppe.flower.federation_file import read_federation_file
from steppe.flower.launch import is_reachable, parse_json, run_flwr
from steppe.flower.scripts import CONNECTION, CONTROL_PORT, PORT
from steppe.flower.server_status import is_alive, read_status
from steppe.runs.folder import RunFolder


def find_address(folder: Path) -> tuple[str, int]:
    """Return the SuperLink's current or last address for nodes."""
    try:
        host, _, port = (folder / "operator" / "address").read_text().strip().rpartition(":")
        return host, int(port)
    except (OSError, ValueError):
        return "127.0.0.1", PORT


def find_control(folder: Path) -> tuple[str, int]:
    """Return the SuperLink's address for the operator, on the same machine."""
    try:
        told = tomllib.loads((folder / "operator" / ".flower" / "config.toml").read_text())
        host, _, port = told["superlink"][CONNECTION]["address"].rpartition(":")
        return host, int(port)
    except (OSError, LookupError, ValueError, TypeError, AttributeError, RecursionError):
        return "127.0.0.1", CONTROL_PORT


def read_federation(folder: Path) -> dict[str, Any]:
    settings, config = read_federation_file(folder / "app")
    where = folder / settings.out
    history, state, alive = RunFolder(where).history, read_status(where), is_alive(where)
    said = str(state.get("state"))
    server = {"running": "the server is running" if alive else "the server has died: resume the run",
              "failed": f"failed: {state.get('why', '')}", "finished": "finished"}.get(said, "not started")  # fmt: skip
    host, port = find_address(folder)
    running = is_reachable(*find_control(folder))
    told: dict[str, Any] = {
        "name": settings.name, "algorithm": config.algorithm, "clients": config.clients, "rounds": config.rounds,
        "rounds_done": history[-1]["round"] if history else 0, "server": server, "address": f"{host}:{port}",
        "superlink": running, "nodes": _list_nodes(folder) if running else [],
    }  # fmt: skip
    if not history:
        return told
    names = [m.name for m in RunFolder(where).metrics]
    name = names[0]
    judged: dict[str, Any] = next((r for r in reversed(history) if name in r), {})
    return told | {"metric": name} | {k: judged[k] for k in (*names, "loss") if k in judged}


def _list_nodes(folder: Path) -> list[dict[str, str]]:
    told = parse_json(run_flwr(folder, "supernode", "list", CONNECTION, "--format", "json").stdout)
    return [{"id": str(n.get("node-id")), "status": str(n.get("status"))} for n in told.get("nodes", [])]
