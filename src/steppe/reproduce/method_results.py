"""Read each method in each setting from the committed rows, with its accuracy, its gain and its costs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from steppe.config import Config
from steppe.report.seeds import join_words
from steppe.reproduce import factorial
from steppe.reproduce.costs import trace_costs
from steppe.reproduce.intervals import Interval, compare_blocks, estimate
from steppe.reproduce.league import MEAN, MODEL, find_column, find_strong, list_arms, read_league
from steppe.reproduce.league_runs import find_standings
from steppe.reproduce.recipes import USUAL, hash_recipe, load_table
from steppe.reproduce.rows import Row, find_statistic
from steppe.reproduce.survey import choose_candidate, list_entrants

# Tables that compare methods by the accuracy of the global model; others compare variants of one.
COMPARISONS = ("fedsol-table1", "fedsmoo-table1", "man-accuracy")


@dataclass(frozen=True)
class Setting:
    """A federation on which methods were compared, and by which table."""

    source: str
    data: str
    model: str
    partition: str
    clients: int
    per_round: int
    rounds: int

    def __str__(self) -> str:
        return (f"{self.data}, {self.partition}, {self.model}, {self.per_round} of {self.clients} clients per round, "
                f"{self.rounds} rounds")  # fmt: skip


@dataclass(frozen=True)
class Evidence:
    """A method in a setting: percent of the test set, over seeds.

    Gains are in points on the same seeds: over FedAvg, and over FedAvg with a running mean, which costs nothing.
    """

    setting: Setting
    title: str
    command: str
    by_seed: tuple[tuple[int, float], ...]
    gain: Interval | None
    bytes_x: float
    flops_x: float
    kept: float
    gain_over_mean: Interval | None = None
    remark: str = ""  # what a reader who takes it has to know

    @property
    def accuracy(self) -> Interval:
        found = estimate([value for _, value in self.by_seed])
        assert found is not None
        return found

    @property
    def stateless(self) -> bool:
        return self.kept < 1e-3  # a flag or a counter does not count as a vector


def collect_evidence(rows: Sequence[Row]) -> list[Evidence]:
    """Return all evidence: from the league, the survey, and the published tables' own rows."""
    judged: dict[str, dict[int, Row]] = {}
    for row in rows:
        if "failed" not in row and not row["config"].get("validation"):
            judged.setdefault(row["recipe"], {})[row["seed"]] = row
    found: dict[Setting, list[tuple[str, str, Config, dict[int, float]]]] = {}
    for source, title, config, statistic, command in _list_methods(rows):
        of = {s: 100 * v for s, r in judged.get(hash_recipe(config), {}).items()
              if (v := find_statistic(r, statistic)) is not None}  # fmt: skip
        if of:
            found.setdefault(_place(source, config), []).append((title, command, config, of))
    remarks = _remark_on_parts(rows)
    every = [e for setting, methods in found.items() for e in _weigh(setting, methods)]
    return [replace(e, remark=remarks.get((e.setting.source, e.title), "")) for e in every]


def _remark_on_parts(rows: Sequence[Row]) -> dict[tuple[str, str], str]:
    """Say of the league's arm with a factorial which of its parts are not shown to be needed, or look harmful."""
    whole = next(a for a in list_arms() if a.id == read_league()["factorial"]["of"])
    found = find_standings(rows)
    name = whole.content.get("entry", "").capitalize() or f"{whole.title} + EMA"
    told = []
    for column, (_, unknown) in factorial.find_needed(found).items():
        effects = factorial.find_last_effects(found, column)
        title = find_column(column)["title"]
        less = [f", and without {part} it has {Interval(-e.mean, e.half, e.count)} points more on {title}"
                for part, e in effects.items() if e.mean < 0]  # fmt: skip
        if unknown:
            told.append(f"whether {name} needs its {join_words(unknown)} is open{''.join(less)}")
    return {("league", name): f"{told[0][0].upper()}{told[0][1:]}: see docs/league.md."} if told else {}


def list_tuned(rows: Sequence[Row]) -> list[Evidence]:
    """Return the tuned methods of the league in the setting in which they were tuned, which is no evidence."""
    found = []
    for arm in (a for a in list_arms() if not a.like):
        if (chosen := arm.choose(rows)) is None:
            continue
        config = arm.cell(chosen, None).config
        name = arm.content.get("entry", "").capitalize() or f"{arm.title} + EMA"
        found += _weigh(_place("league", config), [(name, "", config, {})])
    return found


