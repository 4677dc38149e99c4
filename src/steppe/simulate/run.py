"""The round loop: sample → broadcast → clients → aggregate → measure → record."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from steppe.config import Config
from steppe.core.client import OWN_BUFFERS, Reply, Sent, nobody
from steppe.core.keyed import key, permutation
from steppe.core.layout import Tensors
from steppe.core.part import SettingError
from steppe.core.server import Server, aggregate, broadcast, evaluated
from steppe.core.task import METRICS
from steppe.core.validate import faults, finite, sifted
from steppe.errors import RunFailed, SteppeError
from steppe.evaluate.accuracy import Score, recalibrated, score
from steppe.simulate import checkpoint, folder
from steppe.simulate.measure import During, Round
from steppe.simulate.personal import personal
from steppe.simulate.setup import Experiment
from steppe.simulate.stacking import row, stack
from steppe.simulate.store import DiskStore, MemoryStore, Store
from steppe.simulate.trackers import Tracker, Tracking, named
from steppe.simulate.trust import privacy, spent
from steppe.simulate.turnout import turnout
from steppe.simulate.witness import Witness

IN_MEMORY = 4 << 30  # bytes of client states that may stay in memory
Watch = Callable[[dict[str, Any]], None]  # called with every round's record


@dataclass
class Result:
    """A finished run."""

    config: Config
    history: list[dict[str, Any]]
    summary: dict[str, Any]
    experiment: Experiment = field(repr=False)
    server: Server = field(repr=False)
    x: Tensor = field(repr=False)  # the model that was judged, as a flat vector
    buffers: Tensors = field(repr=False)
    folder: Path | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def accuracy(self) -> float:
        """The final model's metric on the test set."""
        return float(self.summary["last"])

    @property
    def model(self) -> nn.Module:
        """The trained module, ready to predict; its state_dict() is a plain one."""
        return self.experiment.task.module(self.x, self.buffers)


