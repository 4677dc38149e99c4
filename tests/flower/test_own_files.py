"""Parts of the user's own in a federation: the file travels with the app, and nodes load only what it lists."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from steppe.config import resolve
from steppe.core.errors import SteppeError
from steppe.flower.app_hash import hash_app
from steppe.flower.create import init
from steppe.flower.federation_file import Own, read_federation_file
from steppe.flower.own_files import check_loads, take_files
from tests.flower.memory import USUAL, MemoryGrid, launch, node_folders, replay, settings_of

DRAG = "tests.flower.own:Drag"


def test_a_part_by_its_place_equals_the_simulator(tmp_path: Path) -> None:
    run = {"algorithm": "fedsam", "add": [f"{DRAG}:strength=0.2"]}
    result, _, _ = launch(tmp_path, run, out=tmp_path / "run", terms={"own": {"loads": [DRAG]}})
    server, _ = replay(resolve({**USUAL, **run}), [r["participants"] for r in result.history])
    torch.testing.assert_close(result.server.x, server.x, rtol=0, atol=1e-12)
    assert result.experiment.config.add == [f"{DRAG}:strength=0.2"]


def test_what_the_app_does_not_list_is_not_loaded(tmp_path: Path) -> None:
    """A server that names code in its message, as one that was taken over might."""
    Path(tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'loaded')!r}, 'w')\nthing = None\n")
    for add in (f"{tmp_path / 'evil.py'}:thing", "antigravity:thing"):
        config = resolve({**USUAL, "add": [add]})
        with pytest.raises(SteppeError, match=r"\[own\] loads of this app's federation.toml does not"):
            check_loads(Own(), config)
    assert not (tmp_path / "loaded").exists()
    run = {"add": [DRAG]}
    _, config = settings_of(run, own={"loads": [DRAG]})
    grid = MemoryGrid(node_folders(tmp_path / "nodes", config), None, Own())  # their app lists nothing
    with pytest.raises(SteppeError, match="its model or algorithm differs"):
        launch(tmp_path, run, grid=grid, terms={"own": {"loads": [DRAG]}})


def test_a_file_travels_and_the_hash_covers_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parent / "own.py").read_text()
    Path("drag.py").write_text(text)
    config = resolve({**USUAL, "algorithm": "drag.py:Drag", "add": ["man:weight=0.1"]})
    init(tmp_path / "f", config)
    settings, again = read_federation_file(tmp_path / "f" / "app")
    assert (again.algorithm, again.add, settings.own.loads) == ("steppe_app.drag:Drag", ["man:weight=0.1"],
                                                                ["steppe_app.drag:Drag"])  # fmt: skip
    assert (tmp_path / "f/app/steppe_app/drag.py").read_text() == text
    before = hash_app(tmp_path / "f/app")
    (tmp_path / "f/app/steppe_app/drag.py").write_text(text + "# changed\n")
    assert hash_app(tmp_path / "f/app") != before
    toml = tmp_path / "f/app/federation.toml"
    after = hash_app(tmp_path / "f/app")
    toml.write_text(toml.read_text().replace('loads = ["', 'loads = ["os:system", "'))
    assert hash_app(tmp_path / "f/app") != after


def test_files_that_cannot_travel(tmp_path: Path) -> None:
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "drag.py").write_text("")
    with pytest.raises(SteppeError, match=r"Two files are called drag\.py"):
        take_files(resolve({"add": [f"{tmp_path}/a/drag.py:A", f"{tmp_path}/b/drag.py:B"]}))
    with pytest.raises(SteppeError, match="cannot be part of the app under this name"):
        take_files(resolve({"algorithm": f"{tmp_path}/my-idea.py:A"}))
