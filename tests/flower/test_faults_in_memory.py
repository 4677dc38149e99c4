"""What goes wrong in a federation, one thing at a time, on a grid in memory: who is counted, and from which state."""

import math
import time

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.app.message.message import make_message
from flwr.common.constant import ErrorCode
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from steppe.core.errors import RunFailed, SteppeError
from steppe.flower import client_app, nodes, roll_call
from steppe.flower.federation_file import FederationFile, parse
from steppe.flower.refusals import REASONS, Refusal
from steppe.flower.server_app import serve
from steppe.flower.server_status import is_alive, lock
from steppe.runs.folder import RunFolder
from tests.flower.memory import USUAL, MemoryGrid, launch, node_folders, replay, settings_of, states_on_disk

ALL = {"algorithm": "scaffold", "per_round": 3}


class Spoiler:
    """Does something to one client's reply to one round's work; that of the others passes."""

    def __init__(self, client, round_, change):
        self.client, self.round, self.change = client, round_, change

    def __call__(self, message, node):
        told = message.content.config_records.get("facts", {})
        if told.get("client") == self.client and told.get("round") == self.round:
            return self.change(message)
        return message


def changed(**told):
    def change(message):
        message.content["facts"] = ConfigRecord({**message.content["facts"], **told})
        return message

    return change


def arrays(edit):
    def change(message):
        record = {k: v.numpy().copy() for k, v in message.content["arrays"].items()}
        message.content["arrays"] = ArrayRecord({k: Array(v) for k, v in edit(record).items()})
        return message

    return change


def nan(record):
    record["update"][3] = float("nan")
    return record


def inf(record):
    record["up/control_variates/dc"][5] = float("inf")
    return record


def lies_about_shape(message):
    good = message.content["arrays"]["update"]
    other = Array(good.numpy()[:-1])
    message.content["arrays"]["update"] = Array(good.dtype, good.shape, good.stype, other.data)
    return message


def instead(other):
    def change(message):
        content, error = (None, other) if isinstance(other, Error) else (other, None)
        return make_message(message.metadata, content, error)

    return change


