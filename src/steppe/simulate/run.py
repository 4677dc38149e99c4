"""The round loop: sample → broadcast → clients → aggregate → measure → record."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from steppe.config import Config
from steppe.core.client import Reply, Sent
from steppe.core.layout import Tensors
from steppe.core.server import Portion, Server, aggregate, broadcast
from steppe.core.task import METRICS
from steppe.errors import RunFailed
from steppe.simulate import checkpoint, folder, needs
from steppe.simulate.best import Best
from steppe.simulate.judge import evaluate, judged_model
from steppe.simulate.measure import During, Round
from steppe.simulate.needs import client_store, fresh_state, on_disk
from steppe.simulate.personal import personal
from steppe.simulate.ranks import Ranks, no_rows
from steppe.simulate.setup import Experiment
from steppe.simulate.stacking import row, stack
from steppe.simulate.store import MemoryStore, Store
from steppe.simulate.torchrun import agreed, first
from steppe.simulate.witness import Witness
from steppe.simulate.workers import shapes

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
             say: Callable[[str], None] | None = None) -> Result:  # fmt: skip
    """Run an experiment; with a folder, everything is recorded there and the run can be resumed."""
    config, task = experiment.config, experiment.task
    speaks = first()
    say, watch = (say or _silent, watch) if speaks else (_silent, None)
    where = out if speaks else None  # the others write nothing
    ranks = Ranks(fresh_state(experiment), on_disk(experiment, out))
    needed = agreed(lambda: _check(experiment, out, resume))
    store: Store = client_store(experiment, out) if speaks else MemoryStore(ranks.fresh)
    begun = agreed(lambda: _begin(experiment, out, resume, store, say))
    done, records, best = begun.done, begun.records, Best(**begun.notes)
    server = tree_map(lambda t: t.to(task.x0.device), begun.server)
    ranks.home = dict.fromkeys(begun.known, 0)
    names = [f"{part}.{name}" for part, tensors in ranks.fresh().items() for name in tensors]
    during = During(experiment)
    executor = experiment.executor()
    for note in (needed, *experiment.notes):
        say(note)
    threads = torch.get_num_threads()
    if experiment.small and not task.x0.is_cuda:
        torch.set_num_threads(1)  # threads that wait for one another by spinning lose, above all on a busy machine
    try:
        for t in range(done, config.rounds):
            if best.stopped(config.early_stopping):
                break
            began = time.perf_counter()
            played = play(experiment, server, store, executor, t, experiment.sample(t), experiment.lr(t), say, ranks)
            record = {"round": t + 1, "lr": float(played.sent.lr), "clients": len(played.ids),
                      **_measure(server, played.after, played.facts, names)}  # fmt: skip
            if played.dropped:
                record["dropped"] = played.dropped
            server = played.after
            _check_global(server, t)
            ranks.check_same(server.x)
            if (t + 1) % config.evaluate_every == 0 or t + 1 == config.rounds:
                record |= agreed(partial(evaluate, experiment, server, t))
            ended = time.perf_counter()
            record["seconds"] = {"train": round(played.trained - began, 4), "all": round(ended - began, 4)}
            if speaks and (due := during.due(t + 1)):
                x, buffers = judged_model(experiment, server, t, exported=True)
                record["measures"] = during.taken(due, x, buffers, played.seen)
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
            del played  # or its replies would be there beside those of the next round
    finally:
        executor.close()
        torch.set_num_threads(threads)
    whole = ranks.whole(store) if experiment.algorithm.alone else store
    server, x, buffers, summary = agreed(partial(_finish, experiment, where, server, whole, records, best))
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
    told = needs.checked(experiment, on_disk(experiment, out), out)
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
    facts: Tensor
    after: Server
    dropped: list[int]
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
    owners = ranks.owners(ids, [max(1, federation.steps(i, algorithm.local_steps)) for i in ids])
    mine = [ids[k] for k in ranks.mine(owners)]
    states = tree_map(lambda v: v.to(task.x0.device), ranks.fetch(store, ids, owners))
    lr, now = task.x0.new_tensor(rate), task.x0.new_tensor(float(t))
    rows = None
    if algorithm.using("prepare"):
        rows = ranks.gathered(stack(states) if states else no_rows(store.fresh()), owners)
    prepared, sent = broadcast(algorithm, task.layout, server, lr, now, ids, rows, config.clients)
    replies = executor(sent, mine, states) if mine else no_replies(experiment)
    facts = ranks.gathered(_facts(replies), owners)
    kept = _finite(ids, facts, t, config.nonfinite, say)
    if len(kept) < len(ids):
        replies = tree_map(lambda v: v[[i for i, k in enumerate(ranks.mine(owners)) if k in kept]], replies)
    dropped = [i for k, i in enumerate(ids) if k not in kept]
    ids, owners, facts = [ids[k] for k in kept], [owners[k] for k in kept], facts[kept]
    ranks.keep(store, ids, owners, [row(replies.state, i) for i in range(len(replies.loss))])
    trained = time.perf_counter()
    portion = None
    if ranks.on and adds_up(experiment):
        portion = Portion(ranks.mine(owners), ranks.summed)
    else:
        replies = ranks.gathered(replies._replace(state={}), owners)
    everything = float(federation.samples if config.weighting == "samples" else config.clients)
    after = aggregate(algorithm, task.layout, prepared, sent, replies, experiment.weights(ids), config.clients, ids,
                      lambda part, name: ranks.everyone(store, part, name).to(task.x0.device), everything,
                      portion)  # fmt: skip
    if config.buffers == "local":
        after = after._replace(buffers=server.buffers)
    return Played(ids, sent, replies, facts, after, dropped, trained)


def adds_up(experiment: Experiment) -> bool:
    """Whether ranks may add up partial sums; a fixed order, and whoever looks at each client's reply, need them all."""
    each = any(p.has(hook) for p in experiment.algorithm.parts for hook in ("screen", "reduce") if hasattr(p, hook))
    seen = any(isinstance(p, Witness) for p in experiment.algorithm.parts)
    return experiment.config.reduction == "sum" and not seen and not each