def simulate(experiment: Experiment, out: Path | None = None, resume: bool = False, watch: Watch | None = None,
             say: Callable[[str], None] | None = None, trackers: Sequence[Tracker] = (), executor: Any = None,
             store: Store | None = None) -> Result:  # fmt: skip
    """Run an experiment; with a folder, everything is recorded there and the run can be resumed.

    An executor and a store of one's own make it a real federation: the clients, and what they keep, are elsewhere.
    """
    config, algorithm, task = experiment.config, experiment.algorithm, experiment.task
    say = say or (lambda _: None)
    track = Tracking([*named(config.track, out), *trackers], say)
    if out is not None and (out / "config.json").exists():
        if resume:
            folder.check_resumable(out, experiment)
        else:
            folder.clear(out)
    here = store is None
    store = client_store(experiment, out) if store is None else store
    server = Server(task.x0, algorithm.server_state(task.x0), task.buffers)
    done, records, best = 0, [], Best()
    if out is not None:
        if resume:
            saved, complaints = checkpoint.load(out / "checkpoints", store)
            for complaint in complaints:
                say(complaint)
            if complaints:
                say(f"The one before it, of round {saved.round}, is used." if saved else
                    "No whole checkpoint is left, so the run starts from the beginning.")  # fmt: skip
            if saved is not None:
                done, best = saved.round, Best(**saved.notes)
                server = tree_map(lambda t: t.to(task.x0.device), saved.server)
                records = [r for r in folder.history(out) if r["round"] <= done]
                if len(records) != done:
                    say(f"{folder.LINES} has records of {len(records)} rounds where {done} were finished.")
            elif here:
                store = client_store(experiment, out)
        folder.prepare(out, experiment)
        folder.rewrite(out, records)
    during = During(experiment)
    executor = executor or experiment.executor()
    for note in experiment.notes:
        say(note)
    track("begin", config.model_dump(mode="json"))
    threads = torch.get_num_threads()
    if experiment.small and not task.x0.is_cuda:
        torch.set_num_threads(1)  # threads that wait for one another by spinning lose, above all on a busy machine
    try:
        for t in range(done, config.rounds):
            if best.stopped(config.early_stopping):
                break
            began = time.perf_counter()
            called, played = turnout(experiment, t, experiment.sample(t)), None
            record = {"round": t + 1, "lr": float(task.x0.new_tensor(experiment.lr(t))), "clients": 0, **called.told}
            if called.ids or privacy(algorithm):  # noise hides whether anybody was there
                played = play(experiment, server, store, executor, t, called.ids, experiment.lr(t), say)
                record |= {"clients": len(played.ids), **_measure(server, played.after, played.replies)}
                record |= spent(algorithm, t + 1)
                record |= getattr(executor, "told", {}) if called.ids else {}
                if played.refused:
                    record["refused"] = [{"client": i, "why": why} for i, why in played.refused.items()]
                server = played.after
                _check_global(server, t)
            else:
                say(f"round {t + 1}: no client answered, so the model stays as it was")
            trained = played.trained if played else began
            if (t + 1) % config.evaluate_every == 0 or t + 1 == config.rounds:
                record |= evaluate(experiment, server, t)
            ended = time.perf_counter()
            record["seconds"] = {"train": round(trained - began, 4), "all": round(ended - began, 4)}
            if names := during.due(t + 1, bool(played and played.ids)):
                x, buffers = judged_model(experiment, server, t, exported=True)
                record["sample"] = during.sample.name
                record["measures"] = during.taken(names, x, buffers, played.seen if played else None)
                record["seconds"]["measure"] = round(time.perf_counter() - ended, 4)  # no part of the training's time
            records.append(record)
            best.see(record, server, out)
            if out is not None:
                folder.append(out, record)
                if (t + 1) % config.checkpoint_every == 0 or t + 1 == config.rounds:
                    checkpoint.save(out / "checkpoints", t + 1, server, store, best.notes())
            if watch:
                watch(record)
            track("round", record)
    except BaseException:
        track("end", None)
        raise
    finally:
        executor.close()
        torch.set_num_threads(threads)
    chosen = records[-1]["round"] if records else 0
    if config.early_stopping is not None and best.round:
        server, chosen = best.restore(server, out), best.round
    last = max(chosen, 1) - 1
    judged = next((r for r in records if r["round"] == chosen and "accuracy" in r), None)
    judged = judged or evaluate(experiment, server, last)
    x, buffers = judged_model(experiment, server, last, exported=True)
    summary = _summary(experiment, records, judged, chosen) | personal(experiment, x, buffers, store)
    if out is not None:
        folder.finish(out, experiment, x, buffers, records, summary)
    track("end", summary)
    return Result(config, records, summary, experiment, server, x, buffers, out, list(experiment.notes))


class Played(NamedTuple):
    """A round, before anything is made of it."""

    ids: list[int]
    sent: Sent
    replies: Reply
    after: Server
    refused: dict[int, str]  # clients whose replies were not taken, and why
    trained: float  # when the clients were done

    def seen(self) -> Round:
        """Where the algorithm has a witness, what it saw."""
        return Round(self.ids, self.sent.x, self.replies.up[Witness.name]["w"], self.after.x)


def play(experiment: Experiment, server: Server, store: Store, executor: Any, t: int, ids: list[int], rate: float,
         say: Callable[[str], None]) -> Played:  # fmt: skip
    """Round t with these clients and this learning rate; their states go into the store."""
    config, algorithm, task = experiment.config, experiment.algorithm, experiment.task
    states = tree_map(lambda v: v.to(task.x0.device), store.gather(ids))
    lr, now = task.x0.new_tensor(rate), task.x0.new_tensor(float(t))
    rows = stack(states) if ids and algorithm.using("prepare") else None
    prepared, sent = broadcast(algorithm, task.layout, server, lr, now, ids, rows, config.clients)
    replies = executor(sent, ids, states) if ids else nobody(algorithm, task, sent)
    ids = getattr(executor, "answered", ids) if ids else ids  # the nodes of a real federation may be away
    ids, replies, refused = _accepted(experiment, ids, replies, t, say)
    store.scatter(ids, [row(replies.state, i) for i in range(len(ids))])
    trained = time.perf_counter()
    everything = float(sum(experiment.federation.sizes) if config.weighting == "samples" else config.clients)
    try:
        after = aggregate(algorithm, task.layout, prepared, sent, replies, experiment.weights(ids), config.clients, ids,
                          lambda part, name: store.everyone(part, name).to(task.x0.device), everything)  # fmt: skip
    except SettingError as error:  # too few replies for the rule, for instance
        raise RunFailed(f"round {t + 1}: {error}.") from error
    if config.buffers == "local":
        after = after._replace(buffers=server.buffers)
    return Played(ids, sent, replies, after, refused, trained)