def list_uncompared(rows: Sequence[Row]) -> list[Evidence]:
    """Return the strong methods of the league that have no block yet, with their accuracy on held-out data."""
    found = []
    for arm, score in find_strong(rows).items():
        config = next(arm.cell(c, None).config for c, s in arm.list_scores(rows).items() if s == score)
        found += _weigh(_place("league", config), [(f"{arm.title} + EMA", spell_command(config, read_league()["keep"]),
                                                    config, {config.seed: 100 * score})])  # fmt: skip
    return found


def _place(source: str, c: Config) -> Setting:
    return Setting(source, c.data, c.model, c.partition, c.clients, c.per_round, c.rounds)


def _list_methods(rows: Sequence[Row]) -> Iterator[tuple[str, str, Config, str, str]]:
    """Yield source, title, configuration, statistic and command: of what was chosen without the test set."""
    for arm in (a for a in list_arms() if not a.like):  # others are not tuned
        chosen = arm.choose(rows)
        for column in arm.columns if chosen else ():
            config = arm.cell(chosen, column).config  # type: ignore[arg-type]
            entry = arm.content.get("entry", "")  # of the catalogue, which has the chosen settings and the running mean
            bare, ema = spell_command(config), spell_command(config, read_league()["keep"])
            name = entry.capitalize()
            yield "league", f"{name} without its running mean" if entry else arm.title, config, MODEL, bare
            yield "league", name or f"{arm.title} + EMA", config, MEAN, entry + spell_local(config) if entry else ema
    for entrant in list_entrants():
        best = choose_candidate(entrant, rows)
        if best is not None:
            config = entrant.final[best].config
            yield "survey", entrant.title, config, MODEL, spell_command(config)
    for name in COMPARISONS:
        table = load_table(name)
        for cell in table.main:
            yield name, spell_title(table.rows[cell.row]), cell.config, MODEL, spell_command(cell.config)


def spell_title(printed: str) -> str:
    """Return a method's name in the survey's spelling, even if a paper spells it differently.

    >>> spell_title("Scaffold"), spell_title("FedDC+MAN"), spell_title("FedAdam (5%-200)")
    ('SCAFFOLD', 'FedDC + MAN', 'FedAdam (5%-200)')
    """
    known = {entrant.title.casefold(): entrant.title for entrant in list_entrants()}
    return " + ".join(known.get(word.casefold(), word) for word in re.split(r"\s*\+\s*", printed))


def _weigh(setting: Setting, methods: list[tuple[str, str, Config, dict[int, float]]]) -> list[Evidence]:
    plain = [
        of
        for title, _, c, of in methods
        if c.algorithm == "fedavg" and not c.settings and set(c.add) <= {"latest_mean"} and "EMA" not in title
    ]
    base = plain[0] if plain else None
    mean = next((of for title, *_, of in methods if title == "FedAvg + EMA"), None)
    made = []
    for title, command, config, of in methods:
        costs = trace_costs(config)
        gain, over_mean = (None if b is None or of is b else compare_blocks(of, b) for b in (base, mean))
        made.append(Evidence(setting, title, command, tuple(sorted(of.items())), gain, costs["bytes_x"],
                             costs["flops_x"], costs["kept"], over_mean))  # fmt: skip
    return made


def spell_command(config: Config, ema: float | None = None) -> str:
    """Return the arguments of `steppe run` for a method, with the local rate, momentum and clip that it had.

    >>> spell_command(Config(algorithm="fedsam", settings={"rho": 0.5}, add=["man:weight=0.1"]), 0.9)
    'fedsam:rho=0.5+man:weight=0.1+ema:keep=0.9'
    """
    settings = ",".join(f"{k}={v}" for k, v in config.settings.items())
    parts = [config.algorithm + (f":{settings}" if settings else ""), *config.add]
    parts += [f"ema:keep={ema:g}"] if ema is not None else []
    return "+".join(parts) + spell_local(config)


def spell_local(config: Config) -> str:
    """Return the options for the local rate, momentum and clip that a run needs, where they are not the defaults.

    >>> spell_local(Config(lr=0.01, momentum=0.9))
    ' --set lr=0.01 --set momentum=0.9'
    """
    changed = {k: v for k in ("lr", "momentum", "clip") if (v := getattr(config, k)) != USUAL[k]}
    return "".join(f" --set {k}={v:g}" for k, v in changed.items())
