"""Check that the requested run is the one that a folder holds, and name what differs."""

from __future__ import annotations

import json
import logging
from dataclasses import fields, is_dataclass
from pydoc import locate
from typing import Any

from steppe.config import OWN, Config, list_keys
from steppe.core.errors import SteppeError
from steppe.core.schedules import OF_ALL_ROUNDS, look_up
from steppe.registry import find_sources
from steppe.runs.folder import RunFolder, explain_damage
from steppe.runs.provenance import FORMAT
from steppe.settings import parse_schedule

log = logging.getLogger("steppe")
RECORDED = {"parts": "parts", "parameters": "number of parameters", "partition": "partition"}


def find_differences(folder: RunFolder, config: Config) -> list[str]:
    """List the differences between this configuration and the folder's, apart from the number of rounds."""
    before, now = folder.stored, config.model_dump(mode="json")
    free = {"rounds", *list_keys("tracking"), *_find_own_by_version_0_1_0(folder, now)}
    free |= {"vary"} if "all" not in (before["vary"], now["vary"]) else set()  # unless set, it is model
    free |= {"loss", "metrics"} - set(folder.read("config.json"))  # they were no keys once; about.json has the loss
    if isinstance(was := before["lr_schedule"], list) and isinstance(is_ := now["lr_schedule"], list):
        # A function of the round has a factor for every requested round: with more rounds, more factors.
        same = all(look_up(was, t) == look_up(is_, t) for t in range(before["rounds"]))
        free |= {"lr_schedule"} if same else set()
    changed = [k for k in now if _leave_out_modules(before.get(k)) != _leave_out_modules(now[k]) and k not in free]
    return [*(f"{k} was {before.get(k)!r} and is {now[k]!r}" for k in changed), *find_changed_sources(folder, config)]


def find_changed_sources(folder: RunFolder, config: Config) -> list[str]:
    """List the user's own files that this configuration names and that are not what they were."""
    return _compare_sources(folder, find_sources(config.algorithm, config.add))


def _compare_sources(folder: RunFolder, now: dict[str, dict[str, str]]) -> list[str]:
    was: dict[str, dict[str, str]] = folder.read("about.json", {}).get("sources", {})
    places = {_name_class(k): k for k in was}  # of a class in another module than before, too
    pairs = [(k, was[known]) for k in now if (known := k if k in was else places.get(_name_class(k)))]
    return [f"the code of {k} in {now[k]['file']} is not what it was (hash {before['sha256'][:12]}, now "
            f"{now[k]['sha256'][:12]})" for k, before in pairs if before["sha256"] != now[k]["sha256"]]  # fmt: skip


def _find_own_by_version_0_1_0(folder: RunFolder, now: dict[str, Any]) -> list[str]:
    """Return the keys of the user's own objects if version 0.1.0 wrote the folder: it recorded default names."""
    if "format" in folder.read("about.json", {"format": FORMAT}):
        return []
    return [key for key in ("algorithm", "model", "data") if str(now[key]).startswith(OWN)]


def check_resumable(folder: RunFolder, config: Config, about: dict[str, Any]) -> None:
    """Refuse to resume with other settings, parts, data or another model. More rounds are allowed."""
    with explain_damage(folder):
        changed = find_differences(folder, config)
        if not changed and (folder.path / "about.json").exists():
            changed = find_other_things(folder, about)
    if changed:
        raise SteppeError(f"{folder} was started with other settings: {', '.join(changed)}. "
                          "Only rounds may change; otherwise, start again in another folder.")  # fmt: skip
    for was, now in _find_moved(folder.stored, config.model_dump(mode="json")):
        log.info(f"{was} is {now} now; {folder} continues, because all that the run recorded about it is the same")
    done = max((r["round"] for r in folder.history), default=0)
    if config.rounds < done:
        raise SteppeError(f"{folder} has already finished {done} rounds, so it cannot end after {config.rounds}: "
                          "raise rounds, or start again in another folder.")  # fmt: skip
    before = folder.stored["rounds"]
    rule = config.lr_schedule
    if config.rounds != before and isinstance(rule, str) and (f := parse_schedule(rule).function) in OF_ALL_ROUNDS:
        raise SteppeError(f"{folder} was started for {before} rounds, and the {f.__name__} schedule depends on that "
                          "number: start again in another folder.")  # fmt: skip


def find_other_things(folder: RunFolder, about: dict[str, Any]) -> list[str]:
    """List differences that the configuration does not show: the user's own parts, model, data and loss."""
    was, now = folder.about, json.loads(json.dumps(about, default=str))
    now["parts"] = describe_as_before(now["parts"], was)
    pairs = {k: (leave_out_places(was.get(k)), leave_out_places(now[k])) for k in RECORDED}
    changed = [_say_change(k, *pair) for k, pair in pairs.items() if pair[0] != pair[1]]
    changed += _compare_sources(folder, now.get("sources", {}))
    if "metrics" in was and was["metrics"] != now["metrics"]:
        changed.append(f"metrics were {_name_metrics(was['metrics'])} and are {_name_metrics(now['metrics'])}")
    if "format" in was:
        for key, part, name in (("data", "hash", "content of the data"), ("model", "structure", "model"),
                                ("loss", "type", "loss")):  # fmt: skip
            if was[key][part] != now[key][part] and not _is_same_by_name(key, was[key], now[key]):
                same_name = was[key].get("type") == now[key].get("type") and key != "loss"
                what = (
                    f"{name} differs from the run's"
                    if same_name
                    else f"{name} was {_name_thing(was[key])} and is {_name_thing(now[key])}"
                )
                changed.append(f"the {what} ({part} {was[key][part]}, now {now[key][part]})")
        if "base" in was["model"] and was["model"]["base"] != now["model"].get("base"):
            changed.append("the frozen parameters are not the run's")
        head = was["model"].get("head", now["model"]["head"])  # earlier versions did not record it
        if head != now["model"]["head"]:
            changed.append(f"head was {head!r} and is {now['model']['head']!r}")
        predicts = {_name_class(str(one["model"].get("predict"))) for one in (was, now)}
        if len(predicts) > 1:
            changed.append(f"predict was {was['model'].get('predict')} and is {now['model'].get('predict')}")
    return changed