def judged_model(experiment: Experiment, server: Server, t: int, exported: bool = False) -> tuple[Tensor, Tensors]:
    """The model that is judged after round t, and its running statistics."""
    x0 = experiment.task.x0
    lr, now = x0.new_tensor(experiment.lr(t)), x0.new_tensor(float(t))
    x = evaluated(experiment.algorithm, experiment.task.layout, server, lr, now)
    return x, statistics(experiment, x, server.buffers, exported)


def evaluate(experiment: Experiment, server: Server, t: int) -> dict[str, Any]:
    """Loss and metric of the judged model on the test set and, where there is one, the validation set."""
    task, federation, data = experiment.task, experiment.federation, experiment.federation.data
    if not len(data.test_targets):  # a federation whose server has no data
        return {}
    x, buffers = judged_model(experiment, server, t)
    by_batch = bool(task.buffers) and experiment.config.buffers == "local"

    def of(inputs: Tensor, targets: Tensor) -> Score:
        return score(
            task, x, buffers, inputs, federation.targets(targets), federation.plain, data.classes, learning=by_batch
        )

    test = of(data.test_inputs, data.test_targets)
    told: dict[str, Any] = {"loss": test.loss, "accuracy": test.metric}
    if test.by_class:
        told["by_class"] = [round(v, 6) if v == v else None for v in test.by_class]
    if data.validation_inputs is not None and data.validation_targets is not None:
        held_out = of(data.validation_inputs, data.validation_targets)
        told |= {"validation_loss": held_out.loss, "validation_accuracy": held_out.metric}
    return told


def statistics(experiment: Experiment, x: Tensor, buffers: Tensors, exported: bool = False) -> Tensors:
    """Batch norm's running statistics for the judged model, under the run's policy.

    Where every client keeps its own, nobody's are the global model's: one that leaves the run gets measured ones.
    """
    policies = ("recalibrate", "local") if exported else ("recalibrate",)
    if not buffers or experiment.config.buffers not in policies:
        return buffers
    inputs = experiment.federation.data.train_inputs
    order = permutation(key(experiment.config.seed, 4), len(inputs))[:2000].to(inputs.device)
    split = torch.split(order, 200)
    batches = [i for i in split if len(i) == len(split[0])]  # equal ones, so that the mean is fair
    return recalibrated(experiment.task, x, buffers, [experiment.federation.plain(inputs[i]) for i in batches])


@dataclass
class Best:
    """The best validation loss so far, for early stopping; the test set plays no part in it."""

    loss: float | None = None
    round: int = 0
    since: int = 0  # evaluations without a better one
    server: Server | None = None

    def see(self, record: dict[str, Any], server: Server, out: Path | None) -> None:
        if "validation_loss" not in record:
            return
        self.since += 1
        if self.loss is None or record["validation_loss"] < self.loss:
            self.loss, self.round, self.since, self.server = record["validation_loss"], record["round"], 0, server
            if out is not None:
                checkpoint.save(out / "best", record["round"], server, MemoryStore(dict), {})

    def stopped(self, patience: int | None) -> bool:
        return patience is not None and self.since >= patience

    def notes(self) -> dict[str, Any]:
        return {"loss": self.loss, "round": self.round, "since": self.since}

    def restore(self, server: Server, out: Path | None) -> Server:
        """The server of the best round; after a resume it may be on disk alone."""
        if self.server is None and out is not None:
            saved, _ = checkpoint.load(out / "best", MemoryStore(dict))
            if saved is None or saved.round != self.round:
                raise RunFailed(f"The best model so far, of round {self.round}, should be in {out / 'best'}, and is "
                                "missing or damaged: start the run anew.")  # fmt: skip
            self.server = tree_map(lambda t: t.to(server.x.device), saved.server)
        return self.server or server


