"""Create a federation's folder: an app for `flwr run`, scripts and configs for the operator and each node, a README.

app/        what Flower ships to the nodes: a few lines of Python and federation.toml
operator/   the SuperLink's script, certificates and database; the owner of each key; how to submit a run
nodes/0/    everything that one node needs: its script, its key, the CA's certificate, the hash of the only app that it
            runs; its data and its client's state
run/        the records of the run
"""

from __future__ import annotations

import ipaddress
import json
import re
import shlex
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

from steppe.config import Config
from steppe.core.errors import SteppeError, make_missing_error, quote
from steppe.core.inputs import take
from steppe.data import load
from steppe.data.divide import divide
from steppe.flower import keys
from steppe.flower.app_hash import FILE as HASH
from steppe.flower.app_hash import hash_app
from steppe.flower.federation_file import FILE, FederationFile, parse
from steppe.flower.own_files import PACKAGE, take_files
from steppe.flower.own_user import is_loopback
from steppe.flower.private_files import write_private
from steppe.flower.scripts import CONNECTION, CONTROL_PORT, PORT, render
from steppe.runs.folder import check_place

WRITTEN = "app", "operator", "nodes", "README.md"  # the last is written last
HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}(\.[A-Za-z0-9_][A-Za-z0-9_-]{0,62})*")


def init(folder: Path, config: Config, host: str = "127.0.0.1", tls: bool | None = None, own_data: bool = False,
         name: str | None = None, telemetry: bool = False, **terms: Any) -> None:  # fmt: skip
    """Write the folder; `config.clients` is the number of nodes. TLS and node keys are used beyond loopback."""
    check_place(folder, "a federation")
    check_host(host)
    if (folder / "app" / FILE).exists():
        raise SteppeError(f"{folder} already holds a federation: choose another folder.")
    if taken := [name for name in WRITTEN if (folder / name).exists()]:
        raise SteppeError(f"{folder} already holds {taken[0]}, which a federation has too: choose another folder.")
    version = _find_flower_version()
    tls = not is_loopback(host) if tls is None else tls
    facts = {"host": host, "loopback": is_loopback(host), "tls": tls, "telemetry": telemetry, "own_data": own_data}
    config, files, loads = take_files(config)
    content = _format_federation_file(config, name or folder.resolve().name, own_data, terms, loads)
    parse(tomllib.loads(content)).config()  # before anything is written
    made = not folder.exists()
    try:
        with write_private():
            _write_app(folder / "app", version, content)
            for file, path in files.items():
                (folder / "app" / PACKAGE / file).write_bytes(path.read_bytes())
            operator = folder / "operator"
            operator.mkdir()
            if tls:
                from steppe.flower.certificates import write_certificates

                write_certificates(operator, list(dict.fromkeys([host, "localhost", "127.0.0.1"])))
            connect(folder, host, PORT, CONTROL_PORT)
            for script in ("superlink.sh", "flwr.sh"):
                _write_script(operator / script, **facts)
            for client in range(config.clients):
                _write_node(folder / "nodes" / str(client), operator, client=client, **facts)
                if tls:
                    keys.bind(folder, client)
            if not own_data:
                write_shares(folder, config)
            pin(folder)
            here = shlex.quote(str(folder))
            (folder / "README.md").write_text(render("README.md", config=config, here=here, **facts))
    except BaseException:  # half a federation would be refused as one that exists
        for name in WRITTEN:
            shutil.rmtree(folder if made else folder / name, ignore_errors=True)
        raise


def check_host(host: str) -> None:
    """Refuse what is neither a name nor an IPv4 address: it is written into scripts and a certificate."""
    try:
        right = ipaddress.IPv4Address(host) != ipaddress.IPv4Address(0)
    except ValueError:
        right = HOST.fullmatch(host) is not None and len(host) <= 253 and not host.rpartition(".")[2].isdigit()
    if not right:
        raise SteppeError(f"host is {quote(host)}, but must be a name such as server.example.org or an IPv4 address, "
                          "by which nodes reach the SuperLink, without a port.")  # fmt: skip


def _write_app(app: Path, version: str, content: str) -> None:
    code = app / PACKAGE
    code.mkdir(parents=True)
    (code / "__init__.py").write_text('"""The app that Flower ships: everything else is in the package steppe."""\n')
    for side in ("client", "server"):
        text = f"from pathlib import Path\n\nfrom steppe.flower.{side}_app import make\n\n"
        (code / f"{side}_app.py").write_text(text + "app = make(Path(__file__).parent.parent)\n")
    (app / "LICENSE").write_text("This app was generated for its operator, who may use it without restriction.\n")
    (app / "pyproject.toml").write_text(render("pyproject.toml", version=version))
    (app / FILE).write_text(content)


