"""Translate the equations of docstrings, written in plain Unicode, into LaTeX.

    c_i⁺ = c_i − c − Δ_i / (K η)    becomes    c_i^{+} = c_i - c - \\frac{\\Delta_i}{K \\eta}

Contributors write equations that are easy to read in the source file. The grammar is small and strict: an unknown
character or word in an equation is an error, so that nothing wrong is shown. In running text, anything that does not
parse stays text.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping

GREEK = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "varepsilon", "ζ": "zeta", "η": "eta", "λ": "lambda",
    "μ": "mu", "ρ": "rho", "σ": "sigma", "τ": "tau", "φ": "varphi", "π": "pi", "θ": "theta", "κ": "kappa",
    "Δ": "Delta", "Λ": "Lambda", "ℓ": "ell", "∇": "nabla", "∞": "infty",
}  # fmt: skip
OPERATORS = {
    "+": "+", "−": "-", "-": "-", "·": r"\,", "×": r"\times", "=": "=", "≤": r"\le", "≥": r"\ge", "<": "<", ">": ">",
    "←": r"\leftarrow", "↦": r"\mapsto", "∈": r"\in", "⊙": r"\odot", "⊗": r"\otimes", ",": ",", ";": ";", ":": ":",
    "…": r"\dots", "∘": r"\circ", "≠": r"\ne", "∼": r"\sim", "∪": r"\cup", "!": "!",
}  # fmt: skip
RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ᵏᴷᵗ", "0123456789+-kKt", strict=True)) | {"ᵀ": r"\top"}
LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
ACCENTS = {"\u0302": "hat", "\u0303": "tilde", "\u0304": "bar"}
PAIRS = {"(": ")", "[": "]", "{": "}", "‖": "‖", "|": "|", "⌈": "⌉", "⌊": "⌋"}
FENCES = {"(": ("(", ")"), "[": ("[", "]"), "{": (r"\{", r"\}"), "‖": (r"\lVert ", r"\rVert "),
          "|": (r"\lvert ", r"\rvert "), "⌈": (r"\lceil ", r"\rceil "), "⌊": (r"\lfloor ", r"\rfloor ")}  # fmt: skip
FUNCTIONS = {"unit", "exp", "log", "min", "max", "cos", "sign", "clamp", "softmax", "mean", "median", "clip", "rule",
             "knn", "model", "prediction", "optimiser", "normal", "KL"}  # fmt: skip
PLAIN = {"exp", "log", "min", "max", "cos"}  # functions that LaTeX defines
TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<number>\d+(?:\.\d+)?(?:e[-−]?\d+)?)|(?P<word>[A-Za-z][a-z]+|KL|[A-Za-z])(?P<accent>[\u0302-\u0304])?"
    r"|(?P<raised>[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ᵀᵏᴷᵗ]+)|(?P<lowered>[₀-₉]+)|(?P<other>.)(?P<other_accent>[\u0302-\u0304])?"
)


class NotMathematics(ValueError):
    """Raised if a text is not an equation of this grammar."""


def translate(
    text: str, names: Mapping[str, str] | None = None, words: Collection[str] = (), inline: bool = False
) -> str:
    """Return the LaTeX of an equation. `names` replaces symbols; `words` are allowed in addition to functions.

    >>> translate("c ← c + (1/N) Σ_{i∈S} (c_i⁺ − c_i)")
    'c \\\\leftarrow c + \\\\frac{1}{N} \\\\sum_{i \\\\in S} (c_i^{+} - c_i)'
    >>> translate("Δ = η_g g", {"g": "g_{1}"})
    '\\\\Delta = \\\\eta_g g_{1}'
    """
    return _Reader(text, names or {}, words, inline).read()


class _Reader:
    """A recursive descent over tokens; `/` takes the atoms on both of its sides."""

    def __init__(self, text: str, names: Mapping[str, str], words: Collection[str], inline: bool) -> None:
        self.text, self.names, self.words, self.inline = text, names, words, inline
        self.tokens = list(_tokens(unicodedata.normalize("NFD", text).replace("=\u0338", "\u2260")))
        self.at = 0

    def read(self) -> str:
        found = self.sequence("")
        if self.at < len(self.tokens):
            self.refuse(self.tokens[self.at][1])
        return found

    def refuse(self, what: str) -> None:
        raise NotMathematics(f"{what!r} has no meaning in the equation {self.text!r}")

    def peek(self) -> tuple[str, str, str]:
        return self.tokens[self.at] if self.at < len(self.tokens) else ("end", "", "")

    def skip(self) -> None:
        while self.peek()[0] == "space":
            self.at += 1

    def sequence(self, until: str) -> str:
        """Read up to a closing fence, which is left to the caller."""
        out: list[str] = []
        while True:
            self.skip()
            kind, value, _ = self.peek()
            if kind == "end" or (until and value == until):
                return " ".join(out)
            if value == "/":
                self.at += 1
                self.skip()
                if not out or out[-1] in OPERATORS.values():
                    self.refuse("/")
                below = self.atom()
                out[-1] = f"{out[-1]} / {below}" if self.inline else rf"\frac{{{_bare(out[-1])}}}{{{_bare(below)}}}"
            elif value in OPERATORS:
                self.at += 1
                out.append(OPERATORS[value])
            else:
                out.append(self.atom())

    def atom(self) -> str:
        """Read one symbol, group or application with its scripts."""
        kind, value, accent = self.peek()
        self.at += 1
        if value == "√":
            return rf"\sqrt{{{_bare(self.atom())}}}"
        if value == "Σ":
            return self.scripts(r"\sum")
        if value in PAIRS:
            return self.scripts(self.group(value))
        name = self.symbol(kind, value)
        name = rf"\{ACCENTS[accent]}{{{name}}}" if accent else name
        name = self.scripts(name)
        if kind != "number" and self.peek()[1] in ("(", "["):  # an application, because there is no space between
            opening = self.peek()[1]
            self.at += 1
            name = self.scripts(name + self.group(opening, of=name))
        return name

    def symbol(self, kind: str, value: str) -> str:
        if value in self.names and self.peek()[1] != "_":  # g is renamed, g_p is not
            return self.names[value]
        if kind == "number":
            base, _, power = value.replace("−", "-").partition("e")
            factor = "" if base == "1" else base + r" \cdot "
            return f"{factor}10^{{{int(power)}}}" if power else base
        if kind == "word":
            if len(value) == 1:
                return value
            if value in FUNCTIONS:
                return rf"\{value}" if value in PLAIN else rf"\operatorname{{{value}}}"
            if value in self.words:
                return r"\text{" + value.replace("_", r"\_") + "}"
        if value in GREEK:
            return rf"\{GREEK[value]}"
        self.refuse(value)
        return ""

    def scripts(self, base: str) -> str:
        """Read subscripts, superscripts and primes."""
        while True:
            kind, value, _ = self.peek()
            if kind == "raised":
                base += f"^{{{''.join(RAISED[c] for c in value)}}}"
            elif kind == "lowered":
                base += f"_{{{''.join(LOWERED[c] for c in value)}}}"
            elif value == "'":
                base += "'"
            elif value in ("_", "^"):
                self.at += 1
                base += value + self.script()
                continue
            else:
                return base
            self.at += 1

    def script(self) -> str:
        """Read what is lowered or raised; names there are part of a symbol, and not replaced."""
        outside, self.names = self.names, {}
        found = self._script()
        self.names = outside
        return found

    def _script(self) -> str:
        kind, value, accent = self.peek()
        self.at += 1
        if value == "{":
            if self.peek()[0] == "word" and len(self.peek()[1]) > 1 and self.tokens[self.at + 1][1] == "}":
                self.at += 2
                return rf"{{\mathrm{{{self.tokens[self.at - 2][1]}}}}}"
            outside, self.inline = self.inline, True  # no fractions there
            inside = self.sequence("}")
            self.inline = outside
            self.at += 1
            return f"{{{inside}}}"
        if kind == "word" and len(value) > 1:
            return rf"{{\mathrm{{{value}}}}}"
        names, self.names = self.names, {}  # the g of η_g is not an oracle
        name = self.symbol(kind, value)
        self.names = names
        return rf"\{ACCENTS[accent]}{{{name}}}" if accent else name

    def group(self, opening: str, of: str = "") -> str:
        """Read a group; parentheses around one fraction are left out, unless a function is applied to it."""
        inside = self.sequence(PAIRS[opening])
        if self.peek()[1] != PAIRS[opening]:
            self.refuse(opening)
        self.at += 1
        if opening == "(" and not of and inside.startswith(r"\frac") and _is_one(inside):
            return inside
        left, right = FENCES[opening]
        tall = not self.inline and re.search(r"\\(frac|sum|sqrt)", inside)
        return rf"\left{left}{inside}\right{right}" if tall else f"{left}{inside}{right}"


def _tokens(text: str) -> Iterator[tuple[str, str, str]]:
    for found in TOKEN.finditer(text):
        kind = found.lastgroup or "other"
        kind = {"accent": "word", "other_accent": "other"}.get(kind, kind)
        yield kind, found[kind], found["accent"] or found["other_accent"] or ""


def _is_one(latex: str) -> bool:
    r"""Whether a fraction is the whole text: \frac{a}{b}, nothing after it."""
    depth, closed = 0, 0
    for i, c in enumerate(latex):
        depth += (c == "{") - (c == "}")
        closed += c == "}" and depth == 0
        if closed == 2:
            return i == len(latex) - 1
    return False


def _bare(latex: str) -> str:
    """Leave out parentheses that a fraction or a root makes unnecessary."""
    if not latex.startswith(("(", r"\left(")):
        return latex
    plain = re.sub(r"\\(?:left|right)(?=[()])", "", latex)
    depth = 0
    for i, c in enumerate(plain):
        depth += (c == "(") - (c == ")")
        if not depth and i < len(plain) - 1:
            return latex
    start, end = (6, 7) if latex.startswith(r"\left") else (1, 1)
    return latex[start:-end]


# Running text: what is mathematics there is found by its characters.
SIGNS = re.compile(
    r"[αβγδεζηλμρστφπθκΔΛℓ∇∞Σ√‖⊙⊗←≤≥∈−⁰¹²³⁴-⁹⁺⁻ᵀᵏᴷᵗ₀-₉\u0302-\u0304]|(?<![A-Za-z])[A-Za-z](?:_[A-Za-z{0-9]|'(?![A-Za-z]))"
)
JOINS = re.compile(r"[=+·/×<>←≤≥∈−⊙≈]+|\d+(\.\d+)?(e[-−]?\d+)?")
CALL = re.compile(r"(?:[a-zA-Z]|unit|mean|exp|log|cos)\([^()]*\)")


def typeset(text: str) -> str:
    """Return running text as Markdown with its mathematics set; code between backticks stays as it is.

    >>> typeset("it keeps c_i, not `c_i`.")
    'it keeps \\\\(c_i\\\\), not `c_i`.'
    """
    text = re.sub(r"arXiv:(\d{4}\.\d{5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", text)
    pieces = re.split(r"(`[^`]+`|\[arXiv:[^)]+\))", text)
    return "".join(p if p[:1] in ("`", "[") else _typeset(unicodedata.normalize("NFD", p)) for p in pieces)


def _typeset(text: str) -> str:
    out: list[str] = []
    run: list[str] = []

    def flush() -> None:
        while run and re.fullmatch(r"[^\w‖)]+", run[-1]):  # an operator without its right side
            held.append(run.pop())
        if run:
            out.append(_set_run(" ".join(run)))
        out.extend(map(_safe, reversed(held)))
        run.clear()
        held.clear()

    held: list[str] = []
    for word in text.split(" "):
        bare = word.strip("(),;:.")
        possible = (
            _certain(word) or (run and (JOINS.fullmatch(bare) or len(bare) == 1)) or re.fullmatch(r"[b-zB-HJ-Z]", bare)
        )
        if possible and bare:
            run.append(word)
            together = " ".join(run)
            if (re.search(r"[,;:.]$", word) and not _open(together)) or together.count(")") > together.count("("):
                flush()
        else:
            flush()
            out.append(_safe(word))
    flush()
    return unicodedata.normalize("NFC", " ".join(out))


def _certain(word: str) -> bool:
    return bool(SIGNS.search(word) or CALL.fullmatch(word.strip(",;:."))) and not re.search(r"[A-Za-z]{3,}-|://", word)


def _open(run: str) -> bool:
    return run.count("(") > run.count(")") or run.count("‖") % 2 == 1


def _set_run(run: str) -> str:
    """Set a run of symbols; the punctuation around it stays outside."""
    before, inside, after = re.fullmatch(r"(\(?)(.*?)([,;:.)]*)", run, re.S).groups()  # type: ignore[union-attr]
    while inside.count("(") > inside.count(")") and after.startswith(")"):
        inside, after = inside + ")", after[1:]
    if before and inside.count(")") > inside.count("("):
        before, inside = "", before + inside
    try:
        latex = translate(inside, inline=True)
    except (NotMathematics, IndexError):
        return _safe(run)
    return rf"{before}\({latex}\){after}"


def _safe(word: str) -> str:
    return html.escape(word, quote=False).replace("*", "\\*").replace("_", "\\_").replace("|", "&#124;")
