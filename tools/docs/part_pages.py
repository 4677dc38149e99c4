"""Write a page per part: what it computes, when it acts, which methods use it, how to use it alone."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import cleandoc

from tools.docs import page_sections as sections
from tools.docs.bibliography import read_papers
from tools.docs.catalogue import list_methods, list_parts, list_uses, make_example, open_up, page_of
from tools.docs.compatibility import WORDS, Compatibility
from tools.docs.docstrings import describe
from tools.docs.evidence import Evidence
from tools.docs.evidence import show as show_evidence
from tools.docs.mathematics import typeset
from tools.docs.sentences import capitalise
from tools.docs.tables import make_table
from tools.docs.traffic import say_cost, show_traffic

from steppe.core.part import Part
from steppe.engine.optimisers import NAMED
from steppe.parts.own_optimiser import OwnOptimiser
from steppe.registry import PARTS

HOOKS = ("server_state", "client_state", "round_state", "send", "prepare", "receive", "start", "observe", "penalty",
         "gradient", "finish", "shrink", "screen", "reduce", "server", "settle", "evaluated", "predict", "stride",
         "local_steps", "counted", "sample")  # fmt: skip
RULE = """def rule(gradient, w, memory, k):
    memory["m"] = 0.9 * memory["m"] + gradient
    return memory["m"]
