"""The round loop: sample → broadcast → clients → aggregate → measure → record."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from steppe.config import Config
from steppe.core.client import Reply, Sent, nobody
from steppe.core.errors import RunFailed
from steppe.core.layout import Tensors
from steppe.core.server import Portion, Server, aggregate, broadcast
from steppe.core.stacking import row, stack
from steppe.core.task import METRICS
from steppe.core.validate import faults, finite, flat, sifted
from steppe.distributed.ranks import Ranks, no_rows
from steppe.distributed.torchrun import agreed, first
from steppe.engine import resources
from steppe.engine.availability import turnout
from steppe.engine.early_stopping import Best
from steppe.engine.experiment import Experiment
from steppe.engine.privacy import privacy, spent
from steppe.engine.resources import client_store, fresh_state, on_disk
from steppe.engine.trackers import Tracker, Tracking, named
from steppe.evaluate.client_tests import personal
from steppe.evaluate.global_model import evaluate, judged_model
from steppe.measures.client_models import Witness
from steppe.measures.during_training import During, Round
from steppe.runs import checkpoint, folder
from steppe.runs.client_store import MemoryStore, Store

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
    speaks = first()
    say, watch = (say or _silent, watch) if speaks else (_silent, None)
    where = out if speaks else None  # the others write nothing
    track = Tracking([*named(config.track, out), *trackers] if speaks else [], say)
    ranks = Ranks(fresh_state(experiment), on_disk(experiment, out))
    needed = agreed(lambda: _check(experiment, out, resume))
    if store is None:
        store = client_store(experiment, out) if speaks else MemoryStore(ranks.fresh)
    begun = agreed(partial(_begin, experiment, out, resume, store, say))
    done, records, best = begun.done, begun.records, Best(**begun.notes)
    server = tree_map(lambda t: t.to(task.x0.device), begun.server)
    ranks.home = dict.fromkeys(begun.known, 0)
    names = [f"{part}.{name}" for part, tensors in ranks.fresh().items() for name in tensors]
    during = During(experiment)
    executor = executor or experiment.executor(say)
    for note in (needed, *experiment.notes):
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
                played = play(experiment, server, store, executor, t, called.ids, experiment.lr(t), say, ranks)
                record |= {"clients": len(played.ids), **_measure(server, played.after, played.facts, names)}
                record |= spent(algorithm, t + 1)
                record |= getattr(executor, "told", {}) if called.ids else {}
                if played.refused:
                    record["refused"] = [{"client": i, "why": why} for i, why in played.refused.items()]
                server = played.after
                _check_global(server, t)
                ranks.check_same(server.x)
            else:
                say(f"round {t + 1}: no client answered, so the model stays as it was")
            trained = played.trained if played else began
            if (t + 1) % config.evaluate_every == 0 or t + 1 == config.rounds:
                record |= agreed(partial(evaluate, experiment, server, t))
            ended = time.perf_counter()
            record["seconds"] = {"train": round(trained - began, 4), "all": round(ended - began, 4)}
            if speaks and (due := during.due(t + 1, bool(played and played.ids))):
                x, buffers = judged_model(experiment, server, t, exported=True)
                record["sample"] = during.sample.name
                record["measures"] = during.taken(due, x, buffers, played.seen if played else None)
                record["seconds"]["measure"] = round(time.perf_counter() - ended, 4)  # no part of the training's time
            records.append(record)
            best.see(record, server, where)
            if where is not None:
                folder.append(where, record)
            if out is not None and ((t + 1) % config.checkpoint_every == 0 or t + 1 == config.rounds):
                whole = ranks.whole(store)
                if where is not None:
                    checkpoint.save(where / "checkpoints", t + 1, server, whole, best.notes())
            if watch:
                watch(record)
            track("round", record)
            del played  # or its replies would be there beside those of the next round
    except BaseException:
        track("end", None)
        raise
    finally:
        executor.close()
        torch.set_num_threads(threads)
    whole = ranks.whole(store) if algorithm.alone else store
    server, x, buffers, summary = agreed(partial(_finish, experiment, where, server, whole, records, best))
    track("end", summary)
    to_device = partial(tree_map, lambda t: t.to(task.x0.device))
    return Result(config, records, summary, experiment, to_device(server), to_device(x), to_device(buffers), out,
                  list(experiment.notes))  # fmt: skip


class Begun(NamedTuple):
    """Where a run starts, or goes on."""

    done: int
    records: list[dict[str, Any]]
    notes: dict[str, Any]
    server: Server
    known: list[int]  # clients that have a state


def _check(experiment: Experiment, out: Path | None, resume: bool) -> str:
    """Before anything is written: does it belong to the folder, does it fit the machine? Says what it needs."""
    begun = out is not None and (out / "config.json").exists()
    if out is not None and begun and resume:
        folder.check_resumable(out, experiment)
    told = resources.checked(experiment, on_disk(experiment, out), out)
    if out is not None and begun and not resume:
        folder.clear(out)
    return told


def _begin(experiment: Experiment, out: Path | None, resume: bool, store: Store, say: Callable[[str], None]) -> Begun:
    """Look into the folder, bring the store to where the run goes on, and write what is known so far."""
    task = experiment.task
    server = Server(task.x0, experiment.algorithm.server_state(task.x0), task.buffers)
    done, records, notes = 0, list[dict[str, Any]](), Best().notes()
    if out is not None:
        if resume:
            saved, complaints = checkpoint.load(out / "checkpoints", store)
            for complaint in complaints:
                say(complaint)
            if complaints:
                say(f"The one before it, of round {saved.round}, is used." if saved else
                    "No whole checkpoint is left, so the run starts from the beginning.")  # fmt: skip
            if saved is not None:
                done, notes, server = saved.round, saved.notes, saved.server
                records = [r for r in folder.history(out) if r["round"] <= done]
                if len(records) != done:
                    say(f"{folder.LINES} has records of {len(records)} rounds where {done} were finished.")
            else:
                store.reset()
        folder.prepare(out, experiment)
        folder.rewrite(out, records)
    return Begun(done, records, notes, tree_map(lambda t: t.cpu(), server), store.known())


def _finish(experiment: Experiment, out: Path | None, server: Server, store: Store, records: list[dict[str, Any]],
            best: Best) -> tuple[Server, Tensor, Tensors, dict[str, Any]]:  # fmt: skip
    """The model that the run ends with, and its summary; on the CPU, for other ranks."""
    chosen = records[-1]["round"] if records else 0
    if experiment.config.early_stopping is not None and best.round:
        server, chosen = best.restore(server, out), best.round
    last = max(chosen, 1) - 1
    judged = next((r for r in records if r["round"] == chosen and "accuracy" in r), None)
    judged = judged or evaluate(experiment, server, last)
    x, buffers = judged_model(experiment, server, last, exported=True)
    summary = _summary(experiment, records, judged, chosen) | personal(experiment, x, buffers, store)
    if out is not None:
        folder.finish(out, experiment, x, buffers, records, summary)
    return (*tree_map(lambda t: t.cpu(), (server, x, buffers)), summary)


class Played(NamedTuple):
    """A round, before anything is made of it."""

    ids: list[int]
    sent: Sent
    replies: Reply  # of all clients where they were gathered, or of this rank's
    facts: list[list[float]]  # of each client: its loss, its drift, its states' norms
    after: Server
    refused: dict[int, str]  # clients whose replies were not taken, and why
    trained: float  # when the clients were done

    def seen(self) -> Round:
        """Where the algorithm has a witness, what it saw."""
        return Round(self.ids, self.sent.x, self.replies.up[Witness.name]["w"], self.after.x)


def play(experiment: Experiment, server: Server, store: Store, executor: Any, t: int, ids: list[int], rate: float,
         say: Callable[[str], None], ranks: Ranks | None = None) -> Played:  # fmt: skip
    """Round t with these clients and this learning rate; their states go into the store."""
    config, algorithm, task, federation = (
        experiment.config,
        experiment.algorithm,
        experiment.task,
        experiment.federation,
    )
    ranks = ranks or Ranks(store.fresh, False)
    work = [max(1, federation.steps(i, algorithm.local_steps)) for i in ids] if ranks.on else [1] * len(ids)
    owners = ranks.owners(ids, work)
    mine = [ids[k] for k in ranks.mine(owners)]
    states = tree_map(lambda v: v.to(task.x0.device), ranks.fetch(store, ids, owners))
    lr, now = task.x0.new_tensor(rate), task.x0.new_tensor(float(t))
    rows = None
    if ids and algorithm.using("prepare"):
        rows = ranks.gathered(stack(states) if states else no_rows(store.fresh()), owners)
    prepared, sent = broadcast(algorithm, task.layout, server, lr, now, rows, config.clients)
    replies = executor(sent, mine, states) if mine else nobody(algorithm, task, sent, store.fresh())
    if mine and hasattr(executor, "answered"):  # the nodes of a real federation may be away
        ids = mine = executor.answered
        owners = [0] * len(ids)
    # Without a part that changes it, the update is w − x, and its length the drift; from outside neither is believed.
    lengths = replies.drift if getattr(executor, "ours", False) and not algorithm.using("finish") else None
    told = ranks.listed(list(zip(faults(replies, config.refuse_above, lengths), _facts(replies), strict=True)), owners)
    refused = {i: why for i, (why, _) in zip(ids, told, strict=True) if why}
    if refused:
        _complain(experiment, refused, len(ids), t, say)
        mine, replies, _ = sifted(mine, replies, [refused.get(i, "") for i in mine])
        owners = [owner for i, owner in zip(ids, owners, strict=True) if i not in refused]
        ids = [i for i in ids if i not in refused]
    ranks.keep(store, ids, owners, [row(replies.state, i) for i in range(len(mine))])
    trained = time.perf_counter()
    portion = None
    if ranks.on and adds_up(experiment):
        portion = Portion(ranks.mine(owners), ranks.summed)
    else:
        replies = ranks.gathered(replies._replace(state={}), owners)
    everything = float(federation.samples if config.weighting == "samples" else config.clients)
    after = aggregate(algorithm, task.layout, prepared, sent, replies, experiment.weights(ids), config.clients,
                      lambda part, name: ranks.everyone(store, part, name).to(task.x0.device), everything,
                      portion)  # fmt: skip
    if config.buffers == "local":
        after = after._replace(buffers=server.buffers)
    facts = [each for why, each in told if not why]
    return Played(ids, sent, replies, facts, after, refused, trained)


def adds_up(experiment: Experiment) -> bool:
    """Whether ranks may add up partial sums; a fixed order, and whoever looks at each client's reply, need them all."""
    algorithm = experiment.algorithm
    each = (
        algorithm.using("screen") or algorithm.using("reduce") or any(isinstance(p, Witness) for p in algorithm.parts)
    )
    return experiment.config.reduction == "sum" and not each


