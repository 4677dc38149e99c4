"""A federation's folder, a node's data, and what the commands say."""

import json
import os
import ssl
import stat
import time
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from cryptography import x509
from flwr.cli.build import build_fab_from_disk
from typer.testing import CliRunner

import steppe
from steppe.cli.app import app
from steppe.cli.federate import make_display
from steppe.config import resolve
from steppe.core.cost import Cost
from steppe.core.errors import RunFailed, SteppeError
from steppe.engine.progress import Progress
from steppe.flower import launch as processes
from steppe.flower.certificates import write_node_key
from steppe.flower.create import init
from steppe.flower.federation_file import Sample, parse, read_federation_file
from steppe.flower.keys import bind, read_keys
from steppe.flower.node_data import read_data
from steppe.flower.node_state import NodeState
from steppe.flower.server_app import serve
from steppe.flower.server_status import STATUS, lock, write_status
from steppe.runs.folder import RunFolder
from tests.flower.memory import MemoryGrid, launch, node_folders, settings_of
from tests.scene import blobs, seeded

CONFIG = resolve({"clients": 2, "per_round": 2, "algorithm": "fedsmoo", "settings": {"rho": 0.2}, "clip": 3.0})
IMAGES = Sample(shape=[1, 8, 8], classes=2, class_names=["cat", "dog"], mean=[0.5], std=[0.5])


def test_rounds_are_shown_with_the_metric_of_the_run(tmp_path, capsys):
    def error(outputs, targets):
        return (outputs.argmax(1) != targets).float()

    result = steppe.run("fedavg", seeded(), blobs(), add="ema", metrics=[("error", error, "lower"), "accuracy"],
                        out=tmp_path, clients=2, per_round=2, rounds=2, partition="iid", progress=False)  # fmt: skip
    with Progress(2) as progress:
        progress.begin("fedavg")
        show = make_display(RunFolder(tmp_path), progress)
        show(result.history[-1])
    assert f"fedavg+ema  round 2/2  error {result.score:.4g}  loss" in capsys.readouterr().err


def command(*words):
    result = CliRunner().invoke(app, ["federate", *map(str, words)])
    return result.output if result.exception is None else str(result.exception)


def test_loopback_needs_no_certificates(tmp_path):
    init(tmp_path / "a b", CONFIG)
    scripts = {p.name: p.read_text() for p in tmp_path.glob("a b/**/*.sh")}
    assert set(scripts) == {"superlink.sh", "flwr.sh", "node.sh"}
    assert "--insecure" in scripts["superlink.sh"]
    assert "--host 127.0.0.1" in scripts["superlink.sh"]
    assert not list(tmp_path.glob("**/*.crt"))
    settings, config = read_federation_file(tmp_path / "a b" / "app")
    assert settings.name == "a-b"
    assert (config.algorithm, config.settings, config.clip) == ("fedsmoo", {"rho": 0.2}, 3.0)
    assert (config.clients, config.checkpoint_every) == (2, 1)
    with pytest.raises(SteppeError, match="already holds a federation"):
        init(tmp_path / "a b", CONFIG)


HOSTS = ["", "a b", "x;touch y", "$(touch y)", 'a"b', "a\nb", "::1", "a:8000", "-x", "a..b", "0.0.0.0", "1.1.1.999"]


@pytest.mark.parametrize("host", [*HOSTS, "é.example", "a" * 300])
def test_a_host_is_a_name_or_an_address(host, tmp_path):
    """It is written into shell scripts, which nodes run, and into a certificate."""
    with pytest.raises(SteppeError, match=r"^host is .* must be a name such as"):
        init(tmp_path / "f", CONFIG, host=host)
    assert not (tmp_path / "f").exists()


def test_a_long_name_fits_into_the_certificate(tmp_path):
    init(tmp_path / "f", CONFIG, host=".".join(["long" * 10] * 3))
    assert (tmp_path / "f/operator/server.crt").exists()


def test_half_a_federation_does_not_stay(tmp_path, monkeypatch):
    """The data set is missing, which only the nodes' shares need; what was there before stays."""
    monkeypatch.setenv("STEPPE_DATA", str(tmp_path))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").touch()
    for folder in (tmp_path / "new", tmp_path / "mine"):
        with pytest.raises(SteppeError, match="cifar10 is expected in"):
            init(folder, CONFIG.model_copy(update={"data": "cifar10"}))
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]
    assert [p.name for p in tmp_path.glob("mine/*")] == ["notes.txt"]
    (tmp_path / "mine/nodes").mkdir()
    with pytest.raises(SteppeError, match="mine already holds nodes, which a federation has too"):
        init(tmp_path / "mine", CONFIG)


