"""A page per method of the catalogue, and the table of all of them."""

from __future__ import annotations

from collections.abc import Sequence

from tools.docs import page_sections as sections
from tools.docs.catalogue import Method, list_methods, make_example, model_size, open_up, page_of, trace
from tools.docs.compatibility import Compatibility
from tools.docs.docstrings import Row, describe
from tools.docs.evidence import Evidence, tell_league
from tools.docs.evidence import show as show_evidence
from tools.docs.mathematics import typeset
from tools.docs.sentences import capitalise
from tools.docs.tables import make_table
from tools.docs.traffic import say_cost, show_costs, show_traffic

from steppe.algorithms import Parts
from steppe.citations import cite as bibtex
from steppe.core.errors import CompositionError
from steppe.core.part import Part
from steppe.engine.optimisers import NAMED
from steppe.parts.sgd import SGD
from steppe.registry import PARTS, assemble


def make_page(method: Method, evidence: Sequence[Evidence], compatibility: Compatibility) -> str:
    """Return the page of one method."""
    parts = method.make()
    own, others = method.papers()
    mine = [e for e in evidence if e.entry == method.name]
    return "\n\n".join([
        f"# {method.title}",
        f"{typeset(capitalise(method.idea))}\n\n" + "\n\n".join(map(str, own)),
        f"In Steppe it is {_list_parts(parts)}. Traced: {say_cost(parts)}.",
        *map(typeset, method.document.paragraphs),
        "## Equations", _equations(parts),
        "## Sent and kept", show_traffic(parts),
        "## Cost", show_costs({_label(key, c): made for key, c, made in _choices(method)}),
        "## Settings", sections.settings(method.function, find_meanings(method), method.document.defaults),
        "## Variants", _variants(method),
        "## Use", _use(method),
        "## Limits and deviations", _remarks(method, parts),
        "## Evidence", *filter(None, [tell_league(method.name)]), show_evidence(mine, "../"),
        "## Combinations", _combinations(parts, compatibility),
        "## Cite", sections.cite(f"steppe cite {method.name}", bibtex(method.name)),
        *([f"Its parts come from:\n\n{chr(10).join(f'- {paper}' for paper in others)}"] if others else []),
    ]) + "\n"  # fmt: skip


def find_meanings(method: Method) -> dict[str, str]:
    """Return what each setting means, from the entry or from the part whose setting has the same name."""
    found: dict[str, str] = {}
    for part in (one for _, _, made in _choices(method) for one in open_up(made)):
        found = sections.meanings_of(type(part), describe(type(part))) | found
    return found | sections.meanings_of(method.function, method.document)


def _choices(method: Method) -> list[tuple[str, str, tuple[Part, ...]]]:
    """Return the default, and every choice of a named rule, with the parts that it makes."""
    found = [("", "", method.make())]
    for key, several in method.choices.items():
        found += [(key, c, method.make(**{key: c})) for c in several[1:]]
    return found


def _label(key: str, choice: str) -> str:
    return f"`{key}={choice}`" if key else "default"


def link(part: Part | type[Part], folder: str = "parts/") -> str:
    kind = part if isinstance(part, type) else type(part)
    return f"[{kind.__name__}]({folder}{page_of(kind)}.md)"


def _list_parts(parts: Sequence[Part]) -> str:
    if not parts:
        return "no part at all: the clients' optimiser and the mean"
    ordered = [link(p) for p in assemble(tuple(parts), SGD(), (), "listed").parts if not isinstance(p, SGD)]
    if len(ordered) == 1:
        return f"the part {ordered[0]}"
    return f"the parts {', '.join(ordered[:-1])} and {ordered[-1]}, innermost first"


def _equations(parts: Sequence[Part]) -> str:
    """Return the equations of all parts as one algorithm: each wraps the oracle of those before it."""
    together = assemble(tuple(parts), SGD(), (), "shown").parts
    around = any(p.around_optimiser for p in parts)
    shown = [p for p in together if around or not isinstance(p, SGD)]
    documents = [describe(type(p)) for p in shown]
    names = sections.name_oracles(documents)
    blocks = []
    for part, document, named in zip(shown, documents, names, strict=True):
        role = ", the run's local optimiser" if isinstance(part, SGD) else ""
        blocks.append(
            f"**{link(part)}**{role}\n\n{sections.equations(sections.choose_rows(document.rows, part), named)}"
        )
        blocks += [f"{typeset('L_p')} is the penalty of **{link(inner)}**\n\n"
                   + sections.equations(sections.choose_rows(describe(type(inner)).rows, inner), {"penalty": "L_p(w)"})
                   for inner in open_up((part,))[1:]]  # fmt: skip
    last = "D" if any(map(sections.is_in_steps, documents)) else "g"
    loss = "(F_i + R)" if any(p.has("penalty") for p in parts) else "F_i"
    local = "" if around else "; the [local optimiser](parts/sgd.md) may add clipping, decay and momentum"
    frame = sections.equations([
        Row([f"g(w) = ∇{loss}(w)", f"w ← w − η {last}(w)"], "in each local step"),
        Row(["Δ̄ = Σ_{i∈S} p_i (w_i − x)", "x ← x + Δ̄"], "on the server"),
    ])  # fmt: skip
    told = f"Symbols are those of the [notation](notation.md). Every round{local}:"
    between = [f"The parts, innermost first. What they do to {typeset('Δ̄')} happens between the server's two lines."]
    return "\n\n".join([told, frame, *(between if blocks else []), *blocks])