def _facts(replies: Reply) -> list[list[float]]:
    norms = [torch.linalg.vector_norm(flat(v), dim=1) for tensors in replies.state.values() for v in tensors.values()]
    facts: list[list[float]] = torch.stack([replies.loss, replies.drift, *norms], dim=1).tolist()
    return facts


def _complain(experiment: Experiment, refused: dict[int, str], called: int, t: int, say: Callable[[str], None]) -> None:
    """Replies that may not be averaged stop the run or, if that is wished, are named and left out."""
    reasons = {why: [i for i, w in refused.items() if w == why] for why in refused.values()}
    sentence = f"round {t + 1}: " + "; ".join(f"the update of client {', '.join(map(str, i))} {why}"
                                              for why, i in reasons.items())  # fmt: skip
    if experiment.config.nonfinite == "stop" or len(refused) == called:
        raise RunFailed(f"{sentence}: lower lr, set clip = 10, or drop such updates with nonfinite = drop.")
    say(f"{sentence} and was dropped")


def _check_global(server: Server, t: int) -> None:
    if not bool(finite(server.x[None])):
        raise RunFailed(f"round {t + 1}: the global model is not finite although every client's update is: the "
                        "server's rule diverges with these settings (try a smaller server_lr or alpha).")  # fmt: skip


def _measure(before: Server, after: Server, facts: list[list[float]], names: list[str]) -> dict[str, Any]:
    """What a round did: the clients' loss, how far they went, how far the global model went, sizes of the states."""
    # The nodes of a real federation keep their states to themselves: then there are no norms to name.
    means = dict(zip(["train_loss", "drift", *names], np.mean(facts, axis=0).tolist(), strict=False)) if facts else {}
    told: dict[str, Any] = {key: means.pop(key) for key in ("train_loss", "drift") if key in means}
    told |= {
        "update_norm": float(torch.linalg.vector_norm(after.x - before.x)),
        "x_norm": float(torch.linalg.vector_norm(after.x)),
    }  # fmt: skip
    held = {f"{p}.{k}": float(torch.linalg.vector_norm(v)) for p, s in after.state.items() for k, v in s.items()}
    return told | ({"server_norms": held} if held else {}) | ({"client_norms": means} if means else {})


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


def _silent(_: str) -> None:
    """Nobody listens."""