def client_store(experiment: Experiment, out: Path | None) -> Store:
    config, task = experiment.config, experiment.task

    def fresh() -> Any:
        state = experiment.algorithm.client_state(task.x0)
        return {**state, OWN_BUFFERS: task.buffers} if task.buffers and config.buffers == "local" else state

    on_disk = config.store == "disk"
    if config.store == "auto":
        on_disk = out is not None and experiment.cost.bytes_kept * config.clients > IN_MEMORY
    if not on_disk:
        return MemoryStore(fresh)
    if out is None:
        raise SteppeError("store = disk needs a folder to write to: give the run an output folder.")
    return DiskStore(fresh, out / "clients.bin", config.clients)


def _accepted(experiment: Experiment, ids: list[int], replies: Reply, t: int,
              say: Callable[[str], None]) -> tuple[list[int], Reply, dict[int, str]]:  # fmt: skip
    """The replies that may be averaged; the others stop the run or, if that is wished, are named and left out."""
    config = experiment.config
    accepted, kept, refused = sifted(ids, replies, faults(replies, config.refuse_above))
    if not refused:
        return ids, replies, {}
    reasons = {why: [i for i, w in refused.items() if w == why] for why in refused.values()}
    sentence = f"round {t + 1}: " + "; ".join(f"the update of client {', '.join(map(str, i))} {why}"
                                              for why, i in reasons.items())  # fmt: skip
    if config.nonfinite == "stop" or not accepted:
        raise RunFailed(f"{sentence}: lower lr, set clip = 10, or drop such updates with nonfinite = drop.")
    say(f"{sentence} and was dropped")
    return accepted, kept, refused


def _check_global(server: Server, t: int) -> None:
    if not bool(finite(server.x[None])):
        raise RunFailed(f"round {t + 1}: the global model is not finite although every client's update is: the "
                        "server's rule diverges with these settings (try a smaller server_lr or alpha).")  # fmt: skip


def _measure(before: Server, after: Server, replies: Reply) -> dict[str, Any]:
    """What a round did: the clients' loss, how far they went, how far the global model went, sizes of the states."""
    told = {"train_loss": float(replies.loss.mean()), "drift": float(replies.drift.mean())} if len(replies.loss) else {}
    told |= {
        "update_norm": float(torch.linalg.vector_norm(after.x - before.x)),
        "x_norm": float(torch.linalg.vector_norm(after.x)),
    }  # fmt: skip
    held = {f"{p}.{k}": float(torch.linalg.vector_norm(v)) for p, s in after.state.items() for k, v in s.items()}
    kept = {f"{p}.{k}": float(torch.linalg.vector_norm(v.reshape(len(v), -1), dim=1).mean())
            for p, s in replies.state.items() for k, v in s.items() if len(v)}  # fmt: skip
    return told | ({"server_norms": held} if held else {}) | ({"client_norms": kept} if kept else {})


def _summary(
    experiment: Experiment, records: list[dict[str, Any]], judged: dict[str, Any], chosen: int
) -> dict[str, Any]:
    """`last` and `loss` are the final model's: of the last round or, with early stopping, of the chosen one."""
    curve = [r["accuracy"] for r in records if "accuracy" in r] or [judged[k] for k in judged if k == "accuracy"]
    tail = curve[-10:]
    metric = experiment.task.metric_each
    lower = metric is experiment.task.loss_each or metric is METRICS["mse"]
    missing = sum(len(r.get(kind, ())) for r in records for kind in ("dropped", "late"))
    simulated = [r["simulated_seconds"] for r in records if "simulated_seconds" in r]
    failures = ({"missing": missing} if missing else {}) | ({"simulated_seconds": sum(simulated)} if simulated else {})
    told = {
        "algorithm": experiment.algorithm.name, "rounds": records[-1]["round"] if records else 0,
        "model_of_round": chosen, "last": judged.get("accuracy"),
        "mean_of_last_ten": sum(tail) / len(tail) if tail else None,
        "best": (min(curve) if lower else max(curve)) if curve else None, "loss": judged.get("loss"),
        "seconds": round(sum(r["seconds"]["all"] for r in records), 3),
    }  # fmt: skip
    refused = sum(len(r.get("refused", ())) for r in records)
    return told | failures | ({"refused": refused} if refused else {}) | spent(experiment.algorithm, told["rounds"])