def no_replies(experiment: Experiment) -> Reply:
    """Those of a rank that has no client this round."""
    task = experiment.task
    own = bool(task.buffers) and experiment.config.buffers == "local"
    *_, replies = shapes(experiment.algorithm, task, 0, own)
    return tree_map(lambda v: task.x0.new_empty(v.shape, dtype=v.dtype), replies)


def _facts(replies: Reply) -> Tensor:
    """For each client: whether every number, uploaded or kept, is finite; its loss; its drift; its states' norms."""
    told = (replies.update, *_leaves(replies.up), *_leaves(replies.buffers), *_leaves(replies.state))
    finite = torch.stack([_each(v).isfinite().all(1) for v in told]).all(0)
    norms = [torch.linalg.vector_norm(_each(v), dim=1) for v in _leaves(replies.state)]
    return torch.stack([finite.to(replies.loss.dtype), replies.loss, replies.drift, *norms], dim=1)


def _each(v: Tensor) -> Tensor:
    return v.flatten(1) if v.ndim > 1 else v[:, None]


def _finite(ids: list[int], facts: Tensor, t: int, policy: str, say: Callable[[str], None]) -> list[int]:
    """The places of the clients whose numbers are all finite; the others are named, and never averaged in."""
    good = facts[:, 0].bool().tolist()
    bad = [i for i, fine in zip(ids, good, strict=True) if not fine]
    if bad:
        sentence = f"round {t + 1}: the update of client {', '.join(map(str, bad))} is not finite"
        if policy == "stop" or not any(good):
            raise RunFailed(f"{sentence}: lower lr, set clip = 10, or drop such updates with nonfinite = drop.")
        say(f"{sentence} and was dropped")
    return [k for k, fine in enumerate(good) if fine]


def _check_global(server: Server, t: int) -> None:
    if not bool(server.x.isfinite().all()):
        raise RunFailed(f"round {t + 1}: the global model is not finite although every client's update is: the "
                        "server's rule diverges with these settings (try a smaller server_lr or alpha).")  # fmt: skip


def _measure(before: Server, after: Server, facts: Tensor, names: list[str]) -> dict[str, Any]:
    """What a round did: the clients' loss, how far they went, how far the global model went, sizes of the states."""
    _, loss, drift, *norms = (float(column.mean()) for column in facts.T)
    told: dict[str, Any] = {
        "train_loss": loss, "drift": drift,
        "update_norm": float(torch.linalg.vector_norm(after.x - before.x)),
        "x_norm": float(torch.linalg.vector_norm(after.x)),
    }  # fmt: skip
    held = {f"{p}.{k}": float(torch.linalg.vector_norm(v)) for p, s in after.state.items() for k, v in s.items()}
    kept = dict(zip(names, norms, strict=True))
    return told | ({"server_norms": held} if held else {}) | ({"client_norms": kept} if kept else {})


def _summary(
    experiment: Experiment, records: list[dict[str, Any]], judged: dict[str, Any], chosen: int
) -> dict[str, Any]:
    """`last` and `loss` are the final model's: of the last round or, with early stopping, of the chosen one."""
    curve = [r["accuracy"] for r in records if "accuracy" in r] or [judged["accuracy"]]
    tail = curve[-10:]
    metric = experiment.task.metric_each
    lower = metric is experiment.task.loss_each or metric is METRICS["mse"]
    return {
        "algorithm": experiment.algorithm.name, "rounds": records[-1]["round"] if records else 0,
        "model_of_round": chosen, "last": judged["accuracy"], "mean_of_last_ten": sum(tail) / len(tail),
        "best": min(curve) if lower else max(curve), "loss": judged["loss"],
        "seconds": round(sum(r["seconds"]["all"] for r in records), 3),
    }  # fmt: skip


def _silent(_: str) -> None:
    """Nobody listens."""


def _leaves(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    return [leaf for value in tree.values() for leaf in _leaves(value)]
