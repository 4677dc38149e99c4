"""The scripts and other texts in a federation's folder, from the templates of this package, and the ports in them."""

from __future__ import annotations

from typing import Any

from steppe.flower.app_hash import CODE
from steppe.flower.app_hash import FILE as HASH
from steppe.report.environments import make_environment

CONNECTION, PORT, CONTROL_PORT, NODE_PORT = "federation", 8000, 8001, 9094


def render(name: str, **facts: Any) -> str:
    """Return the text of a file of this name."""
    usual = {"connection": CONNECTION, "port": PORT, "control_port": CONTROL_PORT, "node_port": NODE_PORT,
             "hash_file": HASH, "file": CODE}  # fmt: skip
    return make_environment("steppe.flower").get_template(f"{name}.jinja").render(**usual, **facts)
