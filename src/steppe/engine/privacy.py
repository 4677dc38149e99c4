"""Requirements and notes for runs with differential privacy or robust aggregation, and the ε they have spent."""

from __future__ import annotations

from typing import Any

from steppe.config import Config
from steppe.core.algorithm import Algorithm
from steppe.core.errors import SteppeError
from steppe.core.task import Task
from steppe.engine.accountant import check_installed, compute_epsilon
from steppe.parts.differential_privacy import DifferentialPrivacy, find_privacy
from steppe.parts.robust import Krum


def check_accountant(algorithm: Algorithm) -> None:
    """Refuse a private algorithm if the privacy accountant is not installed."""
    if find_privacy(algorithm.parts) is not None:
        check_installed()


def check_trust(config: Config, algorithm: Algorithm, task: Task) -> list[str]:
    """Refuse a run whose guarantee would be empty; otherwise return notes for the user."""
    for p in algorithm.using("reduce"):
        if config.weighting != "uniform":
            raise SteppeError(f"{p.name} gives every client the same weight, because a client could lie about its "
                              "sample count: set weighting = uniform.")  # fmt: skip
        if isinstance(p, Krum) and (config.per_round < p.fewest or config.sampling == "bernoulli"):
            raise SteppeError(f"krum:bad={p.bad},keep={p.keep} needs {p.fewest} replies in every round: set per_round "
                              "to at least that and sampling = fixed, or lower bad or keep.")  # fmt: skip
    if task.buffers and (bounding := algorithm.using("screen")):
        raise SteppeError(f"{bounding[0].name} bounds what clients upload, but running statistics (batch norm) cannot "
                          "be bounded: use a model with group norm.")  # fmt: skip
    private = find_privacy(algorithm.parts)
    return [] if private is None else _check_privacy(config, private, task.layout.size)


def _check_privacy(config: Config, dp: DifferentialPrivacy, size: int) -> list[str]:
    check_installed()
    for key in ("per_round", "clients"):
        if getattr(dp, key) != getattr(config, key):
            raise SteppeError(
                f"{key} of dp is {getattr(dp, key)}, but the run's is {getattr(config, key)}: leave it out."
            )
    if dp.amplified and config.sampling != "bernoulli":
        raise SteppeError("dp's ε assumes that each client is drawn independently (Poisson sampling): set sampling = "
                          "bernoulli, or dp:amplified=false, which claims no amplification by sampling.")  # fmt: skip
    if dp.delta >= 1 / config.clients:
        raise SteppeError(f"delta of dp is {dp.delta:g}, but must be below 1/{config.clients}, one over the number of "
                          "clients: with a larger one, revealing a whole client would count as private.")  # fmt: skip
    dp.key()  # a secret that cannot be read must fail now, not in the first round
    assumed = f"each drawn with probability {config.per_round / config.clients:g}" if dp.amplified else "any sampling"
    notes = [f"dp: ε is for adding or removing one client, {assumed}, δ = {dp.delta:g}; the server is trusted, and "
             "ε does not cover the records of clients' losses and norms"]  # fmt: skip
    if dp.noise == 0:
        notes.append("dp: noise = 0 gives no protection")
    elif dp.secret is None:
        notes.append("dp: the noise follows from the seed, so that the run can be repeated, and anyone who knows the "
                     "seed can remove it: for real data, give dp:secret=FILE")  # fmt: skip
    drowned = dp.noise * size**0.5 / config.per_round  # the norm of the noise on the mean, in units of the clip
    if drowned > 1:
        notes.append(f"dp: the norm of the noise on the mean update is about {drowned:.3g} times the largest possible "
                     f"update ({size:,} parameters, {config.per_round} clients per round), so the model will learn "
                     "little: use many more clients per round, a smaller model, or less noise")  # fmt: skip
    if config.validation:
        notes.append("dp: validation uses training data without noise, which ε does not cover")
    return notes


def compute_spent(algorithm: Algorithm, rounds: int) -> dict[str, Any]:
    """Return ε and δ after this many rounds, for records; ε is None if it is infinite."""
    dp = find_privacy(algorithm.parts)
    if dp is None:
        return {}
    rate = dp.planned / dp.clients if dp.amplified and dp.clients else 1.0
    found = compute_epsilon(dp.noise, rate, rounds, dp.delta)
    return {"epsilon": found if found != float("inf") else None, "delta": dp.delta}
