"""Measures of a finished run: computed once and kept in its folder.

`analysis.json` contains the numbers, the sample on which they were taken, and the options on which they depend. Arrays
are in the folder `analysis/`. A measure is computed again only if the model, the sample, the seed or its own options
have changed.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from steppe import flatness
from steppe.config import OWN, Config
from steppe.core.errors import SteppeError
from steppe.core.layout import Tensors
from steppe.data import sampling
from steppe.data.npz import write_arrays
from steppe.data.partition import is_rule
from steppe.engine.build import build_experiment
from steppe.engine.choose_executor import choose_executor
from steppe.engine.devices import find_device
from steppe.engine.play_round import play_round
from steppe.engine.resources import make_store
from steppe.experiment import Experiment
from steppe.flatness import Density, Landscape, free_memory
from steppe.measures.client_models import UploadModel, upload_models
from steppe.measures.during_training import MEASURES, Round, Subject
from steppe.runs import checkpoint
from steppe.runs.folder import RunFolder, explain_damage
from steppe.runs.provenance import describe
from steppe.runs.same_run import describe_as_before, find_changed_sources, leave_out_places

log = logging.getLogger("steppe")
LONG = 20.0  # seconds; a measure that takes longer is announced


@dataclass(frozen=True)
class Options:
    """Options of an analysis."""

    samples: int = 5000  # at most this many training examples
    seed: int = 0  # of the sample, the probes and the directions
    clients: int | None = None  # number of clients in the extra round; None: those of the run's next round
    client: int | None = None  # measure this client's loss instead of the global one
    points: int = 21  # points per side of a landscape
    device: str | None = None  # None: the run's device


class Analysis:
    """One run with its stored measures, and what is needed to compute more."""

    def __init__(self, where: Path, options: Options | None = None, own: Mapping[str, Any] | None = None) -> None:
        """Open a finished run. `own` holds the user's own objects, which the folder lacks: algorithm, model, data, …"""
        self.where, self.options, self.own = where, options or Options(), dict(own or {})
        self.folder = RunFolder(where)
        self.whose = "" if self.options.client is None else f"client-{self.options.client}"
        self.config, summary = self.folder.config, self.folder.summary
        if summary is None or not self.folder.model_file.exists():
            raise self.folder.make_unfinished_error()
        if not summary.get("rounds"):
            raise SteppeError(f"{where} has no finished round, so its model is the initial one and there is nothing "
                              "to measure: train it (steppe run --rounds 30).")  # fmt: skip
        self.digest = self.folder.model_digest
        self.at_nodes = summary.get("executor") == "nodes"  # whose data are not here
        if self.at_nodes and self.own.get("data") is None:
            raise SteppeError(f"{where} is a federation's run, whose training data are on its nodes: in Python, call "
                              f"steppe.analyze({str(where)!r}, data=…) with data to measure on.")  # fmt: skip

    def measure(self, names: Sequence[str], others: Sequence[Analysis] = ()) -> dict[str, Any]:
        """Compute the measures that are missing, and return all stored ones.

        `others` are the runs listed before this one, for lines and planes between models. If a measure fails, those
        computed before it are kept.
        """
        if any(thing is not None and thing != [] for thing in self.own.values()):
            _ = self.experiment  # refuses other objects than the run's, even if nothing has to be computed
        content = self.stored()
        if self.folder.read_analysis(self.whose) is not None and not content["measures"]:
            log.warning(f"{self.where}: the stored measures are of a different model, sample or seed, and are replaced")
        for name in names:
            wanted = self._list_options(name, others)
            if name in content["measures"] and content["options"].get(name) == wanted:
                continue
            began = time.perf_counter()
            with _explain_memory(self.where):
                subject = self.subject
                if MEASURES[name].runs > 1:
                    subject.others = [(o.folder.name, o.model[0]) for o in others]
                self._warn(name)
                result = MEASURES[name].of(subject)
            if result is None:
                continue
            content = self.stored()  # read again: another process may have measured this run in the meantime
            content["sample"] = subject.sample.name
            content["measures"][name] = self._write_arrays(name, result)
            content["options"][name] = wanted
            if "round" in vars(subject):
                content["clients"] = subject.round.ids
            self.folder.write_analysis(content, self.whose)
            log.info(f"{self.where}: {name}, {time.perf_counter() - began:.1f} s")
        return content

    def _warn(self, name: str) -> None:
        """Announce the duration of a long measure, estimated from earlier products with the Hessian or from one."""
        known, measure = self.subject.hessian, MEASURES[name]
        count = measure.products * (len(self.subject.blocks) if measure.blocks else 1)
        if count and not known.products:
            known(known.w)
        expected = count * known.seconds / known.products if count else 0.0
        if expected > LONG:
            log.info(f"{self.where}: {name} needs {count} products with the Hessian, about {expected:.0f} s")

    def stored(self) -> dict[str, Any]:
        """Return the stored measures if they are of this model, sample and seed."""
        o = self.options
        fresh: dict[str, Any] = {"sample": None, "samples": o.samples, "seed": o.seed, "model": self.digest,
                                 "measures": {}, "options": {}}  # fmt: skip
        old = self.folder.read_analysis(self.whose)
        if old is None:
            return fresh
        try:
            same = old["model"] == self.digest and old["seed"] == o.seed
            # Two sizes give the same sample if both are at least the size of the data.
            same = same and (old["samples"] == o.samples or old["sample"] == self.subject.sample.name)
            intact = isinstance(old["measures"], dict) and isinstance(old["options"], dict)
        except (KeyError, TypeError):
            same = intact = False
        return old if same and intact else fresh

    def _list_options(self, name: str, others: Sequence[Analysis]) -> dict[str, Any]:
        """Return what this measure depends on in addition to the model, the sample and the seed."""
        options: dict[str, Any] = {}
        measure = MEASURES[name]
        if measure.clients:
            options["clients"] = self.options.clients
        if measure.kind == "drawn" and not name.startswith("density"):
            options["points"] = self.options.points
        if measure.runs > 1:
            options["others"] = [[str(o.where), o.digest] for o in others[: measure.runs - 1]]
        return options

    def _write_arrays(self, name: str, result: Any) -> Any:
        """Return a result as JSON; arrays go into files, whose names replace them."""
        if isinstance(result, Landscape):
            file = self.folder.make_array_file(name, self.whose)
            result.save(self.where / file)
            return {"file": str(file), "kind": result.kind, "sample": result.sample}
        if isinstance(result, dict) and result and all(isinstance(v, Landscape | Density) for v in result.values()):
            return {key: self._write_arrays(f"{name}-{key}", value) for key, value in result.items()}
        if isinstance(result, Density):
            file = self.folder.make_array_file(name, self.whose)
            write_arrays(self.where / file, flatness.as_arrays(result))
            grid = [float(result.grid[0]), float(result.grid[-1])]
            return {"file": str(file), "grid": grid, "sigma": result.sigma, "size": result.size,
                    "trace": flatness.as_json(result.trace)}  # fmt: skip
        return flatness.as_json(result)

    # --------------------------------------------------------------------------------------- what measures need
    @cached_property
    def experiment(self) -> Experiment:
        """Build the run's experiment again, in full precision and without compilation."""
        config = self._choose_config()
        with explain_damage(self.where):
            size = int(self.folder.about.get("parameters", 0)) * {"float32": 4, "float64": 8}[config.dtype]
        free_memory.require(4 * size, find_device(config.device), f"The model in {self.where}", "use a larger machine")
        if self.folder.named_model is None and not self.own.get("model"):
            raise SteppeError(f"{self.where} trained your own module: in Python, call "
                              f"steppe.analyze({str(self.where)!r}, model=YourModule()).")  # fmt: skip
        if changed := find_changed_sources(self.folder, config):
            raise SteppeError(f"{self.where} cannot be measured: {changed[0]}. Put the file back as it was.")
        built = build_experiment(config, at_nodes=self.at_nodes, **self.own)  # the data given there are not divided
        self._check_same(built)
        return built

    def _choose_config(self) -> Config:
        """Return the run's configuration with what an analysis changes."""
        change = {"precision": "fp32", "compile": False, "measure": [], "device": self.options.device,
                  "partition": self._choose_partition(self.config)}  # fmt: skip
        own = [m for m in self.config.metrics if m.startswith(OWN)]
        if own and self.own.get("metric") is None:
            # Most measures need no metric, so its absence causes a warning, not an error.
            log.warning(f"{self.where} was evaluated by {', '.join(m.removeprefix(OWN) for m in own)}: pass metrics=… "
                        "to use it for scores")  # fmt: skip
            change["metrics"] = [m for m in self.config.metrics if m not in own]
        return self.config.model_copy(update={k: v for k, v in change.items() if v is not None})

    def _check_same(self, built: Experiment) -> None:
        """Refuse an experiment with another algorithm, model or data than the run's."""
        about, now = self.folder.about, json.loads(json.dumps(describe(built), default=str))
        with explain_damage(self.where):
            about["parts"] = [p for p in about.get("parts", []) if p.get("part") not in (UploadModel.name, "witness")]
            now["parts"] = describe_as_before(now["parts"], about)
            if by := (about.get("partition") or {}).get("by"):
                now["partition"]["by"] = by
            recorded = ["parts", "parameters"]
            if not self.at_nodes:
                recorded += ["partition", *(["data"] if "format" in about else [])]
            changed = [k for k in recorded if leave_out_places(about.get(k)) != leave_out_places(now[k])]
            changed += ["inputs"] if not _are_close(about.get("inputs"), now["inputs"]) else []
            was, is_ = ((a.get("model") or {}) for a in (about, now))
            changed += ["parameters"] if "base" in was and was["base"] != is_.get("base") else []
            changed += ["parameters"] if was.get("own") and was.get("structure") != is_.get("structure") else []
        if not changed:
            for key in ("head", "predict"):
                if key in was and was[key] != is_.get(key):
                    raise SteppeError(f"{self.where} was trained with {key} = {was[key]}: in Python, call "
                                      f"steppe.analyze({str(self.where)!r}, {key}=…).")  # fmt: skip
            return
        what = {"parts": "algorithm", "parameters": "model"}.get(changed[0], "data")
        if self.own.get(what) is not None:
            base = ": its frozen parameters are not the run's" if was.get("base") != is_.get("base") else ""
            other = "other data than those" if what == "data" else f"another {what} than the one"
            raise SteppeError(f"{self.where} was trained with {other} that you pass{base}.")
        raise SteppeError(f"{self.where} was not trained with the {what} that its settings name, but with your "
                          f"own: in Python, call steppe.analyze({str(self.where)!r}, {what}=…).")  # fmt: skip

    def _choose_partition(self, config: Config) -> str:
        """Return the rule or, if the partition came from a file or from the user's program, the run's copy."""
        if self.at_nodes:
            return config.partition  # not used: there is no division
        # What a rule divided by is in the user's program alone; the run's copy has the result.
        divided = (self.folder.about.get("partition") or {}).get("by")
        return config.partition if is_rule(config.partition) and not divided else str(self.folder.partition_file)

    @cached_property
    def model(self) -> tuple[Tensor, Tensors]:
        """Return the final model as a flat vector, and its running statistics."""
        task, state = self.experiment.task, self.folder.read_model_state()
        state = {k: v.to(task.x0) if v.is_floating_point() else v for k, v in state.items()}
        try:
            if any(state[n].shape != s for n, s in zip(task.layout.names, task.layout.shapes, strict=True)):
                raise KeyError
            w, buffers = task.layout.flatten(state), {k: state[k] for k in task.buffers}
        except KeyError:
            raise SteppeError(f"The weights in {self.where} do not fit the model that its settings name.") from None
        task.constants = {k: state.get(k, v) for k, v in task.constants.items()}
        return w, buffers

    @cached_property
    def subject(self) -> Subject:
        """Return the final model with everything that measures need."""
        o, federation = self.options, self.experiment.federation
        if self.at_nodes and o.client is not None:
            raise SteppeError("The clients' data are on the federation's nodes: measure the global loss.")
        sample = (flatness.of_training_data(federation, o.samples, o.seed) if o.client is None
                  else flatness.of_client(federation, o.client, o.samples, o.seed))  # fmt: skip
        return Subject(self.experiment, *self.model, sample, o.seed, o.points, self.play_extra_round)

    def play_extra_round(self) -> Round:
        """Run one more round from the last checkpoint, with the run's own algorithm and all its states.

        The learning rate is that of the last round, because a cosine schedule ends at 0. Nothing is written.
        """
        if self.at_nodes:
            raise SteppeError("Measures of clients need their data, which are on the federation's nodes: choose others "
                              "(for instance with --measures hessian).")  # fmt: skip
        if self.options.client is not None:
            raise SteppeError("Measures of the round's clients use the global loss: leave out --client.")
        watched = replace(self.experiment, algorithm=upload_models(self.experiment.algorithm))
        store = make_store(watched, self.where)
        saved, complaints = checkpoint.load(self.folder.checkpoints, store)
        if saved is None:
            problem = " ".join(complaints) or f"{self.where} has no checkpoint."
            raise SteppeError(f"{problem} Measures of clients need it to run one more round: leave them out "
                              "(for instance with --measures hessian), or run again.")  # fmt: skip
        server = tree_map(lambda t: t.to(watched.task.x0.device), saved.server)
        server = server._replace(state={**server.state, UploadModel.name: {}})
        t, count = saved.round, self.options.clients
        ids = watched.sample(t) if count is None else []
        ids = ids or _draw_clients(self.config.clients, count or self.config.per_round, self.options.seed)
        free_memory.require(4 * len(ids) * watched.task.x0.nbytes, watched.task.x0.device,
                            f"A round of {len(ids)} clients", "choose fewer --clients")  # fmt: skip
        executor = choose_executor(watched)
        try:
            return play_round(watched, server, store, executor, t, ids, watched.lr(t - 1)).as_round()
        finally:
            executor.close()


def _are_close(was: dict[str, list[float]] | None, now: dict[str, list[float]]) -> bool:
    """Compare means and deviations of inputs, whose last digits depend on the machine that added them up."""
    return was is not None and was.keys() == now.keys() and all(
        len(was[k]) == len(now[k]) and np.allclose(was[k], now[k], rtol=1e-6, atol=1e-9) for k in now)  # fmt: skip


def _draw_clients(clients: int, count: int, seed: int) -> list[int]:
    return sorted(map(int, sampling.fixed(clients, count, 0, seed, official=False)))


@contextmanager
def _explain_memory(where: Path) -> Iterator[None]:
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise _make_memory_error(where) from error
    except RuntimeError as error:  # PyTorch raises this if the system refuses memory
        if "alloc" in str(error) and "memory" in str(error):
            raise _make_memory_error(where) from error
        raise


def _make_memory_error(where: Path) -> SteppeError:
    return SteppeError(f"The measures of {where} need more memory than is free: choose fewer --samples, "
                       "or use a larger machine.")  # fmt: skip
