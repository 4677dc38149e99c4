"""The round loop: sample → find available clients → play → evaluate → measure → record."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from steppe.core.errors import SteppeError
from steppe.core.layout import Tensors
from steppe.core.server import Server
from steppe.distributed.ranks import Ranks
from steppe.distributed.torchrun import is_first, run_on_first
from steppe.engine import privacy, resources
from steppe.engine.availability import Available, find_available
from steppe.engine.choose_executor import choose_executor
from steppe.engine.early_stopping import LOSS, Best
from steppe.engine.play_round import Played, play_round
from steppe.engine.resources import is_on_disk, make_fresh_state, make_store
from steppe.engine.result import Result, summarize
from steppe.engine.trackers import Tracker, Tracking, make_trackers
from steppe.evaluate.client_tests import evaluate_clients
from steppe.evaluate.global_model import choose_evaluated_model, evaluate
from steppe.evaluate.running_mean import RunningMean
from steppe.executors.executor import Executor
from steppe.experiment import Experiment
from steppe.measures.during_training import Schedule
from steppe.runs import checkpoint
from steppe.runs.client_store import MemoryStore, Store
from steppe.runs.folder import RunFolder, explain_damage
from steppe.runs.full_disk import explain_full_disk
from steppe.runs.provenance import describe, find_versions
from steppe.runs.records import Record
from steppe.runs.same_run import check_resumable
from steppe.runs.trained_parameters import save_adapter

log = logging.getLogger("steppe")
LOST = "No checkpoint is intact, so the run STARTS AGAIN FROM ROUND 1; the old records are replaced."
Watch = Callable[[Record], None]  # called with every round's record


def simulate(experiment: Experiment, out: str | Path | None = None, resume: bool = False, watch: Watch | None = None,
             trackers: Sequence[Tracker] = (), executor: Executor | None = None,
             store: Store | None = None) -> Result:  # fmt: skip
    """Run an experiment; with a folder, everything is recorded there and the run can be resumed.

    A real federation passes its own executor and store, because its clients and their states are elsewhere.
    """
    folder = None if out is None else RunFolder(out)
    with explain_full_disk(out), folder.lock() if folder is not None and is_first() else nullcontext():
        return _simulate(experiment, folder, resume, watch, trackers, executor, store)


def _simulate(experiment: Experiment, folder: RunFolder | None, resume: bool, watch: Watch | None,
              trackers: Sequence[Tracker], executor: Executor | None, store: Store | None) -> Result:  # fmt: skip
    config, algorithm, task = experiment.config, experiment.algorithm, experiment.task
    out = None if folder is None else folder.path
    speaks = is_first()
    watch = watch if speaks else None
    where = folder if speaks else None  # the other ranks write nothing
    track = Tracking([*make_trackers(config.track, out), *trackers] if speaks else [])
    ranks = Ranks(make_fresh_state(experiment), is_on_disk(experiment, out))
    needed = run_on_first(lambda: _check(experiment, folder, resume))
    if store is None:
        store = make_store(experiment, out) if speaks else MemoryStore(ranks.fresh)
    begun = run_on_first(partial(_begin, experiment, folder, resume, store))
    judged_by = next((m for m in task.metrics if m.name == config.early_stopping_by), LOSS)
    records, best = begun.records, Best(**begun.notes, by=judged_by)
    server = tree_map(lambda t: t.to(task.x0.device), begun.server)
    ranks.home = dict.fromkeys(begun.known, 0)
    names = [f"{part}.{name}" for part, tensors in ranks.fresh().items() for name in tensors]
    during = Schedule(experiment)
    executor = executor or choose_executor(experiment)
    for note in (needed, *experiment.notes):
        log.log(logging.WARNING if note is LOST else logging.INFO, note)
    track("begin", config.model_dump(mode="json"))
    threads = torch.get_num_threads()
    if not task.x0.is_cuda and experiment.small:
        torch.set_num_threads(1)  # for small steps, threads spend their time waiting, above all on a busy machine
    try:
        for t in range(begun.done, config.rounds):
            if best.is_over(config.early_stopping):
                break
            record, played, server = _run_round(experiment, server, store, executor, t, ranks, names)
            if speaks and (due := during.list_due(t + 1, bool(played and played.ids))):
                began = time.perf_counter()
                x, buffers = choose_evaluated_model(experiment, server, t, exported=True)
                record["sample"] = during.sample.name
                record["measures"] = during.take(due, x, buffers, played.as_round if played else None)
                record["seconds"]["measure"] = round(time.perf_counter() - began, 4)  # not counted as training
            records.append(record)
            best.update(record, server, where)
            if where is not None:
                where.append(record)
            if folder is not None and ((t + 1) % config.checkpoint_every == 0 or t + 1 == config.rounds):
                whole = ranks.merge_stores(store)
                if where is not None:
                    checkpoint.save(where.checkpoints, t + 1, server, whole, best.list_notes())
            if watch:
                watch(record)
            track("round", record)
            del played  # otherwise its replies would stay in memory during the next round
    except BaseException:
        track("end", None)
        raise
    finally:
        executor.close()
        torch.set_num_threads(threads)
    whole = ranks.merge_stores(store) if algorithm.alone else store
    how = begun.how
    if how is None:
        how = {"executor": type(executor).__name__.lower()}
        how |= {"notes": list(experiment.notes)} if experiment.notes else {}
    server, x, buffers, summary = run_on_first(partial(_finish, experiment, where, server, whole, records, best, how))
    track("end", summary)
    to_device = partial(tree_map, lambda t: t.to(task.x0.device))
    return Result(config, records, summary, experiment, to_device(server), to_device(x), to_device(buffers), out,
                  list(experiment.notes))  # fmt: skip


class Begun(NamedTuple):
    """The state from which a run starts or resumes."""

    done: int
    records: list[Record]
    notes: dict[str, Any]
    server: Server
    known: list[int]  # clients that have a state
    how: dict[str, Any] | None  # of a run that has finished all rounds: what trained its clients, and its notes


def _check(experiment: Experiment, folder: RunFolder | None, resume: bool) -> str:
    """Check, before anything is written, that the run fits the folder and the machine; return a line on its needs."""
    begun = folder is not None and folder.exists
    if folder is not None and begun and resume:
        check_resumable(folder, experiment.config, describe(experiment))
    out = None if folder is None else folder.path
    needed = resources.check_resources(experiment, is_on_disk(experiment, out), out)
    if folder is not None and begun and not resume:
        folder.clear()
    return needed


def _begin(experiment: Experiment, folder: RunFolder | None, resume: bool, store: Store) -> Begun:
    """Load the last checkpoint when resuming, restore the store, and write what is known before the first round."""
    task = experiment.task
    server = Server(task.x0, experiment.algorithm.server_state(task.x0), task.buffers)
    done, records, notes = 0, list[Record](), Best().list_notes()
    how: dict[str, Any] | None = None
    if folder is not None:
        if resume:
            saved, complaints = checkpoint.load(folder.checkpoints, store)
            for complaint in complaints:
                log.warning(complaint)
            if saved is not None:
                if complaints:
                    log.warning(f"The earlier checkpoint of round {saved.round} is used instead.")
                done, notes, server = saved.round, saved.notes, saved.server
                asked = experiment.config.rounds
                log.info(f"{folder} continues after round {done} of {asked}" if done < asked else
                         f"{folder} has finished all {done} rounds already")  # fmt: skip
                records = [r for r in folder.history if r["round"] <= done]
                if len(records) != done:
                    log.warning(f"rounds.jsonl has records of {len(records)} rounds, but {done} were finished.")
            else:
                if complaints:
                    experiment.notes.append(LOST)
                elif folder.exists:
                    log.info(f"{folder} has no checkpoint yet, so the run starts at round 1")
                store.reset()
        versions = find_versions(task.x0.device)
        with suppress(SteppeError):  # what is damaged is written again
            if done == experiment.config.rounds and (summary := folder.summary):  # nothing is trained here
                how = {key: summary[key] for key in ("executor", "notes") if key in summary}
                versions = folder.versions
        folder.prepare(experiment.config, describe(experiment), versions, experiment.federation.partition, records)
    return Begun(done, records, notes, tree_map(lambda t: t.cpu(), server), store.list_known(), how)


def _run_round(experiment: Experiment, server: Server, store: Store, executor: Executor, t: int, ranks: Ranks,
               names: list[str]) -> tuple[Record, Played | None, Server]:  # fmt: skip
    """Train and evaluate. Return the round's record, the clients' part in it if any answered, and the new server."""
    config, began = experiment.config, time.perf_counter()
    called, played = find_available(experiment, t, experiment.sample(t)), None
    lr = float(f"{experiment.lr(t):.12g}")  # 0.0998, not 0.09980000000000001
    record: Record = {"round": t + 1, "lr": lr, "clients": 0, **called.facts}
    if called.ids or experiment.privacy:  # noise hides whether any client took part
        played = play_round(experiment, server, store, executor, t, called.ids, experiment.lr(t), ranks)
        record |= _describe_round(experiment, server, played, names, t)
        server = played.after
    else:
        log.info(f"round {t + 1}: no client answered, so the model stays as it was")
    record |= _count_steps(experiment, called, played)
    trained = played.trained if played else began
    if (t + 1) % config.evaluate_every == 0 or t + 1 == config.rounds:
        record |= run_on_first(partial(evaluate, experiment, server, t))
    record["seconds"] = {"train": round(trained - began, 4), "all": round(time.perf_counter() - began, 4)}
    return record, played, server


def _finish(experiment: Experiment, folder: RunFolder | None, server: Server, store: Store, records: list[Record],
            best: Best, how: dict[str, Any]) -> tuple[Server, Tensor, Tensors, dict[str, Any]]:  # fmt: skip
    """Choose the final model, evaluate and write it, and return it with the summary, on the CPU for other ranks."""
    chosen = records[-1]["round"] if records else 0
    if experiment.config.early_stopping is not None and best.round:
        server, chosen = best.restore(server, folder), best.round
    last = max(chosen, 1) - 1
    name = experiment.task.metric.name
    judged = next((r for r in records if r["round"] == chosen and name in r), None)
    judged = judged or evaluate(experiment, server, last)
    x, buffers = choose_evaluated_model(experiment, server, last, exported=True)
    with explain_damage(folder.path) if folder is not None else nullcontext():  # records of earlier rounds are read
        summary = summarize(experiment, records, judged, chosen)
    summary |= evaluate_clients(experiment, x, buffers, store) | how
    if folder is not None:
        save_adapter(experiment.task.module(x, buffers), folder.path)
        folder.finish(experiment.task.state_dict(x, buffers), records, summary)
    return (*tree_map(lambda t: t.cpu(), (server, x, buffers)), summary)


def _count_steps(experiment: Experiment, called: Available, played: Played | None) -> Record:
    """Count the local steps of all clients that trained, including late ones; not if participation is secret."""
    if experiment.privacy and experiment.privacy.secret:
        return {}
    federation = experiment.federation
    sizes = played.facts.get("samples") if played else None  # in a real federation, only the nodes have their sizes
    if sizes is None:
        sizes = [federation.sizes[i] for i in (*called.ids, *called.facts.get("late", ()))]
    return {"steps": sum(federation.steps_over(size, experiment.algorithm.local_steps) for size in sizes)}


def _describe_round(experiment: Experiment, before: Server, played: Played, names: list[str], t: int) -> Record:
    """Return a round's record: participants, the clients' loss and drift, norms of the update and of all states."""
    after = played.after
    # The nodes of a real federation keep their states, so there are no norms to record.
    means = (dict(zip(["train_loss", "drift", *names], np.mean(played.losses, axis=0).tolist(), strict=False))
             if played.losses else {})  # fmt: skip
    record: Record = {"clients": len(played.ids)}
    secret = experiment.privacy and experiment.privacy.secret  # then who took part is a secret too
    record |= {} if secret else {"participants": played.ids}
    record |= {key: means.pop(key) for key in ("train_loss", "drift") if key in means}
    record |= {"update_norm": float(torch.linalg.vector_norm(after.x - before.x)),
               "x_norm": float(torch.linalg.vector_norm(after.x))}  # fmt: skip
    held = {f"{p}.{k}": float(torch.linalg.vector_norm(v)) for p, s in after.state.items() for k, v in s.items()
            if p != RunningMean.name}  # fmt: skip
    record |= ({"server_norms": held} if held else {}) | ({"client_norms": means} if means else {})
    record |= privacy.compute_spent(experiment.algorithm, t + 1) | played.facts
    if secret:
        record.pop("samples", None)  # by which a client is known
    if played.refused:
        refused = [{"client": i, "why": why} for i, why in played.refused.items()]
        record["refused"] = [*played.facts.get("refused", []), *refused]
    return record
