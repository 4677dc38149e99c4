"""How a run can be repeated: by a command only if that command would make the same run."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any, NamedTuple

from steppe.algorithms import CATALOGUE
from steppe.config import OWN, Config, list_keys, resolve
from steppe.core.errors import SteppeError, take_first_line
from steppe.data import Partition
from steppe.data.partition import is_rule
from steppe.references import hash_file, is_reference
from steppe.registry import find_sources
from steppe.report.comparison import Run, find_data
from steppe.settings import split_name

OLD = ("The folder was written by version 0.1.0, which did not record whether parts, data or loss were objects of the "
       "user's own; if none was, this command repeats it:")  # fmt: skip


class Repeat(NamedTuple):
    sentence: str  # what is needed, or why there is no command
    command: str | None


def explain_repeat(run: Run) -> Repeat:
    """Say how the run is repeated, with the command if there is one."""
    config = run.folder.config
    if run.partition is None:
        own = list_own_objects(run)
        return Repeat("Run by a federation of nodes, each with its own data"
                      f"{', with ' if own else ''}{'; '.join(own)}: repeat it with steppe federate.", None)  # fmt: skip
    lost_partition = ""
    if config.partition.startswith(OWN) or (run.about.get("partition") or {}).get("by"):
        lost_partition = "the partition, which was the user's own, from the run's folder"
    elif not is_rule(config.partition) and _read_partition_hash(config.partition) != run.partition.hash:
        lost_partition = f"the partition, which {config.partition} no longer holds but the run's folder does"
    if lost_partition:
        config = config.model_copy(update={"partition": str(run.folder.partition_file)})
    if own := list_own_objects(run):
        named = {"algorithm": config.algorithm, "add": [text for text in config.add if not text.startswith(OWN)],
                 "data": config.data, "model": config.model}  # fmt: skip
        named = {key: name for key, name in named.items() if name and (key == "add" or key not in run.folder.own)}
        hidden = {"settings": config.settings} if config.settings.keys() & Config.model_fields.keys() else None
        values = {**named, **find_settings(config), **(hidden or config.settings)}
        settings = ", ".join(f"{k}={v!r}" for k, v in values.items())
        return Repeat(f"Run from Python with {'; '.join(own)}. A command cannot name such objects: repeat the run from "
                      f"Python with the same ones{f' and {settings}' if settings else ''}.", None)  # fmt: skip
    if (data := run.about.get("data")) and run.data is None and _can_load(run):
        return Repeat(f"The data set {data['name']} on this machine differs from the run's (hash "
                      f"{data['hash']}), so no command here repeats the run.", None)  # fmt: skip
    config, lost = find_own_files(run, config)
    if lost:
        return Repeat(f"Run with {lost}, which is missing or has changed, so no command here repeats the run.", None)
    needs = [] if run.data is not None else [f"the data set {config.data}{_hash(data)}, which is not on this machine"]
    needs += [f"the secret key in {p['secret']}" for p in run.about["parts"] if p["part"] == "dp" and p.get("secret")]
    needs += [lost_partition] if lost_partition else []
    sentence = "" if "format" in run.about else OLD
    sentence += f"{' ' if sentence else ''}This command needs {' and '.join(needs)}." if needs else ""
    return Repeat(sentence, format_command(config))


def find_own_files(run: Run, config: Config) -> tuple[Config, str]:
    """Return the configuration with the places of the run's own files, and the first file that has changed."""
    now = find_sources(config.algorithm, config.add)
    for name, was in run.about.get("sources", {}).items():
        if now.get(name, {}).get("sha256") == was["sha256"]:
            continue
        file, thing = Path(was["file"]), name.rpartition(":")[2]
        if not (is_reference(name) and file.is_file() and hash_file(file) == was["sha256"]):
            return config, f"{name} ({file.name}, sha256 {was['sha256'][:12]})"
        add = [f"{file}:{thing}{text[len(name) :]}" if split_name(text)[0] == name else text for text in config.add]
        algorithm = f"{file}:{thing}" if config.algorithm == name else config.algorithm
        config = config.model_copy(update={"algorithm": algorithm, "add": add})
    return config, ""


