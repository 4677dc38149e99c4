"""A file is complete or as it was: pictures, pages and tables are written aside and renamed."""

import errno
from pathlib import Path

import matplotlib.figure
import pytest

from steppe.core.atomic_write import save_figure, write_atomically


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_text("half of it")
        raise OSError(28, "No space left on device")

    page = tmp_path / "page.html"
    for before in ([], ["page.html"]):
        with pytest.raises(OSError, match="No space left"):
            write_atomically(page, fail)
        assert [p.name for p in tmp_path.iterdir()] == before
        write_atomically(page, lambda aside: aside.write_text("whole"))
        assert page.read_text() == "whole"


def test_a_picture_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = matplotlib.figure.Figure(figsize=(1, 1))
    save_figure(figure, tmp_path / "a.svg")
    whole = (tmp_path / "a.svg").read_bytes()

    def fail(path: Path, **_: object) -> None:
        Path(path).write_bytes(b"<svg")
        raise KeyboardInterrupt

    monkeypatch.setattr(figure, "savefig", fail)
    with pytest.raises(KeyboardInterrupt):
        save_figure(figure, tmp_path / "a.svg")
    assert [p.name for p in tmp_path.iterdir()] == ["a.svg"]
    assert (tmp_path / "a.svg").read_bytes() == whole


def test_an_error_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    def fail(aside: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(aside))

    with pytest.raises(OSError, match="Read-only") as error:
        write_atomically(tmp_path / "report.html", fail)
    assert error.value.filename == str(tmp_path / "report.html")