BAD = {
    "nan": (arrays(nan), "its update is not finite"),
    "inf beside the update": (arrays(inf), "its update is not finite"),
    "wrong shape": (arrays(lambda r: r | {"update": r["update"][:-1]}), "must have (55210,) and float64"),
    "wrong type": (arrays(lambda r: r | {"update": r["update"].astype("float32")}), "type 'float32'"),
    "a shape that is not what its header says": (lies_about_shape, "does not match its header"),
    "an array too many": (arrays(lambda r: r | {"x": r["update"]}), "not those of the algorithm: 'x'"),
    "an array too few": (arrays(lambda r: {"update": r["update"]}), "not those of the algorithm"),
    "a stale round": (changed(round=0), "is for round 0, but 1 was requested"),
    "another algorithm": (changed(fingerprint="0123456789abcdef"), "is for fingerprint '0123456789abcdef'"),
    "another client": (changed(client=0), "is for client 0, but 1 was requested"),
    "another federation": (changed(federation="elsewhere"), "is for federation 'elsewhere'"),
    "a loss of nan": (changed(loss=float("nan")), "its loss is nan"),
    "too long": (arrays(lambda r: r | {"update": r["update"] * 1e6}), "above the limit of 1000"),
    "something else": (instead(RecordDict({"hello": ConfigRecord({"a": 1})})), "a different program"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_reply_is_refused_named_and_never_averaged(kind, tmp_path):
    change, why = BAD[kind]
    run = {**ALL, "refuse_above": 1000.0}
    result, _, told = launch(tmp_path, run, Spoiler(1, 1, change))
    _, config = settings_of(run)
    rounds = [result.experiment.sample(t) for t in range(3)]
    rounds[1] = [i for i in rounds[1] if i != 1]
    server, store = replay(config, rounds)
    assert torch.equal(result.server.x, server.x)
    (named,) = result.history[1]["refused"]
    assert named["client"] == 1
    assert why in named["why"]
    assert result.summary["refused"] == 1
    assert any(t.startswith("round 2: client 1 was refused: ") and why in t for t in told)
    # In round 3 the client went on from the state of round 1, as the server's control variate did.
    assert torch.equal(
        states_on_disk(tmp_path / "nodes")[1][2]["control_variates/c"], store.rows[1]["control_variates"]["c"]
    )


@pytest.mark.parametrize("algorithm", ["scaffold", "fedscar"])  # FedScar's broadcast depends on who will reply
def test_a_late_reply_is_dropped_and_leaves_no_trace(tmp_path, algorithm):
    run = {**ALL, "algorithm": algorithm}
    result, _, told = launch(tmp_path, run, Spoiler(1, 1, lambda _: None))
    _, config = settings_of(run)
    rounds = [result.experiment.sample(t) for t in range(3)]
    server, _ = replay(config, [rounds[0], [i for i in rounds[1] if i != 1], rounds[2]])
    assert torch.equal(result.server.x, server.x)
    assert "round 2: no reply from client 1" in told
    assert result.history[1]["dropped"] == [1]
    assert result.summary["missing"] == 1


def test_an_error_of_flower_is_told(tmp_path):
    result, _, told = launch(tmp_path, ALL, Spoiler(1, 1, instead(Error(3, "out of memory"))))
    assert "round 2: client 1: Flower reports: message unavailable" in told  # never the text of Flower, which quotes it
    assert [r.get("dropped") for r in result.history] == [None, [1], None]


def test_a_node_that_was_away_when_it_was_asked_is_asked_again(tmp_path):
    """After a crash of the SuperLink, Flower first takes dead nodes for alive, and then says that they are not."""
    away = {"left": 1}

    def spoil(message, node):
        if away["left"] and message.metadata.message_type == "query":
            away["left"] -= 1
            return instead(Error(ErrorCode.NODE_UNAVAILABLE, "no heartbeat"))(message)
        return message

    result, grid, told = launch(tmp_path, ALL, spoil)
    assert [kind for kind, _ in grid.log].count("query") == 4
    assert [r["clients"] for r in result.history] == [3, 3, 3]
    assert not [t for t in told if "does not take part" in t]


class Dies(BaseException):
    """As a kill would be: nothing of ours catches it."""


@pytest.mark.parametrize("when", ["before the nodes work", "after the nodes worked"])
def test_resume_counts_nothing_twice(when, tmp_path, monkeypatch):
    """The server dies in its third round, also when the nodes have already written their new states."""
    settings, config = settings_of({**ALL, "rounds": 5})
    grid = MemoryGrid(node_folders(tmp_path / "nodes", config))
    push = grid.push_messages

    def dangerous(messages):
        messages = list(messages)
        last = messages[0].metadata.group_id == "3" and messages[0].metadata.message_type == "train"
        ids = push(messages) if not last or when.startswith("after") else []
        if last:
            raise Dies
        return ids

    app = write_federation(tmp_path, settings)
    grid.push_messages = dangerous
    out = tmp_path / "run"
    with pytest.raises(Dies):
        serve(grid, app, [], str(out))
    assert len(RunFolder(out).history) == 2
    assert not is_alive(out)
    if when.startswith("after"):
        assert 2 in states_on_disk(tmp_path / "nodes")[0]
    grid.push_messages = push
    result = serve(grid, app, [], str(out), resume=True)
    server, _ = replay(config, [result.experiment.sample(t) for t in range(5)])
    assert torch.equal(result.server.x, server.x)
    assert [r["round"] for r in RunFolder(out).history] == [1, 2, 3, 4, 5]


def write_federation(tmp_path, settings: FederationFile):
    import json

    app = tmp_path / "app"
    app.mkdir()
    run = "\n".join(f"{k} = {json.dumps(v)}" for k, v in settings.run.items())
    (app / "federation.toml").write_text(f'name = "test"\ndeadline = 0.5\nwait = 1.0\n[run]\n{run}\n')
    return app


def test_two_servers_do_not_share_a_folder(tmp_path):
    settings, config = settings_of({"algorithm": "fedavg", "rounds": 1})
    app, out = write_federation(tmp_path, settings), tmp_path / "run"
    grid = MemoryGrid(node_folders(tmp_path / "nodes", config))
    out.mkdir()
    with lock(out):
        assert is_alive(out)
        with pytest.raises(SteppeError, match="Another server is running"):
            serve(grid, app, [], str(out))
    serve(grid, app, [], str(out))
    with pytest.raises(SteppeError, match="already holds a run"):
        serve(grid, app, [], str(out))
    with pytest.raises(SteppeError, match=r"started with other settings: lr was 0\.05 and is 0\.1"):
        serve(grid, app, ["lr=0.1"], str(out), resume=True)
    assert serve(grid, app, ["rounds=2"], str(out), resume=True).summary["rounds"] == 2


def test_a_node_that_comes_back_under_another_number_keeps_its_control_variate(tmp_path):
    """Without keys, Flower gives a restarted node a new id."""
    _, config = settings_of(ALL)
    grid = MemoryGrid(node_folders(tmp_path / "nodes", config))
    old = next(n for n, c in grid.configs.items() if c["client"] == 2)

    def restart(message, node):
        if message.metadata.group_id == "1" and node == old:
            grid.configs[4242] = grid.configs.pop(old)
        return message

    grid.spoil = restart
    result, _, _ = launch(tmp_path, ALL, grid=grid)
    server, _ = replay(config, [result.experiment.sample(t) for t in range(3)])
    assert torch.equal(result.server.x, server.x)
    assert ("train", 4242) in grid.log


def test_a_node_that_restarts_is_admitted_when_flower_notices_that_the_old_one_is_gone(tmp_path):
    """Until then two nodes claim the same client, and the new one is refused."""
    grid = MemoryGrid(node_folders(tmp_path / "nodes", settings_of(ALL)[1]))
    old = next(n for n, c in grid.configs.items() if c["client"] == 2)

    def restart(message, node):
        round_ = message.metadata.group_id
        if round_ == "1":
            grid.configs.setdefault(4242, grid.configs[old])
        if round_ == "3" and node == old:
            del grid.configs[old]
        return None if round_ in ("2", "3") and node == old else message  # it is dead

    grid.spoil = restart
    result, _, told = launch(tmp_path, {**ALL, "rounds": 7}, grid=grid)
    assert len([t for t in told if "it claims to be client 2" in t]) == 1
    assert result.history[-1]["clients"] == 3


def test_a_lost_state_is_noticed(tmp_path):
    """A disk that was wiped must not become a control variate of zero without anybody knowing."""
    import shutil

    _, config = settings_of(ALL)
    grid = MemoryGrid(node_folders(tmp_path / "nodes", config))

    def wipe(message, node):
        if message.metadata.group_id == "1" and grid.configs[node]["client"] == 0:
            shutil.rmtree(grid.configs[node]["state"])
        return message

    grid.spoil = wipe
    result, _, told = launch(tmp_path, ALL, grid=grid)
    assert any(t.startswith("round 2: client 0 was refused: it has lost its client's state") for t in told)
    assert [r["clients"] for r in result.history] == [3, 2, 2]
    again = MemoryGrid({n: {**c, "state": c["state"] + "-again"} for n, c in grid.configs.items()}, None)
    again.spoil = lambda m, n: (shutil.rmtree(again.configs[n]["state"], ignore_errors=True), m)[1]
    fresh, _, _ = launch(tmp_path, ALL, grid=again, terms={"lost_state": "fresh"})
    assert [r["clients"] for r in fresh.history] == [3, 3, 3]


@pytest.mark.parametrize(("change", "why"), [
    ({"data": "{here}/missing.npz"}, "data"), ({"data": "{here}/empty.npz"}, "empty"),
    ({"data": "{here}/labels.npz"}, "classes"), ({"data": "{here}/shape.npz"}, "samples"),
    ({"data": "{here}/floats.npz"}, "samples"), ({"data": "{here}/names.npz"}, "data"),
    ({"data": "{here}/uneven.npz"}, "samples"), ({"data": "{here}/torn.npz"}, "data"),
    ({"data": "{here}/patient-4711"}, "classes"), ({"data": "nowhere:at_all"}, "data"),
    ({"data": "just words"}, "data"), ({"data": "tests.flower.own:broken"}, "data"), ({"data": None}, "config"),
    ({"client": 7}, "client"), ({"client": "one"}, "client"), ({"client": -1}, "client"),
], ids=lambda v: "-".join(map(str, v.values())) if isinstance(v, dict) else "")  # fmt: skip
def test_what_is_wrong_with_a_node_reaches_the_operator_without_its_details(change, why, tmp_path, capfd):
    """A code goes up, and our sentence for it; paths, names and texts of exceptions stay in the node's log."""
    _, config = settings_of({"algorithm": "fedavg"})
    configs = node_folders(tmp_path / "nodes", config)
    x = np.zeros((4, 1, 8, 8), np.uint8)
    files = {"empty": {"x": x[:0], "y": np.arange(0)}, "labels": {"x": x, "y": np.array([0, 1, 2, 10])},
             "shape": {"x": x[:, :, :4, :4], "y": np.arange(4)}, "floats": {"x": x.astype("f4"), "y": np.arange(4)},
             "names": {"x": x}, "uneven": {"x": x, "y": np.arange(3)}}  # fmt: skip
    for name, content in files.items():
        np.savez(tmp_path / f"{name}.npz", **content)
    (tmp_path / "torn.npz").write_bytes((tmp_path / "empty.npz").read_bytes()[:50])
    (tmp_path / "patient-4711" / "ward").mkdir(parents=True)
    node = next(n for n, c in configs.items() if c["client"] == 1)
    configs[node] |= {k: v.replace("{here}", str(tmp_path)) if isinstance(v, str) else v for k, v in change.items()}
    grid = MemoryGrid({n: {k: v for k, v in c.items() if v is not None} for n, c in configs.items()})
    began = time.monotonic()
    with pytest.raises(RunFailed) as error:
        launch(tmp_path, {"algorithm": "fedavg"}, grid=grid, terms={"wait": 600.0})
    assert f"node {node}: {REASONS[why]}" in str(error.value)
    assert time.monotonic() - began < 300  # it did not wait for a node that had already said no
    secrets = [str(tmp_path), "patient", ".npz", "ward", "nowhere", "just words", "ValueError", "Error("]
    told = str(error.value) + repr(grid.sent_up)
    assert not [s for s in secrets if s in told], told
    logged = capfd.readouterr()
    assert "steppe: " in logged.out or "Traceback" in logged.err


@pytest.mark.parametrize("when", ["introduction", "training"])
def test_an_exception_on_a_node_tells_nothing(when, tmp_path, monkeypatch):
    """Also when it comes from deep inside, and quotes what it should not."""
    from steppe.flower import client_app

    def fail(*_, **__):
        raise OSError(5, "cannot read patient 4711", "/home/ward/7/scan.npz")

    monkeypatch.setattr(client_app, "read_data" if when == "introduction" else "train_client", fail)
    grid = MemoryGrid(node_folders(tmp_path / "nodes", settings_of(ALL)[1]))
    with pytest.raises(RunFailed, match="an unexpected error occurred there") as error:
        launch(tmp_path, ALL, grid=grid)
    assert not [s for s in ("patient", "ward", "scan", "OSError") if s in str(error.value) + repr(grid.sent_up)]


def test_fewer_nodes_than_asked(tmp_path):
    _, config = settings_of({"algorithm": "fedavg"})
    configs = node_folders(tmp_path / "nodes", config)
    del configs[next(n for n, c in configs.items() if c["client"] == 2)]
    text = "3 nodes are needed and 2 can take part after 1 s: no node for client 2. Start these nodes"
    with pytest.raises(RunFailed, match=text):
        launch(tmp_path, {"algorithm": "fedavg"}, grid=MemoryGrid(configs))
    result, _, _ = launch(tmp_path, {"algorithm": "fedavg", "per_round": 3}, grid=MemoryGrid(configs),
                             terms={"enough": 2})  # fmt: skip
    assert [r["clients"] for r in result.history] == [2, 2, 2]
    with pytest.raises(RunFailed, match=r"3 of this round's clients .* are needed, but 2 are connected after 1 s"):
        launch(tmp_path, {"algorithm": "fedavg", "per_round": 3}, grid=MemoryGrid(configs),
               terms={"enough": 2, "least": 3})  # fmt: skip


def test_too_few_good_replies_end_the_run_with_their_reasons(tmp_path):
    with pytest.raises(RunFailed, match=r"round 2: 2 good replies, but at least 3 are needed.*client 1: its update is"):
        launch(tmp_path, ALL, Spoiler(1, 1, arrays(nan)), terms={"least": 3})


def test_a_round_that_loses_all_its_nodes_is_tried_again(tmp_path):
    """Such as when the network was away: the model is that of an undisturbed run, and nothing is counted twice."""
    lost = []

    def away(message, node):
        if message.content.config_records.get("facts", {}).get("round") == 1 and len(lost) < 3:
            return lost.append(node)
        return message

    result, grid, said = launch(tmp_path, ALL, away, terms={"wait": 20.0})
    assert len(set(lost)) == 3
    assert [r["clients"] for r in result.history] == [3, 3, 3]
    assert len([line for line in said if line.endswith("The round is repeated.")]) == 1
    assert [kind for kind, _ in grid.log].count("train") == 12
    right, _ = replay(settings_of(ALL)[1], [r["participants"] for r in result.history])
    assert torch.equal(result.server.x, right.x)
    assert all(0 <= r["nodes"]["overhead"] < 60 for r in result.history)


def test_nodes_that_take_their_time_to_answer_who_they_are(tmp_path):
    """The answer comes after some looks, and the question is not asked again."""
    grid = MemoryGrid(node_folders(tmp_path / "nodes", settings_of(ALL)[1]))
    pull, looks = grid.link.PullMessages, []

    def slowly(request):
        looks.append(request)
        return PullAppMessagesResponse() if len(looks) < 3 else pull(request)

    grid.link.PullMessages = slowly
    launch(tmp_path, {**ALL, "rounds": 1}, grid=grid, terms={"wait": 20.0})
    assert [kind for kind, _ in grid.log].count("query") == 3


def test_a_refused_node_that_is_asked_again_may_take_its_time(tmp_path, monkeypatch):
    """Its problem is fixed, but it needs longer for its answer than the server waits between two looks."""
    monkeypatch.setattr(roll_call, "AGAIN", 0.5)
    for module in (roll_call, nodes):
        monkeypatch.setattr(module, "POLL", 0.05)
    grid = MemoryGrid(node_folders(tmp_path / "nodes", settings_of(ALL)[1]))
    pull, looks = grid.link.PullMessages, {}
    node = next(n for n, c in grid.configs.items() if c["client"] == 1)
    number, grid.configs[node]["client"] = 1, 7

    def slowly(request):
        grid.configs[node]["client"] = number  # after the first answer
        for question in request.message_ids:
            looks[question] = looks.get(question, 0) + 1
        ready = [q for q in request.message_ids if looks[q] > 3]
        return pull(type(request)(message_ids=ready))

    grid.link.PullMessages = slowly
    result, _, told = launch(tmp_path, ALL, grid=grid, terms={"enough": 2, "wait": 20.0, "least": 3, "deadline": 20.0})
    assert [r["clients"] for r in result.history] == [3, 3, 3]
    assert len([t for t in told if "does not take part" in t]) == 1
    assert [kind for kind, _ in grid.log].count("query") == 4


def test_a_node_that_dies_while_it_sends_its_reply_is_not_waited_for(tmp_path, monkeypatch):
    """Flower has announced the reply, and will never have its arrays."""
    monkeypatch.setattr(nodes, "GREET", 0.1)
    grid = MemoryGrid(node_folders(tmp_path / "nodes", settings_of(ALL)[1]))

    def die(message):
        node = next(n for n, c in grid.configs.items() if c["client"] == 1)
        grid.dying = grid.configs.pop(node)
        grid.halves = set(get_all_nested_objects(message)) - {message.object_id}
        return message

    grid.spoil = Spoiler(1, 1, die)
    pull = grid.link.PullObject

    def half(request):
        if request.object_id in getattr(grid, "halves", ()):
            return PullObjectResponse(object_found=True, object_available=False)
        return pull(request)

    grid.link.PullObject = half
    began = time.monotonic()
    result, _, told = launch(tmp_path, ALL, grid=grid, terms={"deadline": 60.0})
    assert time.monotonic() - began < 30
    assert "round 2: no reply from client 1" in told
    assert [r["clients"] for r in result.history] == [3, 2, 2]


def test_a_round_without_enough_clients_that_may_take_part_fails_at_once(tmp_path):
    """Waiting would not help: a client is left out."""
    (out := tmp_path / "run").mkdir()
    grid = MemoryGrid(node_folders(tmp_path / "nodes", settings_of(ALL)[1]), Spoiler(1, 1, arrays(nan)))
    terms = {"least": 3, "refusals": 1, "wait": 100.0}
    with pytest.raises(RunFailed, match="round 2: 2 good replies"):
        launch(tmp_path, ALL, grid=grid, terms=terms, out=out)
    began = time.monotonic()
    with pytest.raises(RunFailed, match="and client 1 is left out"):
        launch(tmp_path, ALL, grid=grid, terms=terms, out=out, resume=True)
    assert time.monotonic() - began < 60


def test_a_node_with_another_model_is_refused(tmp_path, monkeypatch):
    from steppe.flower import client_app

    monkeypatch.setattr(client_app, "read_terms", _other)
    with pytest.raises(RunFailed, match="its model or algorithm differs"):
        launch(tmp_path, {"algorithm": "fedavg"})


def _other(text):
    from steppe.flower.federation_file import read_terms

    terms = read_terms(text)
    return terms._replace(config=terms.config.model_copy(update={"model": "cnn"}))


IMAGES = {"shape": [1, 8, 8], "classes": 3, "mean": [0.5], "std": [0.5]}


@pytest.mark.parametrize(("content", "why"), [
    ({"dedline": 3}, "there is no key 'dedline'; did you mean 'deadline'"),
    ({"data": {"shape": [1], "inputs": "float32", "classs": 3}}, "no key 'data.classs'; did you mean 'classes'"),
    ({"data": {"shape": [1, 8, 8], "classes": 3}}, "images need mean and std"),
    ({"name": "../up"}, "name is '../up', but must be of the form"),
    ({"data": IMAGES | {"shape": [-1]}}, "data.shape.0 is -1, but must be at least 1"),
    ({"data": IMAGES | {"shape": [True, 8, 8]}}, "data.shape.0 is True, but must be"),
    ({"data": IMAGES | {"shape": [10**4] * 3}}, "but a sample may have at most 100,000,000 numbers"),
    ({"data": IMAGES | {"shape": [1] * 5000}}, "data.shape is "),
    ({"data": IMAGES | {"classes": 10**12}}, "data.classes is 1000000000000, but must be at most"),
    ({"data": IMAGES | {"mean": [math.nan]}}, "data.mean.0 is nan, but must be a finite number"),
    ({"data": IMAGES | {"std": [math.inf]}}, "data.std.0 is inf, but must be a finite number"),
    ({"data": IMAGES | {"std": [1e-320]}}, "data.std.0 is 1e-320, but must be at least 1e-09"),
    ({"data": IMAGES | {"class_names": ["a", "a"], "classes": 2}}, "one of the class_names occurs twice"),
    ({"wait": 1e300}, "wait is 1e"),
    ({"refusals": 10**20}, "refusals is 100000000000000000000, but must be at most"),
    *(({"out": out}, "must be a folder of its own, not one of the federation's")
      for out in ("", ".", "app", "app/run", "nodes", "operator/x", "a\0b")),
    ({"run": {"validation": 0.1}}, "validation needs training data on the server"),
    ({"run": {"measure": ["lambda1"]}}, "measure needs training data on the server"),
    ({"run": {"dropout": 0.5}}, "dropout, speed and deadline simulate failures"),
    ({"run": {"buffers": "local"}}, "buffers = local measures batch norm's statistics"),
    ({"run": {"add": ["dp:noise=1"]}}, "dp without a secret derives its noise from the seed, which every node knows"),
    ({"run": {"algorithmm": "fedavg"}}, "there is no key 'algorithmm'"),
    ({"enough": 5, "run": {"clients": 3, "per_round": 3}}, "enough is 5, but there are only 3 clients"),
])  # fmt: skip
def test_a_bad_federation_file_is_refused_in_a_sentence(content, why):
    with pytest.raises(SteppeError) as error:
        parse(content).config()
    assert why in str(error.value)


def test_privacy_of_ones_own_needs_a_secret_too(tmp_path):
    """Where it is not in `add` but among the parts that a function gives."""
    with pytest.raises(SteppeError, match="dp without a secret"):
        launch(tmp_path, {"weighting": "uniform", "sampling": "bernoulli"},
               terms={"own": {"parts": "tests.flower.own:private_parts"}})  # fmt: skip


def test_usual_settings_are_what_the_tests_need():
    """Clients that pause: with two of three a round, everybody is away at least once."""
    _, config = settings_of({})
    assert config.clients == 3
    assert USUAL["per_round"] == 2


def test_a_nodes_terminal_does_not_obey_the_server(capsys):
    """What the server sends is quoted in the node's log."""
    question = Message(RecordDict({"terms": ConfigRecord({"fingerprint": "x"})}), 1, "query")

    def work():
        raise Refusal("model", "this node's model differs from the server's (\x1b[31m\n)")

    assert client_app._answer(question, work).content["refusal"]["code"] == "model"
    assert capsys.readouterr().out == "steppe: this node's model differs from the server's (\\x1b[31m\\n)\n"
