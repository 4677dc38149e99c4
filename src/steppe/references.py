"""Load the user's own objects: `lookback.py:LookBack` from a file, `package.module:LookBack` from a package.

Loading one runs its file, as `python lookback.py` does: name only files that you trust. Installed packages may register
short names, as entry points of the groups `steppe.parts` and `steppe.algorithms`.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from steppe.core.errors import SettingError, quote, suggest_name

ALGORITHMS, PARTS = "steppe.algorithms", "steppe.parts"  # groups of entry points
OWN = "own:"  # precedes the name of an algorithm, model or data set that is the user's own object
_LOADED: dict[tuple[Path, str], ModuleType] = {}  # by file and hash: a file that has changed is loaded again


def is_reference(name: str) -> bool:
    """Return whether a name says where an object is. Built-in names have no colon, and `own:` is not a place.

    >>> is_reference("lookback.py:LookBack"), is_reference("fedsam"), is_reference("own:package.LookBack")
    (True, False, False)
    """
    return ":" in name and not name.startswith(OWN)


def locate(name: str, group: str) -> str | None:
    """Return the reference of a name: itself, or what an installed package registered under it."""
    if is_reference(name) or name not in list_installed(group):
        return name if is_reference(name) else None
    same = {point.value: point for point in metadata.entry_points(group=group, name=name)}
    if len(same) > 1:
        places = " or ".join(f"{value} (of {point.dist.name if point.dist else '?'})" for value, point in same.items())
        raise SettingError(f"several packages register {quote(name)}: write the one that you mean, {places}")
    return list_installed(group)[name].value


@cache
def list_installed(group: str) -> dict[str, metadata.EntryPoint]:
    """Return what installed packages registered in a group of entry points."""
    return {point.name: point for point in metadata.entry_points(group=group)}


def load(reference: str) -> Any:
    """Run the file, or import the module, and return what has this name in it."""
    source, _, name = reference.rpartition(":")
    module = _run_file(source) if source.endswith(".py") else _import(source)
    thing: Any = module
    for word in name.split("."):
        try:
            thing = getattr(thing, word)
        except AttributeError:
            mine = [k for k, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__]
            known = suggest_name(name, mine) if mine else ", nor anything else of its own"
            raise SettingError(f"{source} has no {quote(name)}{known}") from None
    return thing


def describe_source(name: str, group: str) -> dict[str, str]:
    """Return where a name is loaded from, with the hash of that file; {} for built-in or missing names."""
    reference = locate(name, group)
    path = reference and find_file(reference)
    if not reference or not path:
        return {}
    point = None if is_reference(name) else list_installed(group)[name]
    package = {"package": f"{point.dist.name} {point.dist.version}"} if point and point.dist else {}
    return {"reference": reference, **package, "file": str(path), "sha256": hash_file(path)}


def find_file(reference: str) -> Path | None:
    """Find the file that `load` would run, without running it."""
    source = reference.rpartition(":")[0]
    if source.endswith(".py"):
        path = Path(source).expanduser()
    else:
        look_in(Path.cwd())
        try:
            spec = importlib.util.find_spec(source)  # runs a package around the module, not the module itself
        except (ImportError, ValueError):
            return None
        path = Path(spec.origin) if spec and spec.origin else Path()
    return path.resolve() if path.is_file() else None


def hash_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _run_file(source: str) -> ModuleType:
    path = Path(source).expanduser()
    try:
        content, path = path.read_bytes(), path.resolve()
    except FileNotFoundError:
        raise SettingError(f"there is no file {quote(source)} in {Path.cwd()}") from None
    except (OSError, ValueError) as error:
        raise SettingError(f"{source} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    wanted = (path, hashlib.sha256(content).hexdigest())
    if wanted not in _LOADED:
        look_in(path.parent)
        module = ModuleType(source)  # no name that `import` could find, so that it hides nothing
        module.__file__ = str(path)
        before = sys.modules.get(source)
        sys.modules[source] = module  # where dataclasses look for the meaning of annotations
        try:
            exec(compile(content, str(path), "exec", dont_inherit=True), module.__dict__)
        except (Exception, SystemExit) as error:
            sys.modules.pop(source)
            if before is not None:
                sys.modules[source] = before
            raise explain_failure(f"{source} cannot be loaded", error) from error
        _send_by_value(module)
        _LOADED[wanted] = module
    return _LOADED[wanted]


def _send_by_value(module: ModuleType) -> None:
    """Let our worker processes receive what the file defines, because they cannot import it by name."""
    import cloudpickle

    cloudpickle.register_pickle_by_value(module)


def _import(source: str) -> ModuleType:
    look_in(Path.cwd())
    try:
        return importlib.import_module(source)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{source}.".startswith(f"{error.name}."):
            hint = "a file is named with its ending, such as lookback.py:LookBack"
            if source.startswith("steppe_app."):
                hint = "it is part of a federation's app: set PYTHONPATH to the folder app of that federation"
            raise SettingError(f"there is no module {quote(source)} here; {hint}") from None
        raise explain_failure(f"{source} cannot be loaded", error) from error


def explain_failure(what: str, error: BaseException) -> SettingError:
    """Name the line of the user's file, or of what it calls, where it went wrong."""
    why = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):
        return SettingError(f"{what}: line {error.lineno} of {error.filename}: {why}")
    ours = ("<frozen importlib", str(Path(__file__).parent), str(Path(importlib.__file__).parent))
    lines = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(ours)]
    where = f"line {lines[-1].lineno} of {lines[-1].filename}: " if lines else ""
    return SettingError(f"{what}: {where}{why}")


def look_in(folder: Path) -> None:
    """Let imports find modules in a folder, after everything that is installed, also in worker processes."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