def _write_node(folder: Path, operator: Path, **facts: Any) -> None:
    folder.mkdir(parents=True)
    if facts["tls"]:
        from steppe.flower.certificates import write_node_key

        write_node_key(folder)
        shutil.copy(operator / "ca.crt", folder / "ca.crt")
    _write_script(folder / "node.sh", **facts)


def pin(folder: Path) -> str:
    """Write the app's hash to every node's folder, so that the nodes run only this app; return the hash."""
    found = hash_app(folder / "app")
    with write_private():
        for node in folder.glob("nodes/*/"):
            (node / HASH).write_text(found + "\n")
    return found


def write_shares(folder: Path, config: Config) -> None:
    """Give each node its share of a known data set, for a trial, by the run's partition rule."""
    data = load(config.data, config.data_folder)
    split = divide(data, config.partition, config.clients, config.partition_stream)[1]
    for client, mine in enumerate(split.clients):
        x, y = take(data.train_inputs, mine), data.train_targets[mine]
        np.savez(folder / "nodes" / str(client) / "data.npz", x=x.numpy(), y=y.numpy())


def connect(folder: Path, host: str, port: int, control: int) -> None:
    """Record the address of the SuperLink for nodes, and configure the control address of Flower's command line."""
    operator = folder.resolve() / "operator"
    home = operator / ".flower"
    with write_private():
        home.mkdir(parents=True, exist_ok=True)
        (operator / "address").write_text(f"{host}:{port}\n")
        certificate = operator / "ca.crt"
        safe = f"root-certificates = {json.dumps(str(certificate))}" if certificate.exists() else "insecure = true"
        (home / "config.toml").write_text(f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
                                          f'address = "127.0.0.1:{control}"\n{safe}\n')  # fmt: skip


def _write_script(path: Path, **facts: Any) -> None:
    path.write_text(render(path.name, **facts))
    path.chmod(0o700)


def _find_flower_version() -> str:
    from importlib import metadata

    try:
        return metadata.version("flwr")
    except metadata.PackageNotFoundError:
        raise make_missing_error("A federation needs Flower", "flower") from None


def _format_federation_file(config: Config, name: str, own_data: bool, terms: dict[str, Any], loads: list[str]) -> str:
    """Return federation.toml with every key explained; keys with default values are comments."""
    given = {"name": _make_safe(name), **terms}
    lines = ["# The federation's settings. The server reads this file and sends nodes what they need."]
    for key, field in FederationFile.model_fields.items():
        if key in ("run", "data", "own"):
            continue
        value = given.get(key, field.default)
        shown = f"{key} = {_format_toml(value)}" if value is not None else f"{key} ="
        lines.append(f"{'' if key in given else '# '}{shown}  # {field.description}")
    defaults = Config.model_validate({})
    kept = {k: v for k, v in config.model_dump(mode="json").items() if v is not None and v != getattr(defaults, k)}
    always = {k: getattr(config, k) for k in ("algorithm", "clients", "per_round", "rounds", "model")}
    always |= {} if own_data else {"data": config.data, "partition": config.partition}
    dropped = ("data", "partition") if own_data else ()
    lines += ["", "[run]  # keys of `steppe run`"]
    lines += [f"{k} = {_format_toml(v)}" for k, v in {**always, **kept}.items() if k not in dropped]
    if own_data:
        lines += ["", "[data]  # the nodes' samples; every node's data are checked against this", "shape = [1, 28, 28]",
                  "classes = 10", '# class_names = ["cat", "dog"]  # needed by folders of images',
                  "mean = [0.5]  # mean of each channel, in units of 0..1", "std = [0.5]"]  # fmt: skip
    own = [f"loads = {_format_toml(loads)}  # your own code that [run] names; nodes load nothing else"] if loads else []
    lines += ["", f"{'' if own else '# '}[own]  # your Python, in app/ or installed on every machine", *own,
              '# model = "steppe_app.own:model"',
              '# parts = "steppe_app.own:parts"']  # fmt: skip
    return "\n".join(lines) + "\n"


def _format_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_format_toml(v)}" for k, v in value.items() if v is not None) + " }"
    return json.dumps(value)


def _make_safe(name: str) -> str:
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in name).lstrip("._-")
    return kept[:64] or "federation"
