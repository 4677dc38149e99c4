"""Tables of measures: which numbers of an analysis have a column, and what the columns mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from steppe.core.rounding import Number, format_number
from steppe.report.seeds import compute_spread
from steppe.report.table import Table
from steppe.runs.folder import RunFolder

Content = Mapping[str, Any]  # of analysis.json


class Column(NamedTuple):
    heading: str
    measure: str
    of: Callable[[Any], Any]  # the measure's JSON -> an estimate's JSON, or a plain number


def _take_eigenvalue(end: str) -> Callable[[Any], Any]:
    return lambda m: {"value": m[end]["values"][0], "error": m[end]["residuals"][0]}


COLUMNS: dict[str, list[Column]] = {
    "Hessian": [
        Column("λ1", "lambda1", _take_eigenvalue("top")),
        Column("λ1/λ5", "lambda1", lambda m: {"value": m["ratio"], "error": m.get("ratio_error")}),
        Column("smallest λ", "smallest", _take_eigenvalue("bottom")),
        Column("trace", "trace", lambda m: m),
        Column("trace++", "trace_pp", lambda m: m),
    ],
    "sharpness": [
        Column("loss", "loss", lambda m: m),
        Column("SAM", "sharpness", lambda m: m["rise"]),
        Column("ascent", "ascent", lambda m: m["rise"]),
        Column("ASAM", "asam", lambda m: m["rise"]),
        Column("LPF", "lpf", lambda m: m),
        Column("‖g‖", "gradient_norm", lambda m: m),
    ],
    "clients, one more round": [
        Column("consistency", "consistency", lambda m: m["mean"]),
        Column("to global", "divergence", lambda m: m["global_local"]),
        Column("pairs", "divergence", lambda m: m["local_local"]),
        Column("cos", "alignment", lambda m: m["pairs"]),
        Column("FD", "flatness_discrepancy", lambda m: m["code"]),
        Column("FD poster", "flatness_discrepancy", lambda m: m["poster"]),
        Column("D1 (ours)", "flatness_distance", lambda m: m["ours_d1"]),
        Column("D2 (ours)", "flatness_distance", lambda m: m["ours_d2"]),
        Column("D3 (ours)", "flatness_distance", lambda m: m["ours_d3"]),
        Column("L_p", "proximal_effect", lambda m: m["loss"]),
        Column("cos(g_u,g_p)", "proximal_effect", lambda m: m["cosine"]),
        Column("local score", "local_score", lambda m: m["mean"]),
        Column("forgetting", "forgetting", lambda m: m),
        Column("clients' λ1", "lambda1_clients", lambda m: m["mean"]),
    ],
}  # fmt: skip
LEGEND = {  # what a heading alone does not say
    "λ1": "λ: eigenvalues of the Hessian; ± of a single run is the residual",
    "trace": "trace: estimated with Hutchinson's probes",
    "trace++": "trace++: estimated with Hutch++",
    "SAM": "SAM: rise of the loss after one ascent step of length 0.05",
    "ascent": "ascent: highest rise within five ascent steps",
    "ASAM": "ASAM: rise after a scale-invariant step",
    "LPF": "LPF: mean loss under Gaussian noise on the weights",
    "‖g‖": "‖g‖: norm of the gradient",
    "consistency": "consistency: (1/n)Σ‖w_i − mean‖²",
    "to global": "to global, pairs: distances between models",
    "cos": "cos: cosine between clients' gradients",
    "FD": "FD: FedScar's flatness discrepancy, as in its code and on its poster",
    "D1 (ours)": "D: our stand-ins for FedNSAM's flatness distance",
    "L_p": "L_p, cos(g_u,g_p): FedSoL's proximal loss, its gradient's cosine with the loss's at the perturbed model",
    "local score": "local score: the metric of clients' models on all samples that the global model is evaluated on",
    "forgetting": "forgetting: how much of it local training costs",
}
OWN_DATA = "its own training data, at most as many examples as the sample has"  # for curvature and landscapes
NOTES = {"clients, one more round": ["clients' losses cover all of their training data, their λ1 at most as many "
                                     "examples as the sample has"]}  # fmt: skip


class Profile(NamedTuple):
    """A measure that has a number per layer or tensor."""

    title: str
    what: str
    measure: str
    of: Callable[[Any], dict[str, Any]]  # the measure's JSON -> name -> an estimate's JSON


PROFILES = [
    Profile("Trace of the Hessian's blocks", "trace", "per_layer", lambda m: m["trace"]),
    Profile("Largest eigenvalue of the Hessian's blocks", "λ1", "per_layer", lambda m: m["lambda1"]),
    Profile("λ1/λ5 of the Hessian's blocks", "λ1/λ5", "per_layer", lambda m: m.get("ratio", {})),
    Profile("Mean of FedSoL's adaptive radius in every tensor", "radius", "radius_profile", lambda m: m),
]


def split_to_width(table: Table, width: int) -> list[Table]:
    """Split a table into pieces that fit a terminal of this width, to be shown one below the other."""
    wide = [max(len(row[i]) for row in [table.columns, *table.rows]) + 2 for i in range(len(table.columns))]
    pieces: list[list[int]] = [[]]
    for i in range(1, len(wide)):
        if pieces[-1] and wide[0] + sum(wide[k] for k in pieces[-1]) + wide[i] > width + 2:
            pieces.append([])
        pieces[-1].append(i)
    return [Table(table.title + ", continued" * (piece is not pieces[0]), [table.columns[i] for i in [0, *piece]],
                  [[row[i] for i in [0, *piece]] for row in table.rows],
                  table.note if piece is pieces[-1] else "") for piece in pieces]  # fmt: skip


def read_number(found: Any) -> Number | None:
    """Read an estimate or a plain number of analysis.json; None where there is none."""
    if isinstance(found, Mapping):
        return None if found.get("value") is None else (float(found["value"]), found.get("error"))
    return None if found is None else (float(found), None)


def read_numbers(content: Content, among: Sequence[str] | None = None) -> dict[str, Number]:
    """Read every number that has a column, by heading; only of the measures in `among`, if given."""
    found = {}
    for columns in COLUMNS.values():
        for c in columns:
            if c.measure in content["measures"] and (among is None or c.measure in among):
                value = read_number(c.of(content["measures"][c.measure]))
                if value is not None:
                    found[c.heading] = value
    return found


def explain(headings: Iterable[str]) -> list[str]:
    """Say what those headings mean that are not self-explanatory."""
    return [LEGEND[h] for h in headings if h in LEGEND]


def make_tables(runs: Mapping[str, Mapping[str, Number]], first: str = "run") -> list[Table]:
    """Make a table per kind of measure, with a row per run."""
    made = []
    for title, columns in COLUMNS.items():
        shown = [c.heading for c in columns if any(c.heading in values for values in runs.values())]
        if shown:
            rows = [[label, *(format_number(values.get(h)) for h in shown)] for label, values in runs.items()]
            legend = "; ".join([*explain(shown), *NOTES.get(title, [])])
            made.append(Table(title, [first, *shown], rows, legend))
    return made


def make_profile_tables(runs: Mapping[str, Content], among: Sequence[str]) -> list[Table]:
    """Make a table per run of the numbers of its layers or tensors."""
    made = []
    for label, content in runs.items():
        for measure, what in (("per_layer", "blocks of the Hessian"), ("radius_profile", "FedSoL's adaptive radius")):
            if measure in content["measures"] and measure in among:
                parts = {p.what: p.of(content["measures"][measure]) for p in PROFILES if p.measure == measure}
                names = list(next(iter(parts.values())))
                rows = [[name, *(format_number(read_number(p.get(name))) for p in parts.values())] for name in names]
                made.append(Table(f"{label}: {what}", ["part", *parts], rows))
    return made


def read_profile(content: Content, which: Profile) -> dict[str, Number]:
    """Read a profile's numbers by layer or tensor; empty where it was not measured."""
    found = content.get("measures", {}).get(which.measure)
    each = {name: read_number(v) for name, v in which.of(found).items()} if found else {}
    return {name: v for name, v in each.items() if v is not None}


def average_seeds(each: Sequence[Mapping[str, Number]]) -> dict[str, Number]:
    """Take mean and standard deviation over the seeds that have a number; a single one keeps its own uncertainty."""
    found = {h: [one[h] for one in each if h in one] for h in dict.fromkeys(h for one in each for h in one)}
    return {h: several[0] if len(several) == 1 else compute_spread([v for v, _ in several])
            for h, several in found.items()}  # fmt: skip


def shorten_paths(paths: Sequence[Path]) -> list[str]:
    """Name runs as briefly as possible: by what their paths do not share.

    >>> shorten_paths([Path("runs/c/fedavg/seed-0"), Path("runs/c/fedsam/seed-0")])
    ['fedavg/seed-0', 'fedsam/seed-0']
    >>> shorten_paths([Path("runs/c/fedavg/seed-0")])
    ['fedavg/seed-0']
    """
    if len(paths) == 1:
        return [RunFolder(paths[0]).name or str(paths[0])]
    parts = [p.parts for p in paths]
    shared = 0
    while all(len(p) > shared + 1 for p in parts) and len({p[shared] for p in parts}) == 1:
        shared += 1
    return ["/".join(p[shared:]) for p in parts]
