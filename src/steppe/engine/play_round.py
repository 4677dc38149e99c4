"""One round: broadcast → clients → checks → aggregate. The simulator, a federation and an analysis all use it."""

from __future__ import annotations

import logging
import time
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from steppe.core.client import Reply, Sent, list_tensors, make_empty_replies
from steppe.core.errors import RunFailed
from steppe.core.server import Portion, Server, aggregate, broadcast
from steppe.core.stacking import flatten_rows, stack, take_row
from steppe.core.validate import find_faults, find_finite, sift_replies
from steppe.distributed.ranks import Ranks, make_no_rows
from steppe.executors.executor import Answers, Executor
from steppe.experiment import Experiment
from steppe.measures.client_models import UploadModel
from steppe.measures.subject import Round
from steppe.runs.client_store import Store

log = logging.getLogger("steppe")


class Played(NamedTuple):
    """The outcome of a round."""

    ids: list[int]  # the clients whose replies were accepted
    sent: Sent
    replies: Reply  # of all clients if they were gathered, otherwise of this rank's clients
    losses: list[list[float]]  # per client: its loss, its drift, the norms of its states
    after: Server
    refused: dict[int, str]  # the clients whose replies were rejected, and why
    facts: dict[str, Any]  # what the executor reports about the round
    trained: float  # the time at which the clients were done

    def as_round(self) -> Round:
        """Return what measures need; the clients must have uploaded their models."""
        return Round(self.ids, self.sent.x, self.replies.up[UploadModel.name]["w"], self.after.x)


def play_round(experiment: Experiment, server: Server, store: Store, executor: Executor, t: int, ids: list[int],
               rate: float, ranks: Ranks | None = None) -> Played:  # fmt: skip
    """Run round t with these clients and this learning rate, and store the clients' states."""
    config, algorithm, task, called = experiment.config, experiment.algorithm, experiment.task, ids
    ranks = ranks or Ranks(store.fresh, False)
    work = [max(1, experiment.steps(i)) for i in ids] if ranks.on else [1] * len(ids)
    owners = ranks.assign(ids, work)
    mine = [ids[k] for k in ranks.find_own(owners)]
    states = tree_map(lambda v: v.to(task.x0.device), ranks.fetch(store, ids, owners))
    lr, now = task.x0.new_tensor(rate), task.x0.new_tensor(float(t))
    rows = None
    if ids and algorithm.using("prepare"):
        rows = ranks.gather(stack(states) if states else make_no_rows(store.fresh()), owners)
    prepared, sent = broadcast(algorithm, task.layout, server, lr, now, rows, config.clients)
    if mine:
        answers = executor(sent, mine, states)
    else:
        no_replies = make_empty_replies(algorithm, task, sent, store.fresh())
        answers = Answers([], no_replies, [], experiment.federation.samples, {})
    replies = answers.replies
    if not ranks.on:  # nodes of a real federation may be absent; ranks always train all their clients
        ids = mine = answers.ids
        owners = [0] * len(ids)
    # If no part changes it, the update is w − x and its norm is the drift. Replies from outside are not trusted.
    lengths = replies.drift if executor.trusted and not algorithm.using("finish") else None
    why = find_faults(replies, config.refuse_above, lengths)
    each = ranks.gather_objects(list(zip(why, _list_losses(replies), answers.sizes, strict=True)), owners)
    refused = {i: why for i, (why, _, _) in zip(ids, each, strict=True) if why}
    if refused:
        _complain(experiment, refused, len(ids), t)
        mine, replies = sift_replies(mine, replies, why)
        owners = [owner for i, owner in zip(ids, owners, strict=True) if i not in refused]
        ids = [i for i in ids if i not in refused]
    if called and not ids and not experiment.privacy:  # noise hides whether anybody replied
        return Played([], sent, replies, [], server, refused, answers.facts, time.perf_counter())
    if algorithm.using("prepare") and len(ids) < len(called):  # what was sent depends on clients without a reply
        again = play_round(experiment, server, store, executor, t, ids, rate, ranks)
        return again._replace(refused=refused | again.refused, facts=_join_facts(answers.facts, again.facts))
    ranks.keep(store, ids, owners, [take_row(replies.state, i) for i in range(len(mine))])
    trained = time.perf_counter()
    portion = None
    if ranks.on and _can_add_up(experiment):
        portion = Portion(ranks.find_own(owners), ranks.sum)
    else:
        replies = ranks.gather(replies._replace(state={}), owners)
    by_samples = config.weighting == "samples"
    weights = task.x0.new_tensor([float(size) if by_samples else 1.0 for why, _, size in each if not why])
    everything = float(answers.samples if by_samples else config.clients)

    def gather_state(part: str, name: str) -> Tensor:
        return ranks.gather_state(store, part, name).to(task.x0.device)

    after = aggregate(algorithm, task.layout, prepared, sent, replies, weights, config.clients, gather_state,
                      everything, portion)  # fmt: skip
    if config.buffers == "local":
        after = after._replace(buffers=server.buffers)
    _check_global(after, t)
    ranks.check_same(after.x)
    losses = [loss for why, loss, _ in each if not why]
    return Played(ids, sent, replies, losses, after, refused, answers.facts, trained)


def _join_facts(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Join the facts of a round that was run twice: clients that were lost in either, otherwise the second."""
    lost = {key: [*first.get(key, []), *second.get(key, [])] for key in ("dropped", "refused")}
    return first | second | {key: clients for key, clients in lost.items() if clients}


def _can_add_up(experiment: Experiment) -> bool:
    """Return whether ranks may add partial sums. An ordered reduction, and parts that use each reply, need them all."""
    algorithm = experiment.algorithm
    each = (
        algorithm.using("screen")
        or algorithm.using("reduce")
        or any(isinstance(p, UploadModel) for p in algorithm.parts)
    )
    return experiment.config.reduction == "sum" and not each


def _list_losses(replies: Reply) -> list[list[float]]:
    norms = [torch.linalg.vector_norm(flatten_rows(v), dim=1) for v in list_tensors(replies.state)]
    losses: list[list[float]] = torch.stack([replies.loss, replies.drift, *norms], dim=1).tolist()
    return losses


def _complain(experiment: Experiment, refused: dict[int, str], called: int, t: int) -> None:
    """Stop the run because of rejected replies or, with nonfinite = drop, warn and continue without them."""
    reasons = {why: [i for i, w in refused.items() if w == why] for why in refused.values()}
    sentence = f"round {t + 1}: " + "; ".join(f"the update of client {', '.join(map(str, i))} {why}"
                                              for why, i in reasons.items())  # fmt: skip
    if experiment.config.nonfinite == "stop":
        raise RunFailed(f"{sentence}: lower lr, set clip = 10, or drop such updates with nonfinite = drop.")
    if len(refused) == called:
        raise RunFailed(f"{sentence}, so no update is left: lower lr, or set clip = 10.")
    log.warning(f"{sentence} and was dropped")


def _check_global(server: Server, t: int) -> None:
    if not bool(find_finite(server.x[None])):
        raise RunFailed(f"round {t + 1}: the global model is not finite, although every client's update is: the "
                        "server's rule diverges with these settings (try a smaller server_lr or alpha).")  # fmt: skip