def _variants(method: Method) -> str:
    rows = [[_label(key, c), "<br>".join(f"`{sections.write_expression(p)}`" for p in made) or "no part"]
            for key, c, made in _choices(method)]  # fmt: skip
    if len(rows) == 1:
        return "It has no variants."
    return "The parts that each choice builds; a setting that is not shown has the part's default.\n\n" + make_table(
        ["choice", "parts, innermost first"], rows
    )


def _use(method: Method) -> str:
    given = {k: v for k, v in sections.list_settings(method.function).items() if isinstance(v, int | float | str)}
    first = dict(list(given.items())[:1])
    python = "".join(f", {k}={v!r}" for k, v in first.items())
    words = "".join(f" --set {k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in first.items())
    shown, told = sections.choose_result(method.make())
    return (
        f'{told}```python\nimport steppe\n\nresult = steppe.run("{method.name}", rounds=2{python})\nprint({shown})\n'
        f"```\n\n```console\n$ steppe run {method.name} --rounds 2{words}\n```"
    )


def _remarks(method: Method, parts: Parts) -> str:
    """Return what the entry and its parts say about limits and deviations."""
    found = []
    for head in ("Limits", "Deviations"):
        told = {"": method.document.headed.get(head, "")} | {
            link(one): describe(type(one)).headed.get(head, "")
            for one in open_up(parts)
        }  # fmt: skip
        owners: dict[str, list[str]] = {}  # parts of one file may share a remark
        for whose, text in told.items():
            owners.setdefault(text, []).append(whose)
        found += [f"**{head}{' of ' + ' and '.join(several) if any(several) else ''}.** {typeset(capitalise(text))}"
                  for text, several in owners.items() if text]  # fmt: skip
    return "\n\n".join(found) or "None are recorded."


def _combinations(parts: Sequence[Part], compatibility: Compatibility) -> str:
    """Build each combination, and return which parts and optimisers can be added and what the parts optimise."""
    goes, refused = [], []
    for kind in PARTS.values():
        if kind.name in {p.name for p in parts}:
            continue
        example = make_example(kind)
        why = _refusal(parts, SGD(), (example,))
        if why is None:
            goes.append(f"[`{sections.write_addition(example)}`](parts/{page_of(kind)}.md)")
        else:
            refused.append([link(kind), typeset(f"{why}.")])
    for kind in NAMED.values():
        if kind is not SGD and (why := _refusal(parts, make_example(kind), ())) is not None:
            refused.append([link(kind), typeset(f"{why}.")])
    told = list(dict.fromkeys(compatibility.changes[p.name] for p in parts if p.name in compatibility.changes))
    text = "Built with default settings. " + (f"Already in it: {', '.join(map(link, parts))}. " if parts else "")
    text += "These parts can be added to it with `--add`, or in Python with `add=`; a setting that is shown has no "
    text += f"default, and its value is an example: {', '.join(goes)}."
    if refused:
        text += "\n\nRefused:\n\n" + make_table(["part", "why"], refused)
    if told:
        text += f"\n\nWhat it optimises differs from the clients' mean loss: {typeset('; '.join(told))}."
    return text + " [What goes with what](../compatibility.md) has measurements of all pairs of parts."


def _refusal(parts: Sequence[Part], optimiser: Part, add: tuple[Part, ...]) -> str | None:
    try:
        assemble(tuple(parts), optimiser, add, "it")
    except CompositionError as error:
        return str(error).partition(": ")[2]
    return None


def make_index() -> str:
    """Return the page with the table of all methods, which a script filters."""
    base = trace(())[1]
    rows = []
    for method in list_methods().values():
        found = trace(method.make())[1]
        data = {"year": method.year or "0", "kept": f"{found.kept:.3g}", "gradients": found.gradients,
                "forwards": found.forwards, "flops": f"{found.flops / base.flops:.2f}",
                "bytes": f"{(found.bytes_down + found.bytes_up) / (base.bytes_down + base.bytes_up):.2f}"}  # fmt: skip
        passes = f"{found.gradients}" + (f" + {found.forwards} forward" if found.forwards else "")
        kept = f"{found.kept:.3g}×" if round(found.kept, 3) else "nothing"
        cells = [f'<a href="{method.name}.html">{method.title}</a>', method.year, method.idea.rstrip("."), kept,
                 f"{data['bytes']}×", passes, f"{data['flops']}×"]  # fmt: skip
        attributes = " ".join(f'data-{k}="{v}"' for k, v in data.items())
        rows.append(f"<tr {attributes}>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    ablations = len(list_methods()["fedsol_ablation"].choices["variant"])
    return INDEX.format(count=len(rows) - 1, ablations=ablations, rows="\n".join(rows), size=model_size())


INDEX = """# Methods

{count} methods and, in one row, the {ablations} ablations of FedSoL, each an expression over [parts](parts/index.md).
Bytes and FLOPs are multiples of FedAvg's,
and what a client keeps between its rounds is a multiple of the model; all are traced on the FedAvg paper's CNN
({size:,} parameters, batches of 50). Symbols are explained in the [notation](notation.md).

<form class="catalogue-filter">
<label>Search <input type="search" name="text" placeholder="name or idea"></label>
<label><input type="checkbox" name="stateless"> clients keep nothing</label>
<label><input type="checkbox" name="bytes"> FedAvg's bytes</label>
<label><input type="checkbox" name="gradients"> one gradient per step</label>
<label><input type="checkbox" name="flops"> FedAvg's FLOPs</label>
<label>from year <input type="number" name="year" min="2017" max="2030" step="1"></label>
<output></output>
</form>

<table class="catalogue">
<thead><tr><th>method</th><th>year</th><th>idea</th><th>client keeps</th><th>bytes</th><th>gradients per step</th>
<th>FLOPs</th></tr></thead>
<tbody>
{rows}
</tbody>
</table>
"""
