"""The survey as a page: the table, a picture, and sentences that follow from the numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from steppe.report.formats import capitalize
from steppe.report.markdown_latex import make_markdown_environment
from steppe.report.table import Table as Printed
from steppe.reproduce.intervals import CHANCE
from steppe.reproduce.recipes import read_table_file
from steppe.reproduce.rows import CPU, Row, describe_devices
from steppe.reproduce.survey import rank_entrants
from steppe.reproduce.verdicts import spearman

CHEAP = {"bytes_x": 1.005, "flops_x": 1.335}  # no more than FedAvg's bytes, and 1.33 times its FLOPs
GUESSING = 10.0  # % of ten classes
FOREIGN = "† Published without local momentum, which the recipe has: this is not the published method. "
Standing = dict[str, Any]


def make_table(found: Sequence[Standing], column: str, title: str) -> Printed:
    """Return the table: methods that were run, best first; the others by name."""
    mine = _rank(found, column)
    head = ["method", "chosen", "accuracy, % (seeds)", "last", "best", "λ1", "trace", "bytes", "FLOPs", "seconds"]
    rows = []
    for f in mine:
        spread = f" ± {f['std']:.2f}" if f["std"] is not None else ""
        broken = len(f["failed"])
        counted = f"({len(f['seeds']) - broken})" + (f"; failed: {broken}" if broken else "")
        mark = " *" if f["composition"] else " †" if f["without_momentum"] else ""
        rows.append([f["title"] + mark, f["chosen"].replace(",", ", "),
                     "failed" if f["accuracy"] is None else f"{f['accuracy']:.2f}{spread} {counted}",
                     *("" if f[k] is None else f"{f[k]:.{digits}f}" for k, digits in
                       (("last", 2), ("best", 2), ("lambda1", 1), ("trace", 0))),
                     f"{f['bytes_x']:.2f}×", f"{f['flops_x']:.2f}×",
                     f"{f['seconds']:.1f}" if f["devices"] != [CPU] else ""])  # fmt: skip
    missing = [f["title"] for f in found if f["column"] == column and f not in mine]
    note = FOREIGN if any(f["without_momentum"] for f in mine) else ""
    devices = {device for f in mine for device in f["devices"]}
    if len(devices) > 1 or CPU in devices:
        note += f"{capitalize(describe_devices(devices))}. "
    return Printed(title, head, rows, note + (f"Not run: {', '.join(missing)}." if missing else ""))


def _rank(found: Sequence[Standing], column: str) -> list[Standing]:
    ran = [f for f in found if f["column"] == column and f["seeds"]]
    return sorted(ran, key=lambda f: -1.0 if f["accuracy"] is None else f["accuracy"], reverse=True)


def write_verdict(found: Sequence[Standing], column: str) -> str:
    """Return sentences on whether a cheap method beats all others."""
    ran = [f for f in _rank(found, column) if f["accuracy"] is not None]
    if not ran:
        return "Nothing was run in this column."
    cheap = [f for f in ran if all(f[k] <= most for k, most in CHEAP.items())]
    top, of = ran[0], sum(f["column"] == column for f in found)
    ours = sum(f["composition"] for f in ran)
    told = (f"{len(ran)} of {of} were run: {len(ran) - ours} published methods and {ours} compositions. The best is "
            f"{top['title']} ({top['accuracy']:.2f} %).")  # fmt: skip
    near = sum(top["accuracy"] - f["accuracy"] < CHANCE for f in ran[1:])
    limit = (f" {near} others are less than {CHANCE:g} points below the best, a difference that one seed cannot decide."
             if near and max(len(f["seeds"]) for f in ran) == 1 else "")  # fmt: skip
    if not cheap:
        return told + " No method with FedAvg's bytes and at most 1.33 times its FLOPs was run." + limit
    best = cheap[0]
    if best is top:
        kind = "a composition of ours" if best["composition"] else "a published method"
        return told + f" It is {kind}, and needs no more than FedAvg's bytes and at most 1.33 times its FLOPs." + limit
    return told + (f" At no more than FedAvg's bytes and at most 1.33 times its FLOPs the best is {best['title']} "
                   f"({best['accuracy']:.2f} %), {top['accuracy'] - best['accuracy']:.2f} points below: no "
                   "method at this cost is the best of all here." + limit)  # fmt: skip


def write_findings(found: Sequence[Standing], column: str) -> list[str]:
    """Return what else follows from the numbers, and their limits."""
    ran = [f for f in _rank(found, column) if f["accuracy"] is not None]
    told = []
    published = next((f for f in ran if not f["composition"]), None)
    ours = [f for f in ran if f["composition"]]
    if published and ours:
        better = sum(f["accuracy"] > published["accuracy"] for f in ours)
        told.append(f"The best published method is {published['title']} ({published['accuracy']:.2f} %); {better} of "
                    f"{len(ours)} compositions are above it. They were tuned with the same budget, but the "
                    "best of so many on the test set is a choice by the test set; on held-out data the choice is "
                    + _choose_held_out(ours) + ".")  # fmt: skip
    told += _describe_running_mean(ran)
    measured = [f for f in ran if f["lambda1"] is not None and f["trace"] is not None and f["accuracy"] > 2 * GUESSING]
    if len(measured) > 3:
        accuracy = [f["accuracy"] for f in measured]
        of = {k: spearman(accuracy, [f[k] for f in measured]) or 0.0 for k in ("lambda1", "trace")}
        told.append(f"Among the {len(measured)} with more than {2 * GUESSING:.0f} %, accuracy and sharpness have a "
                    f"rank correlation of {of['lambda1']:+.2f} (λ1) and {of['trace']:+.2f} (trace); −1 would mean "
                    "that the flatter of two final models is always the more accurate.")  # fmt: skip
    if ran and max(len(f["seeds"]) for f in ran) == 1:
        told.append(f"One seed each: a difference of up to {CHANCE:g} points may be chance, especially without EMA, "
                    "where rounds differ much (compare the best round with the mean of the last ten).")  # fmt: skip
    return told


def _describe_running_mean(ran: Sequence[Standing]) -> list[str]:
    """Return the effect of EMA alone, so that it is not attributed to the method it was added to."""
    by_name = {f["method"]: f for f in ran}
    pairs = [(f, by_name[f["method"] + "+ema"]) for f in ran if f["method"] + "+ema" in by_name]
    if not pairs:
        return []
    gains = ", ".join(f"{plain['title']} {ema['accuracy'] - plain['accuracy']:+.2f}" for plain, ema in pairs)
    return [f"EMA alone (with the candidate that tuning then chooses) changes accuracy by these points: {gains}. "
            "This gain is not due to the other parts of a composition; published methods have no EMA."]  # fmt: skip


def _choose_held_out(some: Sequence[Standing]) -> str:
    first = max(some, key=lambda f: max(f["tuned"].values()))
    return f"{first['title']} ({first['accuracy']:.2f} %)"


def draw_picture(found: Sequence[Standing], column: str, title: str) -> str:
    """Return an SVG: for every method the mean of the last ten rounds, the best round, and its cost."""
    ran = [f for f in _rank(found, column) if f["accuracy"] is not None]
    left, width, line, top = 210, 470, 22, 62
    low = 10 * int(min(f["accuracy"] for f in ran) // 10)
    high = 10 * int(max(f["best"] for f in ran) // 10 + 1)
    bottom = top + line * len(ran)

    def x(value: float) -> float:
        return round(left + width * (value - low) / (high - low), 1)

    def text(at: float, y: float, words: str, anchor: str = "start", colour: str = "#222") -> str:
        return f'<text x="{at}" y="{y}" text-anchor="{anchor}" fill="{colour}">{escape(words)}</text>'

    parts = [text(12, 22, f"{title}: test accuracy, %"),
             f'<circle cx="{left + 6}" cy="38" r="4.5" fill="#0072B2"/>' + text(left + 16, 42, "published"),
             f'<circle cx="{left + 96}" cy="38" r="4.5" fill="#D55E00"/>' + text(left + 106, 42, "composition"),
             text(left + 200, 42, "filled: last ten rounds; hollow: best round"),
             *(text(left + width + at, 42, words, "end") for at, words in ((50, "λ1"), (110, "bytes"), (170, "FLOPs"))),
             *(f'<path d="M{x(v)} {top - 8}V{bottom - 8}" stroke="#ddd"/>' + text(x(v), bottom + 10, str(v), "middle")
               for v in range(low, high + 1, 10))]  # fmt: skip
    for place, f in enumerate(ran):
        y = top + line * place + 4
        colour = "#D55E00" if f["composition"] else "#0072B2"
        at, best = x(f["accuracy"]), x(f["best"])
        costs = ((50, "" if f["lambda1"] is None else f"{f['lambda1']:.0f}"), (110, f"{f['bytes_x']:.2f}×"),
                 (170, f"{f['flops_x']:.2f}×"))  # fmt: skip
        name = f["title"] + " †" * f["without_momentum"]
        parts += [text(left - 10, y + 4, name, "end"), f'<path d="M{at} {y}H{best}" stroke="{colour}"/>',
                  f'<circle cx="{best}" cy="{y}" r="4" fill="#fff" stroke="{colour}"/>',
                  f'<circle cx="{at}" cy="{y}" r="4.5" fill="{colour}"/>',
                  *(text(left + width + where, y + 4, words, "end") for where, words in costs)]  # fmt: skip
    size = f'width="{left + width + 190}" height="{bottom + 24}" viewBox="0 0 {left + width + 190} {bottom + 24}"'
    return (f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="system-ui, sans-serif" font-size="12">\n'
            '<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n")  # fmt: skip


def render_markdown(found: Sequence[Standing], scale: str = "paper", folder: str = "") -> str:
    survey = read_table_file("survey")
    columns = [{"title": c["title"], "verdict": write_verdict(found, c["id"]),
                "table": make_table(found, c["id"], c["title"]), "findings": write_findings(found, c["id"]),
                "picture": _name_picture(c["id"]) if _has_picture(found, c["id"]) else ""}
               for c in survey["column"]]  # fmt: skip
    return make_markdown_environment("steppe.reproduce").get_template("survey.md.jinja").render(
        survey=survey, columns=columns, scale=scale, folder=folder)  # fmt: skip


def _has_picture(found: Sequence[Standing], column: str) -> bool:
    return any(f["column"] == column and f["accuracy"] is not None for f in found)


def _name_picture(column: str) -> str:
    return f"survey-{column}.svg"


def render_files(rows: Sequence[Row], scale: str = "paper", folder: str = "",
          kinds: Sequence[str] = ("md",)) -> dict[str, str]:  # fmt: skip
    """Return the files: the page, its pictures (in `folder`, relative to the page), and with `json` all data."""
    found = rank_entrants(rows, scale)
    columns = [c for c in read_table_file("survey")["column"] if _has_picture(found, c["id"])]
    pictures = {_name_picture(c["id"]): draw_picture(found, c["id"], c["title"]) for c in columns}
    facts = {"survey.json": json.dumps(found, indent=1, ensure_ascii=False) + "\n"} if "json" in kinds else {}
    return {"survey.md": render_markdown(found, scale, folder), **pictures, **facts}
