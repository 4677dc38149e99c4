"""`steppe federate`: set up, run, inspect and resume a real federation on Flower."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steppe.cli import arguments, terminal
from steppe.cli.options import Add, ConfigFile, Debug, Json, Rounds, Set, app, take_number
from steppe.core.errors import SteppeError
from steppe.core.metric import show_loss
from steppe.engine.progress import Progress

log = logging.getLogger("steppe")
if TYPE_CHECKING:
    from steppe.config import Config
    from steppe.flower.launch import Local
    from steppe.runs.folder import RunFolder

federate = typer.Typer(no_args_is_help=True, help="Set up, run, inspect and resume a real federation on Flower.")
app.add_typer(federate, name="federate")

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the federation.")]
Nodes = Annotated[int | None, take_number("--nodes", "-n", help="Number of nodes, one per client (default: 3).")]
Algorithm = Annotated[str | None, typer.Option("--algorithm", "-a", help="Algorithm, as for steppe run.")]
Tls = Annotated[bool | None, typer.Option("--tls/--no-tls", help="Use TLS and one key per node (default: on, except on "
                                          "loopback).")]  # fmt: skip
Telemetry = Annotated[bool, typer.Option("--telemetry", help="Let Flower send its telemetry and check for updates.")]


@federate.command("init")
def init_(folder: Folder, nodes: Nodes = None, algorithm: Algorithm = None, config: ConfigFile = None, sets: Set = [],  # noqa: B006
          add: Add = [], rounds: Rounds = None,  # noqa: B006
          host: Annotated[str, typer.Option("--host", help="Name or address at which nodes reach the "
                                            "SuperLink.")] = "127.0.0.1",
          tls: Tls = None,
          own_data: Annotated[bool, typer.Option("--own-data", help="Nodes bring their own data; without this, "
                                                 "each gets a share of a named data set.")] = False,
          telemetry: Telemetry = False, debug: Debug = False) -> None:  # fmt: skip
    """Create a federation's folder: the app, scripts for the operator and the nodes, certificates for a trial."""
    from steppe.flower.create import init
    from steppe.flower.own_user import is_loopback

    if tls is False and not is_loopback(host):
        terminal.show(f"[bold]warning:[/] without TLS, anyone on the path to {terminal.escape(host)} can read the "
                      "updates, and any node may join")  # fmt: skip
    init(folder, _make_config(nodes, algorithm, config, sets, add, rounds), host, tls, own_data, telemetry=telemetry)
    here = f", or start everything on this machine: steppe federate up {folder}" if is_loopback(host) else ""
    terminal.show(f"wrote {folder}: see README.md there for the next steps{here}")


@federate.command()
def up(folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the federation; created if it does "
                                              "not exist.")] = Path("federation"),
       nodes: Nodes = None, algorithm: Algorithm = None, config: ConfigFile = None, sets: Set = [], add: Add = [],  # noqa: B006
       rounds: Rounds = None, tls: Tls = None, telemetry: Telemetry = False, as_json: Json = False,
       debug: Debug = False) -> None:  # fmt: skip
    """Start a SuperLink and SuperNodes on this machine, run the federation, show its rounds, and stop everything."""
    from steppe.flower.create import init
    from steppe.flower.federation_file import FILE

    if not (folder / "app" / FILE).exists():
        init(folder, _make_config(nodes, algorithm, config, sets, add, rounds), tls=tls, telemetry=telemetry)
    elif nodes or algorithm or config or sets or add or rounds is not None or tls is not None:
        raise SteppeError(f"{folder} already has its settings: edit {folder / 'app' / FILE}, or name another folder.")
    _play(folder, False, as_json)


@federate.command()
def resume(folder: Folder = Path("federation"), as_json: Json = False, debug: Debug = False) -> None:
    """Continue from the last finished round, with the running SuperLink or, on one machine, with a new one."""
    _play(folder, True, as_json)


@federate.command()
def pin(folder: Folder = Path("federation"), debug: Debug = False) -> None:
    """Write the app's hash to each node's folder: a node runs only the app with that hash."""
    from steppe.flower.create import pin

    read_folder(folder)
    terminal.show(f"nodes run only the app with hash {pin(folder)}")


