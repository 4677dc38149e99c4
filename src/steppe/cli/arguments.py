"""What the words of a command line mean: configurations, names with settings, folders."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from steppe.core.errors import SteppeError


def first_complaint(error: Any, known: dict[str, list[str]]) -> str:
    from steppe.core.errors import nearest

    first = error.errors()[0]
    where = ".".join(str(p) for p in first["loc"])
    if first["type"] == "extra_forbidden":
        there = known.get(str(first["loc"][0]), known["Problem"])
        return f"there is no key {where!r}{nearest(str(first['loc'][-1]), there)}"
    return (f"{where}: " if where else "") + str(first["msg"]).removeprefix("Value error, ")


def configuration(algorithm: str | None, path: Path | None, sets: list[str], add: list[str], rounds: int | None,
            begun: dict[str, Any] | None = None) -> Any:  # fmt: skip
    """A checked configuration from a file (or a run that was begun), then the command line's words on top."""
    from steppe.config import assign, read
    from steppe.registry import catalogue_settings

    below = read(path) if path else begun or {}
    values = dict(below)
    if algorithm:
        algorithm, own_sets, parts = spelled_out(algorithm)
        sets, add = [*own_sets, *sets], [*parts, *add]
        if algorithm != values.get("algorithm", "fedavg"):
            values.pop("settings", None)  # they were meant for another algorithm
        values["algorithm"] = algorithm
    settings = values.get("settings", {})
    for text in sets:
        key, value = assign(text, catalogue_settings(values.get("algorithm", "fedavg")))
        own = {key.removeprefix("settings."): value} if key.startswith("settings.") else value
        if not key.startswith("settings"):
            values[key] = value
        elif isinstance(own, dict) and isinstance(settings, dict):
            settings = values["settings"] = {**settings, **own}
        else:
            raise SteppeError(f"--set {text}: settings is a table, such as settings.rho=0.1")
    if add:
        values["add"] = [*values.get("add", []), *add]
    if rounds is not None:
        values["rounds"] = rounds
    try:
        return _checked(values, "")
    except SteppeError as error:
        if path:  # the same complaint about the file alone: then that is where the mistake stands
            try:
                _checked(below, "")
            except SteppeError as alone:
                if str(alone) == str(error):
                    raise SteppeError(f"{path}: {error}") from None
        raise


def _checked(values: dict[str, Any], source: str) -> Any:
    """Keys, types and ranges, then names and settings."""
    from steppe.config import resolve
    from steppe.engine.build import check_names

    config = resolve(values, source)
    check_names(config)
    return config


def spelled_out(name: str) -> tuple[str, list[str], list[str]]:
    """`fedsam:rho=0.5+man:weight=0.1` as an algorithm, its settings, and further parts.

    >>> spelled_out("fedsam:rho=0.5,eps=0+man:weight=0.1+ema")
    ('fedsam', ['rho=0.5', 'eps=0'], ['man:weight=0.1', 'ema'])
    """
    first, *add = name.split("+")
    algorithm, _, settings = first.partition(":")
    return algorithm, [s for s in settings.split(",") if s], add


def shared_sets(sets: list[str], algorithms: list[str]) -> dict[str, list[str]]:
    """Of the words given to all, those that each algorithm knows; one that none knows is an error."""
    from steppe.config import Config, assign
    from steppe.registry import catalogue_settings

    known = {a: catalogue_settings(a) for a in algorithms}
    key_of = {text: text.partition("=")[0].strip().removeprefix("settings.") for text in sets}
    for text, key in key_of.items():
        if key not in Config.model_fields and not any(key in settings for settings in known.values()):
            assign(text, {k: None for settings in known.values() for k in settings})
    return {a: [t for t in sets if key_of[t] in {*Config.model_fields, *known[a]}] for a in algorithms}


