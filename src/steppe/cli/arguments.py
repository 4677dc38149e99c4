"""Interpret the words of a command line: configurations, names with settings, folders."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import click

from steppe.core.errors import SteppeError, quote
from steppe.settings import parse_assignment, parse_grid, shorten, split_algorithm, tell_where


def read_configuration(algorithm: str | None, path: Path | None, sets: list[str], add: list[str], rounds: int | None,
                       begun: dict[str, Any] | None = None) -> Any:  # fmt: skip
    """Return a checked configuration from a file (or a started run), overridden by the command line."""
    from steppe.config import rename_old, resolve
    from steppe.data.divide import count_clients
    from steppe.engine.build import check_names
    from steppe.read_config import format_option, nest_settings, put_value, read_config_file, spell_out

    values = rename_old(spell_out(read_config_file(path) if path else begun or {}))
    table = values.get("settings")
    said = dict.fromkeys([*values, *(table if isinstance(table, dict) else ())], str(path or "config.json"))
    words = [(text, format_option(text)) for text in sets]
    with tell_where(said):
        if algorithm:
            name, own_sets, parts = split_algorithm(algorithm)
            words = [*((text, quote(algorithm)) for text in own_sets), *words]
            add = [*parts, *add]
            if name != values.get("algorithm", "fedavg"):
                values.pop("settings", None)  # they were meant for another algorithm
            values = rename_old({**values, "algorithm": name})
            said.pop("algorithm", None)
        values = nest_settings(values)
        for text, how in words:
            key, value = parse_assignment(text)
            bare = key.removeprefix("settings.")
            said.pop(bare, None)  # so that it is the last
            said[bare] = how
            values = nest_settings(put_value(values, key, value))
        if add:
            given = values.get("add", [])
            values["add"] = [*given, *add] if isinstance(given, list) else given
            said["add"] = f"--add {add[-1]}"
        if rounds is not None:
            values["rounds"], said["rounds"] = rounds, f"--rounds {rounds}"
        if "clients" not in values and (count := count_clients(values.get("partition"))):
            values["clients"] = count
        config = resolve(values, "")
        check_names(config)
    return config


def share_sets(sets: list[str], algorithms: list[str]) -> dict[str, list[str]]:
    """Select for each algorithm the shared settings that it has; refuse a setting that none has."""
    from steppe.config import Config
    from steppe.read_config import parse_option
    from steppe.registry import list_catalogue_settings

    known = {a: list_catalogue_settings(a) for a in algorithms}
    for text in sets:
        parse_option(text, {k for settings in known.values() for k in settings})
    key_of = {text: parse_assignment(text)[0].removeprefix("settings.") for text in sets}
    return {a: [t for t in sets if key_of[t] in {*Config.model_fields, *known[a]}] for a in algorithms}


def read_grid(texts: list[str]) -> dict[str, list[str]]:
    """Parse every `key=value,value` into a key and its values.

    >>> read_grid(["rho=0.1,0.5", "partition=lda(0.1),dirichlet(1,2)"])
    {'rho': ['0.1', '0.5'], 'partition': ['lda(0.1)', 'dirichlet(1,2)']}
    """
    found: dict[str, list[str]] = {}
    for text in texts:
        with tell_where({"grid": f"--grid {text}"}):
            key, values = parse_grid(text)
        if key in found:
            raise SteppeError(f"--grid {text}: {key} is given twice; give all its values at once")
        if key == "seed":
            raise SteppeError(f"--grid {text}: a seed must not be chosen by its result; use several with --seeds 3")
        found[key] = values
    return found


def find_free_folder(name: str, resume: bool) -> Path:
    """Find runs/NAME, or runs/NAME-2 and so on; to resume, the newest of them that is not finished."""
    from itertools import count

    from steppe.runs.folder import RunFolder

    taken = []
    for k in count(1):
        where = Path("runs") / (name if k == 1 else f"{name}-{k}")
        if not where.exists():
            break
        taken.append(where)
    if resume:
        open_ones = [p for p in taken if not RunFolder(p).finished]
        if not taken:
            raise SteppeError(
                f"There is no run to resume in {where}: start it without --resume, or name it with --out."
            )
        return (open_ones or taken)[-1]
    return where


def check_picture(path: Path) -> None:
    """Refuse a file name without the suffix of a picture."""
    if path.suffix.lower() not in (".png", ".svg", ".pdf", ".jpg", ".webp"):
        raise SteppeError(f"{path}: the name of a picture must end in .png, .svg, .pdf, .jpg or .webp.")


def parse_shape(text: str) -> tuple[int, ...]:
    """Read 3x32x32."""
    words = text.replace("×", "x").split("x")
    if not all(word.strip().isdecimal() and len(word) <= 7 and int(word) for word in words) or len(words) > 6:
        raise SteppeError(f"--shape {text[:80]}: write it as 3x32x32, with numbers from 1 to 9999999.")
    return tuple(map(int, words))


def choose_run(algorithm: str | None, config: Path | None, sets: list[str], add: list[str], rounds: int | None,
               out: Path | None, resume: bool) -> tuple[Any, str, Path]:  # fmt: skip
    """Return the configuration, the label and the folder of `steppe run`."""
    from steppe.registry import name_part
    from steppe.runs.folder import RunFolder, check_place

    if out is not None:
        check_place(out)
    begun = RunFolder(out).read("config.json") if resume and out and RunFolder(out).exists else None
    if begun and not algorithm and not config:  # --resume --out DIR is sufficient
        chosen = read_configuration(None, None, sets, add, rounds, begun)
    else:
        chosen = read_configuration(algorithm, config, sets, add, rounds)
    label = "+".join([shorten(chosen.algorithm), *map(name_part, chosen.add)])
    where = out or find_free_folder(f"{label}-{chosen.hash}", resume)
    if resume and not RunFolder(where).exists:
        raise SteppeError(f"{where} holds no run to resume: start it without --resume.")
    if not resume and RunFolder(where).exists:
        raise SteppeError(f"{where} already holds a run: choose another --out, or continue it with --resume.")
    return chosen, label, where


def rewrite_options(words: list[str], command: click.Command) -> list[str]:
    """Rewrite every option that its command does not have, such as --lr 0.1, as --set=--lr=0.1: it may be a key.

    Only for commands that have --set; keys are checked later, when the algorithm is known.
    """
    at = 0
    while isinstance(command, click.Group) and at < len(words) and words[at] in command.commands:
        command, at = command.commands[words[at]], at + 1
    takes_value = {name: not (isinstance(p, click.Option) and p.is_flag)
                   for p in command.params for name in (*p.opts, *p.secondary_opts)}  # fmt: skip
    if "--set" not in takes_value:
        return words
    done, left = words[:at], words[at:]
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        if word == "--":
            return [*done, word, *left]
        if name in takes_value or name in ("-h", "--help") or not name.startswith("--"):
            done.append(word)
            if takes_value.get(word) and left:
                if word in ("--set", "-s"):
                    _check_assignment(word, *left[:3])
                done.append(left.pop(0))
        else:
            if not equals:
                if not left or left[0].startswith("--"):
                    flags = ", ".join(name for name, value in takes_value.items() if not value and name[:2] == "--")
                    raise SteppeError(f"{word} needs a value: write {word} VALUE. Options without one are {flags}.")
                value = left.pop(0)
            done.append(f"--set={name}={value}")
    return done


def _check_assignment(option: str, text: str, *after: str) -> None:
    """Refuse `--set lr 0.1`, `--set lr: 0.1` and `--set lr = 0.1`, whose values would be taken for algorithms."""
    key, value = [*re.split("[=:]", text, maxsplit=1), ""][:2]
    if "=" not in text or not value:
        following = next((word for word in after if word != "="), "-")
        value = value or ("VALUE" if following.startswith("-") else following)
        raise SteppeError(f"{option} {text} is not KEY=VALUE: write {option} {key}={value}")


def tell_seed(seeds: int, sets: list[str]) -> None:
    """Say what a seed does to a command with many runs, because it is easily taken for their number."""
    given = next((value for key, value in map(parse_assignment, sets) if key == "seed"), None)
    if seeds == 1 and isinstance(given, int) and given > 1:
        print(f"one run each, with seed {given}; for {given} runs each, write --seeds {given}", file=sys.stderr)


def is_under_torchrun() -> bool:
    """Return whether torchrun started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", 1)) > 1 and "TORCHELASTIC_RUN_ID" in os.environ


def check_torchrun(arguments: list[str]) -> None:
    """Refuse commands that work in one process."""
    if is_under_torchrun() and arguments[:1] not in ([], ["run"], ["-h"], ["--help"], ["--version"]):
        raise SteppeError(f"steppe {arguments[0]} runs in one process: call it without torchrun, which is for "
                          "steppe run.")  # fmt: skip


def should_report() -> bool:
    """Return whether this process, of those of torchrun, should print an error."""
    from steppe.distributed import torchrun

    return torchrun.claim_report()