@federate.command()
def register(folder: Folder = Path("federation"),
             client: Annotated[int | None, take_number("--client", min=0, help="Register only this client.")] = None,
             debug: Debug = False) -> None:  # fmt: skip
    """Bind each client to the key in nodes/<client>/key.pub, and register the keys with the running SuperLink."""
    from steppe.flower import launch

    clients = range(read_folder(folder).clients) if client is None else [client]
    for each in clients:
        launch.register(folder, each)
        terminal.show(f"client {each} is the node with the key nodes/{each}/key.pub")


@federate.command()
def status(folder: Folder = Path("federation"), as_json: Json = False, debug: Debug = False) -> None:
    """Show a federation's server, rounds and nodes."""
    from steppe.flower.status import read_federation

    told = read_federation(folder)
    if as_json:
        print(json.dumps(told, indent=1))
        return
    terminal.show(f"[bold]{terminal.escape(told['name'])}[/]: {told['algorithm']}, {told['clients']} clients; "
                  f"round {told['rounds_done']} of {told['rounds']}; {terminal.escape(told['server'])}")  # fmt: skip
    if told.get("metric") in told:
        terminal.show(f"{told['metric']} {told[told['metric']]:.4g}, {show_loss(told['loss'])}")
    terminal.show(f"SuperLink {told['address']}: {'running' if told['superlink'] else 'not running'}")
    for node in told["nodes"]:
        terminal.show(f"  node {node['id']}: {node['status']}")


def read_folder(folder: Path) -> Config:
    """Return a federation's configuration; refuse a folder that has none."""
    from steppe.flower.federation_file import read_federation_file

    return read_federation_file(folder / "app")[1]


def _make_config(nodes: int | None, algorithm: str | None, path: Path | None, sets: list[str], add: list[str],
            rounds: int | None) -> Config:  # fmt: skip
    """Return the configuration of a federation: one client per node, all in every round unless set otherwise."""
    from steppe.read_config import read_config_file
    from steppe.settings import parse_assignment

    given = {parse_assignment(text)[0] for text in sets} | set(read_config_file(path) if path else ())
    if nodes is not None or "clients" not in given:
        sets = [*sets, f"clients={nodes or 3}"]
    if "per_round" not in given:
        sets = [*sets, "per_round=1"]  # at most as many as there are clients
    chosen: Config = arguments.read_configuration(algorithm, path, sets, add, rounds)
    all_of_them = {} if "per_round" in given else {"per_round": chosen.clients}
    return chosen.model_copy(update=all_of_them | ({} if rounds is not None or "rounds" in given else {"rounds": 5}))


def _play(folder: Path, resume: bool, as_json: bool) -> None:
    """Run a federation, or continue it, with the SuperLink that is running or with one on this machine."""
    from steppe.flower import launch
    from steppe.flower.federation_file import read_federation_file
    from steppe.flower.server_status import lock
    from steppe.runs.folder import RunFolder, check_place

    settings, config = read_federation_file(folder / "app")
    where = folder / settings.out
    check_place(where)
    run = RunFolder(where)
    _check_run(folder, run, config, resume)
    running = _find_superlink(folder, where, resume)
    go_on = f"continue with: steppe federate resume {folder}"
    # Two would each delete the other's records and write its own addresses.
    alone = nullcontext() if running else lock(folder / "operator", "steppe federate up or resume")
    with alone, Progress(config.rounds) as progress:
        progress.begin(config.algorithm)
        local = None if running else launch.Local(folder)
        how = go_on if local is not None else f"the run itself continues: steppe federate status {folder}"
        try:
            with terminal.explain_interrupt(how):
                if local is not None:
                    _start(local, config.clients)
                asked = time.time()
                number = launch.submit(folder, resume)
                log.info(f"Flower's run {number} is submitted")
                if local is not None:
                    local.follow(make_display(run, progress), asked, resume)
                else:
                    launch.follow(where, make_display(run, progress), begun=asked, resume=resume)
        except SteppeError as error:
            begun = run.exists
            raise type(error)(f"{str(error).strip().rstrip('.')}{'; ' + go_on if begun else ''}.") from error
        finally:
            if local is not None:
                local.stop()
    _show_result(run, config, as_json)