def list_own_objects(run: Run) -> list[str]:
    """Describe what has no name: the user's own objects, and arguments that the command line does not have."""
    about, own = run.about, run.folder.own
    described = {
        "algorithm": lambda: f"the parts {', '.join(map(_describe_part, about['parts']))}",
        "add": lambda: (
            "the further parts "
            + ", ".join(_describe_part(part) for part in about["parts"] if OWN + part["type"] in run.config["add"])
        ),
        "model": lambda: describe_model(run),
        "data": lambda: describe_data(run),
        "optimiser": lambda: f"the optimiser {run.config['optimiser'].removeprefix(OWN)}",
        "loss": lambda: f"the loss {about['loss']['type']}",
    }
    if "format" not in about:
        parts = [] if about["algorithm"].partition("+")[0] == run.config["algorithm"] else ["parts of the user's own"]
        return parts + (["a model of the user's own"] if own else [])
    found = [described[key]() for key in own]
    if "metrics" not in about:  # written before loss and metrics were keys of the configuration
        if "loss" not in own and "data" not in own and not about["loss"]["type"].endswith(".cross_entropy"):
            found.append(described["loss"]())
        if "data" not in own and about["metric"]["name"] != "accuracy":
            found.append(f"the metric {about['metric']['name']}")
    found += [f"the metric {name.removeprefix(OWN)}" for name in run.config.get("metrics", []) if name.startswith(OWN)]
    found += [f"the function {predict} as predict"] if (predict := about["model"].get("predict")) else []
    return found + (
        [f"the head {about['model'].get('head', 'chosen by the user')}"] if about["model"].get("own_head") else []
    )


def _describe_part(part: dict[str, Any]) -> str:
    words = ("part", "type")  # a setting of such a name is recorded with a line after it
    own = {k.removesuffix("_") if k[:-1] in words else k: v for k, v in part.items() if k not in words}
    settings = ", ".join(f"{k}={v!r}" for k, v in own.items())
    return f"{part['type']}({settings})"


def describe_model(run: Run) -> str:
    """Name the model; the user's own by its class and the hash of its structure."""
    model = run.about.get("model")
    if model is None:
        return "a model of the user's own"
    return f"the model {model['type']} (structure {model['structure']})" if model.get("own") else run.config["model"]


def describe_data(run: Run) -> str:
    """Name the data; the user's own with their size and the hash of their content."""
    data = run.about.get("data")
    if run.partition is None and (samples := run.summary.get("nodes", {}).get("samples")):
        return (f"{run.config['data']} ({sum(samples.values()):,} training examples of {len(samples)} of "
                f"{run.config['clients']} clients)")  # fmt: skip
    if data is None or not data["own"]:
        return str(run.config["data"])
    counts = f"{data['train']:,} training and {data['test']:,} {run.config['judged_on']} examples"
    return f"the data {data['name']} ({counts}, hash {data['hash']})"


def describe_idea(run: Run) -> str:
    """Return the paper and its idea, as the catalogue has them; empty for the user's own algorithm."""
    entry = None if list_own_objects(run) else CATALOGUE.get(run.folder.config.algorithm)
    return take_first_line(entry.__doc__ if entry else None)


def find_settings(config: Config) -> dict[str, Any]:
    """Return the keys of a run that differ from the defaults, or from the recipe; names and tracking are left out."""
    names = {key: value for key in ("algorithm", "data") if not (value := getattr(config, key)).startswith(OWN)}
    recipe = {"recipe": config.recipe} if config.recipe else {}
    base = resolve({**names, **recipe, "add": config.add}).model_dump(mode="json")
    own = {key for key in ("loss", "optimiser") if str(getattr(config, key)).startswith(OWN)}
    own |= {"metrics"} if any(m.startswith(OWN) for m in config.metrics) else set()
    skipped = {"algorithm", "data", "model", "add", "settings", *own, *recipe, *list_keys("tracking")}
    return recipe | {k: v for k, v in config.model_dump(mode="json").items() if k not in skipped and v != base[k]}


def format_command(config: Config) -> str:
    """Write the command that makes a run of this configuration; what has its default value is left out."""
    words = ["steppe", "run", config.algorithm, *(word for part in config.add for word in ("--add", part))]
    values = {f"settings.{k}": v for k, v in config.settings.items()} | {"data": config.data, "model": config.model}
    for key, value in (values | find_settings(config)).items():
        if key != "rounds":
            words += ["--set", f"{key}={format_value(value)}"]
    return shlex.join([*words, "--rounds", str(config.rounds)])


def format_value(value: Any) -> str:
    """Write a value as `--set` reads it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, list) else str(value)


def _can_load(run: Run) -> bool:
    """Return whether there are data of this name here, whatever they hold."""
    return find_data(run.config["data"], run.config["data_folder"], 0.0, 0) is not None


def _hash(data: dict[str, Any] | None) -> str:
    return f" (hash {data['hash']})" if data else ""


def _read_partition_hash(path: str) -> str | None:
    try:
        return Partition.load(Path(path)).hash
    except (SteppeError, OSError):
        return None