"""


def make_page(kind: type[Part], evidence: Sequence[Evidence], compatibility: Compatibility) -> str:
    """Return the page of one part."""
    document, part = describe(kind), make_example(kind)
    papers = read_papers(kind.citation) if kind.citation else []
    return "\n\n".join([
        f"# {kind.__name__}",
        typeset(document.idea),
        *(["\n".join(f"- {paper}" for paper in papers)] if papers else []),
        f"`{kind.name}` in `{kind.__module__}`. Traced, around FedAvg: {say_cost((part,))}.",
        "## Equations",
        "Symbols are those of the [notation](../notation.md); "
        f"{typeset('g(w)')} is the oracle of the parts inside this one, {typeset('D(w)')} the one that it returns.",
        sections.equations(document.rows),
        *map(_paragraph, document.paragraphs),
        "## Settings", sections.settings(kind, sections.meanings_of(kind, document), {}),
        "## Hooks", _hooks(part),
        "## Use", _use(kind, part),
        "## Used by", _users(kind),
        "## Sent and kept", show_traffic((part,)),
        "## Limits and deviations", _remarks(document.headed),
        "## Evidence", _evidence(kind, evidence),
        "## Combinations", _pairs(kind, compatibility),
        "## Cite", sections.cite(f"steppe cite {kind.name}", "\n\n".join(p.bibtex for p in papers))
        if kind.name in PARTS and papers else _papers_only(papers),
    ]) + "\n"  # fmt: skip


def _evidence(kind: type[Part], evidence: Sequence[Evidence]) -> str:
    mine = [e for e in evidence if kind.addable and kind.name in {text.split(":")[0] for text in e.config.add}]
    told = "Results of the methods that contain it are on their pages."
    return told + (f" Results in which it was added to a method:\n\n{show_evidence(mine, '../../')}" if mine else "")


def _paragraph(text: str) -> str:
    """Set running text; a list of names and papers in columns stays in lines."""
    lines = text.splitlines()
    return (
        "\n".join(f"{typeset(line.strip())}  " for line in lines)
        if any("   " in line.strip() for line in lines)
        else (typeset(" ".join(line.strip() for line in lines)))
    )


def _papers_only(papers: list) -> str:
    return "```bibtex\n" + "\n\n".join(p.bibtex for p in papers) + "\n```" if papers else "It is not from a paper."


def _hooks(part: Part) -> str:
    rows = []
    for hook in HOOKS:
        function = getattr(type(part), hook, None)
        if function is None or not (part.has(hook) if hasattr(Part, hook) else True):
            continue
        told = cleandoc(getattr(Part, hook, function).__doc__ or "").split("\n")[0]
        rows.append([f"`{hook}`", typeset(told)])
    marks = {"outer": "added to a method, it goes around that method's parts", "around_optimiser": "it goes around the "
             "local optimiser", "once": "its direction may be computed only once per step",
             "alone": "clients train alone"}  # fmt: skip
    told = [text for name, text in marks.items() if getattr(part, name)]
    text = make_table(["hook", "when"], rows) if rows else "It has no hooks, only declarations."
    return text + (f"\n\nAlso: {'; '.join(told)}." if told else "")


def _imports(part: Part) -> list[str]:
    inside = getattr(part, "of", None)
    own = [f"from {type(part).__module__} import {type(part).__name__}"]
    return sorted({*own, *(_imports(inside) if isinstance(inside, Part) else [])})


def _use(kind: type[Part], part: Part) -> str:
    """Return how to run it alone: in Python, and on the command line where it has a name there."""
    imports, made = "\n".join(_imports(part)), sections.write_expression(part)
    if kind is OwnOptimiser:
        return f'```python\nimport steppe\n\n\n{RULE}\n\nresult = steppe.run("fedavg", rounds=2, optimiser=rule)\n```'
    if kind in NAMED.values():
        code = f'steppe.run("fedavg", rounds=2, optimiser={made})'
        command = f"steppe run fedavg --rounds 2 --set optimiser={kind.name}"
    elif kind.addable and page_of(kind) == kind.name:
        run = _demands(part)
        code = f'steppe.run("fedavg", rounds=2, {"".join(f"{k}={v!r}, " for k, v in run.items())}add={made})'
        command = f"steppe run fedavg --rounds 2 --add {sections.write_addition(part)}"
        command += "".join(f" --set {key}={value}" for key, value in run.items())
    else:
        user = list_uses()[kind][0][0] if kind in list_uses() else ""
        code = f"steppe.run({made}, rounds=2)"
        command = f"steppe run {_command(kind, user)}"
    shown, told = ("result.accuracy", "") if kind in NAMED.values() else sections.choose_result((part,))
    python = f"import steppe\n{imports}\n\nresult = {code}\nprint({shown})"
    return f"{told}```python\n{python}\n```\n\n```console\n$ {command}\n```"


def _demands(part: Part) -> dict[str, str]:
    """Return the keys that a run with this part must set to be accepted."""
    weights = {"weighting": "uniform"} if part.has("reduce") else {}
    return weights | ({"sampling": "bernoulli"} if hasattr(part, "sample") else {})


def _command(kind: type[Part], user: str) -> str:
    """Return the entry, with the choice that makes this part."""
    method = list_methods()[user]
    if any(type(p) is kind for p in method.make()):
        return f"{user} --rounds 2"
    for key, several in method.choices.items():
        for choice in several:
            if any(type(one) is kind for one in open_up(method.make(**{key: choice}))):
                return f"{user} --rounds 2 --set {key}={choice}"
    return f"{user} --rounds 2"


def _users(kind: type[Part]) -> str:
    names = [name for name, _ in list_uses().get(kind, [])]
    methods = list_methods()
    if not names:
        return "No method of the catalogue. Add it with `--add`." if kind.addable else "Runs, as their local optimiser."
    return ", ".join(f"[{methods[name].title}](../{name}.md)" for name in names)


def _remarks(headed: dict[str, str]) -> str:
    found = [f"**{head}.** {typeset(capitalise(headed[head]))}" for head in ("Limits", "Deviations")
             if head in headed]  # fmt: skip
    return "\n\n".join(found) or "None are recorded."


def _pairs(kind: type[Part], compatibility: Compatibility) -> str:
    """Return the other parts by what happens together, as measured."""
    if kind.name not in compatibility.optimisers or page_of(kind) != kind.name:
        return "Not measured in pairs; see [what goes with what](../../compatibility.md)."
    pages = list_parts()
    rows = []
    for sign, others in compatibility.of(kind.name).items():
        shown = [f"[{name}]({name}.md)" if name in pages else name for name in others]
        if shown:
            rows.append([f"{sign} {WORDS[sign]}", ", ".join(shown)])
    for sign in WORDS:
        optimisers = [o for o, s in compatibility.optimisers[kind.name].items() if s == sign]
        if optimisers:
            rows.append([f"{sign} {WORDS[sign]}", f"optimisers: {'; '.join(optimisers)}"])
    told = compatibility.changes.get(kind.name)
    text = "Measured on quadratics; see [what goes with what](../../compatibility.md).\n\n" + make_table(
        ["together", "with"], rows
    )
    return text + (f"\n\nWhat it changes: {typeset(told)}." if told else "")


def make_index() -> str:
    """Return the table of all parts."""
    rows = []
    for page, kind in list_parts().items():
        users = [name for name, _ in list_uses().get(kind, [])]
        rows.append([f"[{kind.__name__}]({page}.md)", f"`{kind.name}`" if kind.addable and kind.name == page else "",
                     typeset(describe(kind).idea),
                     ", ".join(f"[{list_methods()[n].title}](../{n}.md)" for n in users)])  # fmt: skip
    return (
        "# Parts\n\nA part is one idea with its state on clients and server. Those with a name for `--add` can be "
        "added to most methods; [What goes with what](../../compatibility.md) lists refused combinations.\n\n"
        + make_table(["part", "to add", "idea", "used by"], rows)
        + "\n"
    )