def _say_change(key: str, was: Any, now: Any) -> str:
    """Name the settings that differ if the parts are the same ones, and otherwise both."""
    if key == "parts" and [p.get("part") for p in was] == [p["part"] for p in now]:
        differing = [f"{k} of {q['part']} was {p.get(k)!r} and is {q.get(k)!r}" for p, q in zip(was, now, strict=True)
                     for k in {**p, **q} if p.get(k) != q.get(k)]  # fmt: skip
        return ", ".join(differing)
    return f"{RECORDED[key]} was {was!r} and is {now!r}"


def describe_as_before(parts: list[dict[str, Any]], about: dict[str, Any]) -> list[dict[str, Any]]:
    """Describe parts as the version did that wrote this about.json, as far as they may be the same."""
    if len(parts) != len(about["parts"]):
        return parts
    pairs = [(_leave_out_new_fields(*pair), pair[1]) for pair in zip(parts, about["parts"], strict=True)]
    if about.get("format", 0) >= FORMAT:
        return [part for part, _ in pairs]
    return [{k: was[k] if k in was and _may_be(was[k], v) else v for k, v in part.items()} for part, was in pairs]


def _may_be(was: Any, now: Any) -> bool:
    """Return whether an earlier description, in which text did not tell all values apart, may be of the same value."""
    if isinstance(was, dict) and isinstance(now, dict):
        return all(_may_be(v, now.get(k)) for k, v in was.items())
    if isinstance(was, list) and isinstance(now, list):
        return len(was) == len(now) and all(map(_may_be, was, now))
    told = isinstance(was, str) and ", hash " not in was
    return was == now or (told and (isinstance(now, dict | list) or ", hash " in str(now)))


def _leave_out_new_fields(part: dict[str, Any], recorded: dict[str, Any]) -> dict[str, Any]:
    """Describe a part without what an earlier version did not record: new fields that have their defaults."""
    kind = locate(part["type"]) if part["type"].startswith("steppe.") else None
    defaults = {f.name: f.default for f in fields(kind)} if isinstance(kind, type) and is_dataclass(kind) else {}
    new = {k for k, v in part.items() if k not in recorded and (k == "type" or (k in defaults and v == defaults[k]))}
    return {k: v for k, v in part.items() if k not in new}


def leave_out_places(recorded: Any) -> Any:
    """Leave out what may differ: a part's module if it is the user's, and the rule of a partition, which has a hash."""
    if isinstance(recorded, list):
        return [{k: _name_class(v) if k == "type" and not v.startswith("steppe.") else v for k, v in part.items()}
                for part in recorded]  # fmt: skip
    return {k: v for k, v in recorded.items() if k != "rule"} if isinstance(recorded, dict) else recorded


def _is_same_by_name(key: str, was: dict[str, Any], now: dict[str, Any]) -> bool:
    """Return whether both are the loss of one name, which has moved from one module to another."""
    ends = {_name_class(str(one.get("type"))) for one in (was, now)}
    return key == "loss" and len(ends) == 1 and was.get("own") == now.get("own")


def _name_class(text: str) -> str:
    """Return the last word of a qualified name."""
    return text.rpartition(".")[2]


def _leave_out_modules(value: Any) -> Any:
    """Return what the configuration says of the user's own objects, by the names of their classes alone."""
    if isinstance(value, list):
        return [_leave_out_modules(one) for one in value]
    if not isinstance(value, str) or not value.startswith(OWN):
        return value
    return OWN + "+".join(map(_name_class, value.removeprefix(OWN).split("+")))


def _find_moved(before: dict[str, Any], now: dict[str, Any]) -> list[tuple[str, str]]:
    """List the user's own objects whose module is another one than it was, as pairs of names."""
    keys = [
        k for k in now if before.get(k) != now[k] and _leave_out_modules(before.get(k)) == _leave_out_modules(now[k])
    ]
    listed = [(v if isinstance(v, list) else [v] for v in (before[k], now[k])) for k in keys]
    pairs = [pair for was, is_ in listed for pair in zip(was, is_, strict=True) if pair[0] != pair[1]]
    return [(was.removeprefix(OWN), is_.removeprefix(OWN)) for was, is_ in pairs]


def _name_metrics(records: list[dict[str, Any]]) -> str:
    return ", ".join(f"{m['name']} ({m['direction']} is better)" for m in records)


def _name_thing(described: dict[str, Any]) -> str:
    return str(described.get("type") or described.get("name"))