def test_places_that_cannot_be_a_federation(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    for place in (Path("/"), tmp_path / "loop", tmp_path / "file"):
        with pytest.raises(SteppeError, match="cannot be the folder of a federation"):
            init(place, CONFIG)


def test_beyond_loopback_tls_and_node_keys_are_on(tmp_path):
    init(tmp_path, CONFIG, host="server.example.org")
    superlink, node = ((tmp_path / p).read_text() for p in ("operator/superlink.sh", "nodes/1/node.sh"))
    assert "--enable-supernode-auth" in superlink
    assert "--ssl-certfile" in superlink
    assert "--insecure" not in superlink + node
    assert "--auth-supernode-private-key key" in node
    assert '--superlink "${SUPERLINK:-server.example.org:8000}"' in node
    certificate = x509.load_pem_x509_certificate((tmp_path / "operator/server.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "server.example.org" in names.get_values_for_type(x509.DNSName)
    ssl.create_default_context(cafile=str(tmp_path / "nodes/1/ca.crt"))
    for secret in ("operator/server.key", "nodes/0/key", "nodes/1/key"):
        assert stat.S_IMODE((tmp_path / secret).stat().st_mode) == 0o600
    assert (tmp_path / "nodes/0/key").read_text() != (tmp_path / "nodes/1/key").read_text()


@pytest.mark.parametrize(("asked", "telemetry", "update_check"), [(False, "0", "1"), (True, "1", "0")])
def test_nothing_phones_home_unless_asked(asked, telemetry, update_check, tmp_path):
    init(tmp_path, CONFIG, telemetry=asked)
    for script in tmp_path.glob("**/*.sh"):
        assert f'FLWR_TELEMETRY_ENABLED="${{FLWR_TELEMETRY_ENABLED:-{telemetry}}}"' in script.read_text()
        assert f'FLWR_DISABLE_UPDATE_CHECK="${{FLWR_DISABLE_UPDATE_CHECK:-{update_check}}}"' in script.read_text()


def test_the_app_that_is_shipped_is_a_shim(tmp_path):
    """No data, no key, no record can travel with it: they lie elsewhere."""
    init(tmp_path, CONFIG, tls=True)
    with zipfile.ZipFile(BytesIO(build_fab_from_disk(tmp_path / "app"))) as fab:
        names = set(fab.namelist())
        code = b"".join(fab.read(n) for n in names if n.endswith(".py"))
    assert {"federation.toml", "steppe_app/client_app.py", "steppe_app/server_app.py"} <= names
    assert not [n for n in names if n.endswith((".npz", ".json", "key", ".crt"))]
    assert code.count(b"\n") < 15


def test_own_data(tmp_path):
    init(tmp_path, CONFIG, own_data=True)
    settings, config = read_federation_file(tmp_path / "app")
    assert settings.data is not None
    assert config.data == "nodes of " + settings.name
    assert not list(tmp_path.glob("nodes/*/data.npz"))


def image_folder(where, classes=("cat", "dog")):
    from PIL import Image

    for k, name in enumerate(classes):
        (where / name).mkdir(parents=True)
        for i in range(3):
            Image.fromarray(np.full((8, 8), 50 * k + i, np.uint8)).save(where / name / f"{i}.png")


def test_a_folder_of_images(tmp_path):
    """Numbers come from federation.toml's names, also where a node has one class only."""
    image_folder(tmp_path / "two")
    x, y = read_data(str(tmp_path / "two"), IMAGES, "client 0")
    assert x.shape == (6, 1, 8, 8)
    assert y.tolist() == [0, 0, 0, 1, 1, 1]
    assert int(x[4, 0, 0, 0]) == 51
    image_folder(tmp_path / "one", ["dog"])
    assert read_data(str(tmp_path / "one"), IMAGES, "client 0")[1].tolist() == [1, 1, 1]
    image_folder(tmp_path / "odd", ["bird"])
    with pytest.raises(SteppeError, match=r"has the class .bird., which is not among federation\.toml.s class_names"):
        read_data(str(tmp_path / "odd"), IMAGES, "client 0")
    (tmp_path / "none").mkdir()
    with pytest.raises(SteppeError, match="No image was found"):
        read_data(str(tmp_path / "none"), IMAGES, "client 0")
    with pytest.raises(SteppeError, match="no class_names under"):
        read_data(str(tmp_path / "two"), IMAGES.model_copy(update={"class_names": None}), "client 0")


def test_a_function_and_a_regression():
    ten = IMAGES.model_copy(update={"classes": 10, "class_names": None})
    x, y = read_data("tests.flower.own:few_samples", ten, "client 0")
    assert (len(x), len(y)) == (30, 30)
    numbers = Sample(shape=[3], inputs="float32", targets="float32")
    with pytest.raises(SteppeError, match="labels"):
        read_data("tests.flower.own:few_samples", ten.model_copy(update={"classes": 3}), "client 0")
    with pytest.raises(SteppeError, match="inputs of shape"):
        read_data("tests.flower.own:few_samples", numbers, "client 0")


def test_data_of_their_own_and_a_test_set_of_the_servers(tmp_path):
    """federation.toml describes a sample; the server has test data, or none."""
    terms = {"data": {"shape": [1, 8, 8], "classes": 10, "mean": [0.3], "std": [0.4]}}
    run = {"algorithm": "fedavg", "rounds": 1}
    grid = MemoryGrid(node_folders(tmp_path / "nodes", settings_of(run)[1]))
    result, _, _ = launch(tmp_path, run, grid=grid, terms=terms)
    assert "accuracy" not in result.history[0]
    assert result.summary["last"] is None
    json.dumps(result.summary, allow_nan=False)
    told, _, _ = launch(tmp_path, run, grid=grid, terms={**terms, "test": "tests.flower.own:few_samples"})
    assert 0 <= told.history[0]["accuracy"] <= 1
    assert torch.equal(told.server.x, result.server.x)


def test_states_survive_a_crash_at_any_moment(tmp_path, monkeypatch):
    """What is half written is never read, and what the server has counted is kept."""
    states = NodeState(tmp_path, "f", 0)
    first = {"p": {"c": torch.zeros(3)}}
    for stamp in range(6):
        before = states.read(stamp - 1, first)
        assert before["p"]["c"].tolist() == [float(stamp)] * 3
        states.write(stamp, stamp - 1, {"p": {"c": before["p"]["c"] + 1}})
    for again in range(2):  # a round that is repeated
        states.write(5, 4, {"p": {"c": states.read(4, first)["p"]["c"] + 1}})
        assert states.read(5, first)["p"]["c"].tolist() == [6.0] * 3, again
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        states.write(6, 5, {"p": {"c": torch.full((3,), 9.0)}})
    monkeypatch.undo()
    with pytest.raises(SteppeError, match="has lost the client's state of round 7"):
        states.read(6, first)
    assert states.read(5, first)["p"]["c"].tolist() == [6.0] * 3
    assert states.read(3, first)["p"]["c"].tolist() == [4.0] * 3  # the server may fall back by two checkpoints


def test_commands_say_what_to_do(tmp_path):
    where = tmp_path / "f"
    assert "is not a federation's folder" in command("status", where)
    assert "wrote" in command("init", where, "--nodes", 2, "--algorithm", "scaffold", "--rounds", 3)
    _, config = read_federation_file(where / "app")
    assert (config.algorithm, config.clients, config.per_round, config.rounds) == ("scaffold", 2, 2, 3)
    told = json.loads(command("status", where, "--json"))
    assert (told["server"], told["rounds_done"], told["superlink"]) == ("not started", 0, False)
    assert "already has its settings" in command("up", where, "--nodes", 3)
    assert "holds no run to resume" in command("resume", where)
    assert "did you mean 'scaffold'" in command("init", tmp_path / "g", "--algorithm", "scafold")
    assert not (tmp_path / "g").exists()
    assert "without TLS" in command("init", tmp_path / "h", "--host", "example.org", "--no-tls")
    assert "is for several machines, with its SuperLink on example.org" in command("up", tmp_path / "h")


def test_what_is_missing_is_not_passed_over(tmp_path, monkeypatch):
    """A folder of the version that let anybody in, and a federation with keys that has lost the list of them."""
    init(tmp_path / "f", CONFIG, tls=True)
    monkeypatch.chdir(tmp_path / "f")
    (tmp_path / "f/operator/keys.json").unlink()
    with pytest.raises(SteppeError, match=r"is missing: write it"):
        serve(MemoryGrid({}), tmp_path / "f/app", [], "out")
    script = tmp_path / "f/operator/superlink.sh"
    script.write_text("exec flower-superlink --host 0.0.0.0\n")
    with pytest.raises(SteppeError, match="created by an older version, whose SuperLink accepts anyone"):
        processes.Local(tmp_path / "f")


def test_keys_are_bound_to_clients_one_to_one(tmp_path):
    init(tmp_path, CONFIG, tls=True)
    first = read_keys(tmp_path)
    assert sorted(first) == [0, 1]
    assert first[0] != first[1]
    write_node_key(tmp_path / "nodes/1")
    bind(tmp_path, 1)
    assert read_keys(tmp_path)[1] != first[1]
    assert read_keys(tmp_path)[0] == first[0]
    (tmp_path / "nodes/1/key.pub").write_bytes((tmp_path / "nodes/0/key.pub").read_bytes())
    with pytest.raises(SteppeError, match="is already the key of client 0"):
        bind(tmp_path, 1)
    damaged = (tmp_path / "nodes/0/key.pub").read_text().replace("nistp384", "n\0stp384")
    for nonsense in ("ssh-rsa nonsense", damaged):
        (tmp_path / "nodes/1/key.pub").write_text(nonsense)
        with pytest.raises(SteppeError, match="is not a public key"):
            bind(tmp_path, 1)


def test_a_federation_is_its_owners_alone(tmp_path, monkeypatch):
    """Whatever the user's umask is."""
    before = os.umask(0o000)
    try:
        init(tmp_path / "f", CONFIG, tls=True)
        states = NodeState(tmp_path / "f/nodes/0/state", "f", 0)
        states.write(0, -1, {"p": {"c": torch.zeros(3)}})
    finally:
        os.umask(before)
    modes = {p: stat.S_IMODE(p.stat().st_mode) for p in [tmp_path / "f", *(tmp_path / "f").rglob("*")]}
    assert not [p for p, mode in modes.items() if mode & 0o077]


@pytest.mark.parametrize(("link", "told_of", "advice"), [
    (True, {}, False), (False, {}, True), (False, {"state": "finished"}, False), (False, {"pid": 2**22 + 1}, False),
    (False, None, False), (False, [1], False),
])  # fmt: skip
def test_a_server_that_lives_is_not_joined_by_another(link, told_of, advice, tmp_path, monkeypatch):
    """With its SuperLink it is at work; without it, nobody may ever end it. A status may be old, absent or damaged."""
    command("init", tmp_path / "f", "--nodes", 2)
    where = tmp_path / "f" / read_federation_file(tmp_path / "f/app")[0].out
    where.mkdir()
    (where / "config.json").write_text("{}")
    if isinstance(told_of, dict):
        write_status(where, "running")
        told_of = json.loads((where / STATUS).read_text()) | told_of
    if told_of is not None:
        (where / STATUS).write_text(json.dumps(told_of))
    monkeypatch.setattr(processes, "is_reachable", lambda host, port: link)
    with lock(where):
        told = command("resume", tmp_path / "f")
    assert "already running in" in told
    assert (f"kill -9 {os.getpid()}, then resume" in told, "kill" in told) == (advice, advice)


def test_two_commands_do_not_start_the_same_federation(tmp_path):
    """Each would delete the other's database and write its own ports."""
    command("init", tmp_path / "f", "--nodes", 2)
    with lock(tmp_path / "f/operator"):
        told = command("up", tmp_path / "f")
    assert "Another steppe federate up or resume is running in" in told
    assert not list(tmp_path.glob("f/operator/*.log"))
    assert stat.S_IMODE((tmp_path / "f/operator/server.lock").stat().st_mode) == 0o600


@pytest.mark.parametrize(("state", "alive", "why"), [
    ({"state": "failed", "why": "It diverged."}, "", "It diverged."),
    ({"state": "running"}, "", "The server's process has died."),
    ({"state": "running"}, "The SuperLink has stopped", "The SuperLink has stopped."),
])  # fmt: skip
def test_following_a_run_that_fails(state, alive, why, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(processes, "GONE", 0.0)
    write_status(tmp_path, **state)
    said = ["3 of 3 clients are connected: 0, 1, 2", f"error: {why}"]
    looks = iter([[]])  # nothing at first
    monkeypatch.setattr(processes, "read_lines", lambda _: next(looks, said))
    caplog.set_level("INFO", "steppe")
    with pytest.raises(RunFailed) as error:
        processes.follow(tmp_path, lambda _: None, lambda: alive)
    assert str(error.value) == why
    assert caplog.messages == said[:1]  # the error is told once


def test_following_a_run_that_goes_on(tmp_path):
    """Old rounds are not told again, an old status is not believed."""
    write_status(tmp_path, "failed", why="long ago")
    asked = time.time() + 1e-3
    for t in range(1, 4):
        RunFolder(tmp_path).append({"round": t})
    seen = []

    def alive():
        with lock(tmp_path):
            RunFolder(tmp_path).append({"round": 4})
            time.sleep(0.01)
            write_status(tmp_path, "finished")
        return ""

    processes.follow(tmp_path, seen.append, alive, asked, resume=True)
    assert [r["round"] for r in seen] == [4]
    assert json.loads((tmp_path / STATUS).read_text())["state"] == "finished"


def test_terms_reach_a_node_unchanged():
    from steppe.flower.federation_file import Terms, read_terms, write_terms

    settings = parse({"name": "x", "lost_state": "fresh", "run": {"clients": 2, "per_round": 1, "lr": 0.3}})
    cost = Cost(1.0, 2.0, 0.5, 1.0, 4, 8, 2, 1, 0, 100)
    terms = Terms(settings.name, settings.lost_state, settings.config(), IMAGES, cost)
    assert read_terms(write_terms(terms)) == terms
