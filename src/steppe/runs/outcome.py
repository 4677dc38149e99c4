"""What one can do with a run's records and model, whether it has just ended or was read back from its folder."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from steppe.core.errors import SteppeError, make_missing_error, quote, suggest_name, take_first_line
from steppe.core.inputs import cast, map_tensors, split_arguments
from steppe.core.metric import Metric
from steppe.runs.curves import find_curves, plot_curves
from steppe.runs.records import Record, describe_score, restore_number, tabulate
from steppe.runs.tensor_files import save_file

if TYPE_CHECKING:
    import pandas

EXPORTS = {".pt": "a state dict for torch.load", ".safetensors": "the same, for any program", ".onnx": "a graph"}


class Outcome:
    """Views and exports of a run: `steppe.Result` and `steppe.Run` have them."""

    history: list[Record]
    summary: Any  # a dictionary; None: not finished
    folder: Path | None

    @property
    def algorithm(self) -> str:
        """Return the name of the algorithm."""
        raise NotImplementedError

    @property
    def metric(self) -> Metric:
        """Return the metric by which the model was evaluated."""
        raise NotImplementedError

    @property
    def other_metrics(self) -> Sequence[Metric]:
        """Return the further metrics, after the main one."""
        return ()

    @property
    def judged_on(self) -> str:
        """Return which samples the model was evaluated on: test or validation."""
        raise NotImplementedError

    @property
    def metrics(self) -> dict[str, float]:
        """Return all metrics of the final model, by name; {} before the end."""
        found = (self.summary or {}).get("metrics", {})
        return {name: float(one["last"]) for name, one in found.items() if one["last"] is not None}

    @property
    def model(self) -> nn.Module:
        """Return the trained module, ready to predict, with an ordinary state_dict()."""
        raise NotImplementedError

    def example(self) -> Any:
        """Return inputs that the model accepts, or None if they are not known."""
        return None

    @property
    def score(self) -> float:
        """Return the final model's metric on the test set, or on what `judged_on` names."""
        if self.summary is None:
            raise SteppeError(f"{self.folder} has not finished, so it has no final score; result.history has the "
                              "rounds so far.")  # fmt: skip
        if self.summary["last"] is None and not self.summary.get("metrics"):
            raise SteppeError("There are no test data, so there is no score; result.history has the training losses.")
        return restore_number(self.summary["last"])

    def state_dict(self) -> dict[str, Tensor]:
        """Return the trained model's state dict."""
        return self.model.state_dict()

    # ------------------------------------------------------------------------------------------------------ views
    def __repr__(self) -> str:
        said = "not finished" if self.summary is None else describe_score(self.summary, self.metric)
        rounds = self.summary["rounds"] if self.summary is not None else len(self.history)
        place = f", in {self.folder}" if self.folder else ""
        return f"<{type(self).__name__} of {self.algorithm}: {said} after {rounds} round{'s' * (rounds != 1)}{place}>"

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        rows = {"algorithm": self.algorithm, "rounds": str(len(self.history))}
        if self.summary is not None:
            numbers = {"last": self.metric.name, "best": f"best {self.metric.name}"}
            rows |= {name: f"{self.metric.number(self.summary[key])}{self.metric.unit}"
                     for key, name in numbers.items() if self.summary.get(key) is not None}  # fmt: skip
            found = self.metrics
            rows |= {m.name: f"{m.number(found[m.name])}{m.unit}" for m in self.other_metrics if m.name in found}
            rows |= {"loss": f"{self.summary['loss']:.4g}"} if self.summary.get("loss") is not None else {}
            rows["seconds"] = f"{self.summary['seconds']:.3g}"
        else:
            rows["state"] = "not finished"
        rows |= {"folder": str(self.folder)} if self.folder else {}
        cells = "".join(f"<tr><th style='text-align:left'>{escape(name)}</th><td>{escape(value)}</td></tr>"
                        for name, value in rows.items())  # fmt: skip
        return f"<table>{cells}</table>"

    def frame(self) -> pandas.DataFrame:
        """Return the rounds as a pandas table, as in rounds.csv: nested keys are joined by dots."""
        if find_spec("pandas") is None:
            raise make_missing_error("frame() needs pandas, which is not installed", "pandas",
                          "; history has the same records as dictionaries.")  # fmt: skip
        import pandas

        rows = tabulate(self.history)
        return pandas.DataFrame(rows).set_index("round") if rows else pandas.DataFrame()

    def plot(self, path: str | Path | None = None, metrics: Sequence[str] = ()) -> Any:
        """Plot metrics and loss over the rounds, and return the axes; with a path, write a picture instead.

        metrics  what to plot instead: columns of `frame()`, such as "train_loss"
        """
        if find_spec("matplotlib") is None:
            raise SteppeError("plot() needs matplotlib, which is not installed; install it with: pip install "
                              "matplotlib")  # fmt: skip
        histories = {self.algorithm: [self.history]}
        shown = find_curves(histories, metrics, [self.metric, *self.other_metrics], self.judged_on)
        return plot_curves(histories, shown, path)

    # ---------------------------------------------------------------------------------------------------- exports
    def export(self, path: str | Path, example: Any = None) -> Path:
        """Write the trained model: .pt (a state dict), .safetensors, or .onnx, by the suffix; return the path.

        ONNX needs inputs to follow through the model: by default one of the test samples, or `example`, a tensor
        or NumPy array with the batch first, or a tuple or dict of them. The model takes inputs that are
        normalised as in training.
        """
        path = Path(path)
        if path.suffix not in EXPORTS:
            raise SteppeError(f"export: {path} has no suffix that names a format{suggest_name(path.suffix, EXPORTS)}")
        if path.suffix == ".onnx":
            self._check_onnx()
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".onnx":
            self._export_onnx(path, example)
            return path
        if path.suffix == ".pt":
            torch.save({k: v.detach().cpu().clone().contiguous() for k, v in self.state_dict().items()}, path)
        else:
            save_file(self.state_dict(), path)
        return path

    @staticmethod
    def _check_onnx() -> None:
        if any(find_spec(name) is None for name in ("onnx", "onnxscript")):
            raise make_missing_error(
                "An export to ONNX needs onnx and onnxscript", "onnx", "; .pt and .safetensors need nothing."
            )

    def _take_example(self, given: Any) -> Tensor:
        """Return one input as a tensor; NumPy's numbers, float64 unless told otherwise, in the model's precision."""
        if not isinstance(given, Tensor | np.ndarray) or given.ndim == 0:
            raise SteppeError(f"export: example has {quote(given)} in it: pass a tensor or a NumPy array with the "
                              "batch first, or a tuple or dict of them.")  # fmt: skip
        if isinstance(given, Tensor):
            return given
        dtype = next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float32)
        return cast(torch.from_numpy(np.ascontiguousarray(given)), dtype)

    def _export_onnx(self, path: Path, example: Any) -> None:
        given = self.example() if example is None else example
        if given is None:
            raise SteppeError("export: the shape of the inputs is not recorded: pass example=, a batch of inputs.")
        taken = tree_map(self._take_example, given)
        pair = map_tensors(lambda v: v.cpu().expand(max(len(v), 2), *v.shape[1:]), taken)  # a batch of one stays one
        positional, named = split_arguments(pair)
        device = next(self.model.parameters()).device
        try:
            self._write_onnx(self.model.cpu(), path, positional, named)
        finally:
            self.model.to(device)

    @staticmethod
    def _write_onnx(model: nn.Module, path: Path, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        try:
            with torch.no_grad():
                model(*positional, **named)
        except Exception as error:  # a user's model may raise anything
            raise SteppeError(f"export: the model cannot take these inputs: {error}.") from error
        free = tree_map(lambda _: {0: torch.export.Dim("batch")}, named or positional)
        try:
            with _silence_exporter():
                torch.onnx.export(model, positional, path, kwargs=named, dynamo=True, dynamic_shapes=free,
                                  external_data=False, verbose=False)  # fmt: skip
        except torch.onnx.OnnxExporterError as error:
            raise SteppeError(f"PyTorch cannot export this model to ONNX: {take_first_line(error)}") from error


@contextmanager
def _silence_exporter() -> Iterator[None]:
    """Hide what PyTorch's exporter says about itself: packages that the model does not use, its own old functions."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        logger.setLevel(level)
