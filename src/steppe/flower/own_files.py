"""Parts and algorithms of the user's own in a federation: their files travel with the app, and nodes load nothing else.

A node runs only the app whose hash it has. So what it may load by a name stands in [own] loads of that app's
federation.toml, which the hash covers, and not in a message of the server alone.
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
    """The configuration as the app says it, the files that go into the app by their names, and what nodes may load."""
    files: dict[str, Path] = {}
    loads = []
    for name in find_foreign(config.algorithm, config.add):
        source, _, thing = name.rpartition(":")
        if source.endswith(".py"):
            path = Path(source).expanduser()
            if not path.stem.isidentifier() or path.stem in ("client_app", "server_app", "__init__"):
                raise SteppeError(f"{path.name} cannot travel with the app under this name: call the file after a "
                                  "Python module, such as look_back.py.")  # fmt: skip
            if files.setdefault(path.name, path).resolve() != path.resolve():
                raise SteppeError(f"Two files are called {path.name}: give one of them another name.")
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
