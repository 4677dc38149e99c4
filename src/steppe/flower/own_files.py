"""The user's own parts and algorithms in a federation: their files are in the app, and nodes load nothing else.

A node runs only the app whose hash it has. What it may load by name is therefore listed under [own] loads in that app's
federation.toml, which the hash covers. A message from the server alone cannot make it load anything else.
"""

from __future__ import annotations

from pathlib import Path

from steppe.config import Config
from steppe.core.errors import SteppeError
from steppe.flower.federation_file import Own
from steppe.flower.refusals import Refusal
from steppe.registry import find_foreign

PACKAGE = "steppe_app"


def take_files(config: Config) -> tuple[Config, dict[str, Path], list[str]]:
    """Return the configuration for the app, the files to copy into the app by name, and what nodes may load."""
    files: dict[str, Path] = {}
    loads = []
    for name in find_foreign(config.algorithm, config.add):
        source, _, thing = name.rpartition(":")
        if source.endswith(".py"):
            path = Path(source).expanduser()
            if not path.stem.isidentifier() or path.stem in ("client_app", "server_app", "__init__"):
                raise SteppeError(f"{path.name} cannot be part of the app under this name: give the file the name "
                                  "of a Python module, such as look_back.py.")  # fmt: skip
            if files.setdefault(path.name, path).resolve() != path.resolve():
                raise SteppeError(f"Two files are called {path.name}: rename one of them.")
            new = f"{PACKAGE}.{path.stem}:{thing}"
            add = [new + text[len(name) :] if text == name or text.startswith(f"{name}:") else text
                   for text in config.add]  # fmt: skip
            algorithm = new if config.algorithm == name else config.algorithm
            config, name = config.model_copy(update={"algorithm": algorithm, "add": add}), new
        loads.append(name)
    return config, files, list(dict.fromkeys(loads))


def check_loads(own: Own, config: Config) -> None:
    """Refuse a run that names code which this app's federation.toml does not list."""
    foreign = find_foreign("fedavg" if own.parts else config.algorithm, config.add)
    if unknown := [name for name in foreign if name not in own.loads]:
        raise Refusal("model", f"the run names {unknown[0]}, but [own] loads of this app's federation.toml does not, "
                               "so it is not loaded here.")  # fmt: skip