def grid(texts: list[str], option: str = "--grid") -> dict[str, list[str]]:
    """`key=value,value` as a key and its values; a comma within brackets divides nothing.

    >>> grid(["rho=0.1,0.5", "partition=lda(0.1),dirichlet(1,2)"])
    {'rho': ['0.1', '0.5'], 'partition': ['lda(0.1)', 'dirichlet(1,2)']}
    """
    found: dict[str, list[str]] = {}
    for text in texts:
        key, _, raw = text.partition("=")
        key = key.strip().removeprefix("settings.")
        values, depth = [""], 0
        for letter in raw:
            depth += (letter in "([{") - (letter in ")]}")
            if letter == "," and depth == 0:
                values.append("")
            else:
                values[-1] += letter
        values = [value.strip() for value in values]
        if not key or not all(values):
            raise SteppeError(f"{option} {text}: write it as key=value,value")
        if key in found:
            raise SteppeError(f"{option} {text}: {key} is there twice; give all its values at once")
        if key == "seed":
            raise SteppeError(f"{option} {text}: seeds are no setting to choose; ask for several with --seeds 3")
        found[key] = values
    return found


def free_folder(name: str, resume: bool) -> Path:
    """runs/NAME, or runs/NAME-2 and so on; to resume, the newest of them that is not finished."""
    from itertools import count

    taken = []
    for k in count(1):
        where = Path("runs") / (name if k == 1 else f"{name}-{k}")
        if not where.exists():
            break
        taken.append(where)
    if resume:
        open_ones = [p for p in taken if not (p / "result.json").exists()]
        if not taken:
            raise SteppeError(
                f"There is no run to resume in {where}: start it without --resume, or name it with --out."
            )
        return (open_ones or taken)[-1]
    return where


def check_picture(path: Path) -> None:
    if path.suffix.lower() not in (".png", ".svg", ".pdf", ".jpg", ".webp"):
        raise SteppeError(f"{path}: a picture's name ends in .png, .svg, .pdf, .jpg or .webp.")


def shape_of(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(n) for n in text.replace("×", "x").split("x"))
    except ValueError:
        raise SteppeError(f"--shape {text}: write it as 3x32x32.") from None


def chosen_run(algorithm: str | None, config: Path | None, sets: list[str], add: list[str], rounds: int | None,
               out: Path | None, resume: bool) -> tuple[Any, str, Path]:  # fmt: skip
    """What `steppe run` is asked to do: its configuration, what to call it, and the folder to write to."""
    from steppe.runs.folder import RunFolder

    begun = RunFolder(out).read("config.json") if resume and out and RunFolder(out).exists else None
    if begun and not algorithm and not config:  # --resume --out DIR says it all
        chosen = configuration(None, None, sets, add, rounds, begun)
    else:
        chosen = configuration(algorithm, config, sets, add, rounds)
    label = "+".join([chosen.algorithm, *(a.partition(":")[0] for a in chosen.add)])
    where = out or free_folder(f"{label}-{chosen.hash}", resume)
    if resume and not RunFolder(where).exists:
        raise SteppeError(f"{where} holds no run to resume: start it without --resume.")
    if not resume and RunFolder(where).exists:
        raise SteppeError(f"{where} already holds a run: choose another --out, or go on with it by --resume.")
    return chosen, label, where


def under_torchrun() -> bool:
    return int(os.environ.get("WORLD_SIZE", 1)) > 1 and "TORCHELASTIC_RUN_ID" in os.environ


def check_torchrun(arguments: list[str]) -> None:
    if under_torchrun() and arguments[:1] not in ([], ["run"], ["-h"], ["--help"], ["--version"]):
        raise SteppeError(f"steppe {arguments[0]} works in one process: call it without torchrun, which is for "
                          "steppe run.")  # fmt: skip


def may_speak() -> bool:
    """Whether this one of torchrun's processes is the one to print an error."""
    from steppe.distributed import torchrun

    return torchrun.may_speak()
