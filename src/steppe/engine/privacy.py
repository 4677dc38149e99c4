"""What a run with privacy or robust aggregation must be like, what it should know, and what it has spent."""

from __future__ import annotations

from typing import Any

from steppe.config import Config
from steppe.core.algorithm import Algorithm
from steppe.core.errors import SteppeError
from steppe.core.task import Task
from steppe.engine.accountant import check_installed, epsilon
from steppe.parts.differential_privacy import DifferentialPrivacy
from steppe.parts.robust import Krum


def privacy(algorithm: Algorithm) -> DifferentialPrivacy | None:
    return next((p for p in algorithm.parts if isinstance(p, DifferentialPrivacy)), None)


def check_accountant(algorithm: Algorithm) -> None:
    if privacy(algorithm) is not None:
        check_installed()


def check(config: Config, algorithm: Algorithm, task: Task) -> list[str]:
    """Refuse a run whose promise would be empty; otherwise, what the user should know."""
    for p in algorithm.using("reduce"):
        if config.weighting != "uniform":
            raise SteppeError(f"{p.name} counts every client alike, because a sample count is a client's own claim: "
                              "set weighting = uniform.")  # fmt: skip
        if isinstance(p, Krum) and (config.per_round < p.fewest or config.sampling != "fixed"):
            raise SteppeError(f"krum:bad={p.bad},keep={p.keep} needs {p.fewest} replies in every round: set per_round "
                              "to that or more, with sampling = fixed, or lower bad or keep.")  # fmt: skip
    if task.buffers and (bounding := algorithm.using("screen")):
        raise SteppeError(f"{bounding[0].name} bounds what clients upload, and a bound means nothing for running "
                          "statistics (batch norm): use a model with group norm.")  # fmt: skip
    private = privacy(algorithm)
    return [] if private is None else _check_privacy(config, private, task.layout.size)


def _check_privacy(config: Config, dp: DifferentialPrivacy, size: int) -> list[str]:
    check_installed()
    for key in ("per_round", "clients"):
        if getattr(dp, key) != getattr(config, key):
            raise SteppeError(
                f"{key} of dp is {getattr(dp, key)}, but the run's is {getattr(config, key)}: leave it out."
            )
    if dp.amplified and config.sampling != "bernoulli":
        raise SteppeError("dp's ε counts on clients being drawn one by one (Poisson sampling): set sampling = "
                          "bernoulli, or dp:amplified=false, which claims nothing from sampling.")  # fmt: skip
    if dp.delta >= 1 / config.clients:
        raise SteppeError(f"delta of dp is {dp.delta:g}, but must be below one in {config.clients} clients: with a "
                          "larger one, giving away a whole client would count as private.")  # fmt: skip
    dp.key()  # a secret that cannot be read is no surprise for the first round
    assumed = f"each drawn with probability {config.per_round / config.clients:g}" if dp.amplified else "any sampling"
    notes = [f"dp: ε is for adding or removing one client, {assumed}, δ = {dp.delta:g}; the server is trusted, and "
             "records of clients' losses and norms are not covered"]  # fmt: skip
    if dp.noise == 0:
        notes.append("dp: noise = 0 protects nobody")
    elif dp.secret is None:
        notes.append("dp: the noise follows from the seed, so that the run can be repeated, and whoever knows the seed "
                     "can take it off: for real data give dp:secret=FILE")  # fmt: skip
    drowned = dp.noise * size**0.5 / config.per_round  # the noise's norm on the mean, in clips
    if drowned > 1:
        notes.append(f"dp: the noise on the mean update is about {drowned:.3g} times as long as an update can be "
                     f"({size:,} parameters, {config.per_round} clients a round), so little will be learnt: take many "
                     "more clients a round, a smaller model, or less noise")  # fmt: skip
    if config.validation:
        notes.append("dp: validation looks at training data as it is, which ε does not cover")
    return notes


def spent(algorithm: Algorithm, rounds: int) -> dict[str, Any]:
    """ε after this many rounds, for records; null where nothing is promised."""
    dp = privacy(algorithm)
    if dp is None:
        return {}
    rate = dp.planned / dp.clients if dp.amplified and dp.clients else 1.0
    found = epsilon(dp.noise, rate, rounds, dp.delta)
    return {"epsilon": found if found != float("inf") else None, "delta": dp.delta}