def make_display(run: RunFolder, progress: Progress) -> Callable[[dict[str, Any]], None]:
    """Return what shows a round under the name and with the metric that the server has recorded."""

    def show(record: dict[str, Any]) -> None:
        progress.label, progress.metric = run.about.get("algorithm", progress.label), run.metric
        progress.round(record)

    return show


def _check_run(folder: Path, run: RunFolder, config: Config, resume: bool) -> None:
    """Refuse to start where there is a run, and to resume where there is none or nothing is left to do."""
    from steppe.flower.federation_file import FILE

    begun = run.exists
    if begun and not resume:
        done = run.finished
        raise SteppeError(
            f"{run} already holds a {'finished ' if done else ''}run: "
            + ("name another folder." if done else f"continue it with steppe federate resume {folder}.")
        )
    if resume and max((r["round"] for r in run.history), default=0) >= config.rounds > 0:
        raise SteppeError(f"{run} has finished its {config.rounds} rounds: to continue, raise rounds in "
                          f"{folder / 'app' / FILE}.")  # fmt: skip
    if resume and not begun:
        raise SteppeError(f"{run} holds no run to resume: start it with steppe federate up {folder}.")


def _find_superlink(folder: Path, where: Path, resume: bool) -> bool:
    """Return whether a SuperLink is running that a run can continue with; refuse what would need another one."""
    from steppe.flower.launch import is_reachable
    from steppe.flower.own_user import is_loopback
    from steppe.flower.server_status import find_server, is_alive
    from steppe.flower.status import find_address, find_control

    host, port = find_address(folder)
    running = resume and is_reachable(*find_control(folder))
    if is_alive(where):
        pid = find_server(where) if resume and not running else None
        gone = (f", but its SuperLink does not answer on {host}, port {port}: if it will not come back, end the server "
                f"with kill -9 {pid}, then resume.") if pid else f": steppe federate status {folder}."  # fmt: skip
        raise SteppeError(f"A server is already running in {where}{gone}")
    if not running and not is_loopback(host):
        raise SteppeError(f"The SuperLink of {folder} does not answer on {host}, port {port}: start "
                          f"it with {folder}/operator/superlink.sh, as README.md says step by step." if resume else
                          f"{folder} is for several machines, with its SuperLink on {host}: start it there with "
                          f"{folder}/operator/superlink.sh, as README.md says step by step.")  # fmt: skip
    return running


def _show_result(run: RunFolder, config: Config, as_json: bool) -> None:
    from steppe.engine.result import check_converged
    from steppe.flower.overhead import describe
    from steppe.runs.records import describe_score

    told, metric = run.read("result.json"), run.metric
    if as_json:
        print(json.dumps({"folder": str(run), **told}))
        check_converged(told, run)
        return
    judged = describe_score(told, metric) + (f", {show_loss(told['loss'])}" if told["metrics"] else "")
    name = terminal.escape(run.about.get("algorithm", config.algorithm))
    part = told.get("nodes", {}).get("samples", ())  # no names if participation is secret
    few = f"{len(part)} of " if 0 < len(part) < config.clients else ""
    terminal.show(f"[bold]{name}[/] on {few}{config.clients} nodes: {judged} after {told['rounds']} rounds, "
                  f"{told['seconds']:.1f} s")  # fmt: skip
    for line in describe(told["nodes"]) if "nodes" in told else []:
        terminal.show(line)
    terminal.show(f"records and model are in {run}")
    check_converged(told, run)


def _start(local: Local, clients: int) -> None:
    from steppe.flower.create import pin
    from steppe.flower.launch import register as register_key

    pin(local.folder)  # the operator starts the nodes here, and so chooses their app
    log.info(f"starting a SuperLink on 127.0.0.1:{local.port} and {clients} SuperNodes"
                 f"{', with TLS and node keys' if local.tls else ''}")  # fmt: skip
    local.start_superlink(fresh=True)
    for client in range(clients):
        if local.tls:
            register_key(local.folder, client)
        local.start_node(client)
