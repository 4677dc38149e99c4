"""Measures of several runs side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import floor, isfinite, log10
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

Number = tuple[float, float | None]  # a value and, where it has one, its uncertainty
Content = Mapping[str, Any]  # of analysis.json


class Column(NamedTuple):
    heading: str
    measure: str
    of: Callable[[Any], Any]  # the measure's JSON -> an estimate's JSON, or a plain number


def _eigenvalue(end: str) -> Callable[[Any], Any]:
    return lambda m: {"value": m[end]["values"][0], "error": m[end]["residuals"][0]}


COLUMNS: dict[str, list[Column]] = {
    "Hessian": [
        Column("λ1", "lambda1", _eigenvalue("top")),
        Column("λ1/λ5", "lambda1", lambda m: {"value": m["ratio"], "error": m.get("ratio_error")}),
        Column("smallest λ", "smallest", _eigenvalue("bottom")),
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
        Column("local accuracy", "local_accuracy", lambda m: m["mean"]),
        Column("forgetting", "forgetting", lambda m: m),
        Column("clients' λ1", "lambda1_clients", lambda m: m["mean"]),
    ],
}  # fmt: skip
LEGEND = {  # what a heading alone does not say
    "λ1": "λ: eigenvalues of the Hessian, of a single run ± residual",
    "trace": "trace: by Hutchinson's probes",
    "trace++": "trace++: by Hutch++",
    "SAM": "SAM: rise of the loss after one step of 0.05",
    "ascent": "ascent: highest rise in five steps",
    "ASAM": "ASAM: rise after a scale-invariant step",
    "LPF": "LPF: loss under noise",
    "‖g‖": "‖g‖: length of the gradient",
    "consistency": "consistency: (1/n)Σ‖w_i − mean‖²",
    "to global": "to global, pairs: distances of clients' models",
    "cos": "cos: of clients' gradients",
    "FD": "FD: FedScar's flatness discrepancy, as in its code and on its poster",
    "D1 (ours)": "D: stand-ins of ours for FedNSAM's flatness distance",
    "L_p": "L_p, cos(g_u,g_p): FedSoL's proximal loss, and what it does to the gradient",
    "local accuracy": "local accuracy: of clients' models on the whole test set",
    "forgetting": "forgetting: what they lose there by local training",
}
OWN_DATA = "its own training data, or as many of them as the sample has"  # a client's loss where curvature is meant
NOTES = {"clients, one more round": ["clients' losses are over all of their training data, for λ1 over no more than "
                                     "the sample has"]}  # fmt: skip


class Profile(NamedTuple):
    """A measure that has a number for each layer or tensor."""

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


class Table(NamedTuple):
    title: str
    columns: list[str]
    rows: list[list[str]]
    legend: str = ""


def fitting(table: Table, width: int) -> list[Table]:
    """The same table in as many pieces, one below the other, as a terminal of this width needs."""
    wide = [max(len(row[i]) for row in [table.columns, *table.rows]) + 2 for i in range(len(table.columns))]
    pieces: list[list[int]] = [[]]
    for i in range(1, len(wide)):
        if pieces[-1] and wide[0] + sum(wide[k] for k in pieces[-1]) + wide[i] > width + 2:
            pieces.append([])
        pieces[-1].append(i)
    return [Table(table.title, [table.columns[i] for i in [0, *piece]],
                  [[row[i] for i in [0, *piece]] for row in table.rows],
                  table.legend if piece is pieces[-1] else "") for piece in pieces]  # fmt: skip


def number(found: Any) -> Number | None:
    """An estimate or a plain number of analysis.json; None where there is none."""
    if isinstance(found, Mapping):
        return None if found.get("value") is None else (float(found["value"]), found.get("error"))
    return None if found is None else (float(found), None)


def numbers(content: Content, among: Sequence[str] | None = None) -> dict[str, Number]:
    """Everything that has a column, by heading; only the measures in `among`, if given."""
    found = {}
    for columns in COLUMNS.values():
        for c in columns:
            if c.measure in content["measures"] and (among is None or c.measure in among):
                value = number(c.of(content["measures"][c.measure]))
                if value is not None:
                    found[c.heading] = value
    return found


def explained(headings: Iterable[str]) -> list[str]:
    """What those of them mean that do not say it themselves."""
    return [LEGEND[h] for h in headings if h in LEGEND]


def tables(runs: Mapping[str, Mapping[str, Number]], first: str = "run") -> list[Table]:
    """A table for each kind of measure that there is, a row a run."""
    made = []
    for title, columns in COLUMNS.items():
        shown = [c.heading for c in columns if any(c.heading in values for values in runs.values())]
        if shown:
            rows = [[label, *(told(values.get(h)) for h in shown)] for label, values in runs.items()]
            legend = "; ".join([*explained(shown), *NOTES.get(title, [])])
            made.append(Table(title, [first, *shown], rows, legend))
    return made


def profiles(runs: Mapping[str, Content], among: Sequence[str]) -> list[Table]:
    """For each run, layers and their numbers."""
    made = []
    for label, content in runs.items():
        for measure in ("per_layer", "radius_profile"):
            if measure in content["measures"] and measure in among:
                parts = {p.what: p.of(content["measures"][measure]) for p in PROFILES if p.measure == measure}
                names = list(next(iter(parts.values())))
                rows = [[name, *(told(number(p.get(name))) for p in parts.values())] for name in names]
                made.append(Table(label, ["part", *parts], rows))
    return made


def profile(content: Content, which: Profile) -> dict[str, Number]:
    """Its numbers by part; empty where it was not measured."""
    found = content.get("measures", {}).get(which.measure)
    each = {name: number(v) for name, v in which.of(found).items()} if found else {}
    return {name: v for name, v in each.items() if v is not None}


def over_seeds(each: Sequence[Mapping[str, Number]]) -> dict[str, Number]:
    """Mean and standard deviation over the seeds that have a number; a single one keeps its own uncertainty."""
    found = {h: [one[h] for one in each if h in one] for h in dict.fromkeys(h for one in each for h in one)}
    return {h: several[0] if len(several) == 1 else _over([v for v, _ in several]) for h, several in found.items()}


def _over(values: Sequence[float]) -> Number:
    return fmean(values), stdev(values)


def told(found: Number | None) -> str:
    """
    >>> told((18.16279, 2.897)), told((1.8652, 0.0144)), told((0.00012345, None)), told((1234.5, None)), told(None)
    ('18 ± 3', '1.865 ± 0.014', '0.000123', '1234', '–')
    >>> told((22.485731, 0.000081)), told((1.0972345, 1.2e-6)), told((2.5e-9, 1e-10))
    ('22.486 ± 8e-05', '1.0972 ± 1e-06', '2.50e-09 ± 1e-10')
    """
    if found is None:
        return "–"
    value, error = found
    if error is None or not isfinite(error) or error <= 0:
        return _plain(value, 3)
    digits = 2 if f"{error:.0e}"[0] == "1" else 1  # of the error: rounding 0.14 to 0.1 would say too little
    decimals = digits - 1 - floor(log10(float(f"{error:.{digits - 1}e}")))
    if abs(value) > 1e5 * error and 1e-4 <= abs(value) < 1e6:  # five digits are enough to read
        return f"{_plain(value, 5)} ± {error:.0e}"
    if not -4 <= decimals <= 6:
        return f"{value:.2e} ± {error:.0e}"
    shown = round(value, decimals) + 0.0  # no minus before a zero
    return f"{shown:.{max(decimals, 0)}f} ± {round(error, decimals):.{max(decimals, 0)}f}"


def _plain(value: float, digits: int) -> str:
    if value and isfinite(value) and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.{digits - 1}e}"
    whole = floor(log10(abs(value))) + 1 if value and isfinite(value) else 1
    return f"{value:.{max(digits - whole, 0)}f}"


def labels(paths: Sequence[Path]) -> list[str]:
    """Names as short as they can be and still differ: what the paths do not share.

    >>> labels([Path("runs/c/fedavg/seed-0"), Path("runs/c/fedsam/seed-0")]), labels([Path("runs/c/fedavg/seed-0")])
    (['fedavg/seed-0', 'fedsam/seed-0'], ['fedavg/seed-0'])
    """
    if len(paths) == 1:
        return ["/".join(paths[0].parts[-2 if paths[0].name.startswith("seed-") else -1 :]) or str(paths[0])]
    parts = [p.parts for p in paths]
    shared = 0
    while all(len(p) > shared + 1 for p in parts) and len({p[shared] for p in parts}) == 1:
        shared += 1
    return ["/".join(p[shared:]) for p in parts]
