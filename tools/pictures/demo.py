"""Photograph the page of `make demo` with Chromium, for the README: python -m tools.pictures.demo [FILE.html]"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image, ImageOps
from tools.pictures.drawing import PICTURES

WIDTH, HEIGHT = 880, 1250
LANDSCAPES = "<style>main > :not(#landscapes) { display: none }</style>"
OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
           "--disable-component-update", "--disable-sync", "--hide-scrollbars"]  # fmt: skip


def photograph(address: str, path: Path, chromium: str = "chromium") -> Image.Image:
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run([chromium, *OPTIONS, f"--user-data-dir={profile}", f"--window-size={WIDTH},{HEIGHT}",
                        f"--screenshot={path}", address], check=True, capture_output=True)  # fmt: skip
    return Image.open(path).convert("RGB")


def main(page: Path) -> None:
    """Put the top of the page and its landscapes side by side."""
    text = page.read_text("utf-8")
    with tempfile.TemporaryDirectory() as folder:
        shown = Path(folder) / "page.html"
        parts = []
        for style in ("", LANDSCAPES):
            shown.write_text(text.replace("</head>", f"{style}</head>"), "utf-8")
            parts.append(photograph(shown.as_uri(), Path(folder) / "page.png"))
    whole = Image.new("RGB", (2 * WIDTH, HEIGHT), "white")
    for i, part in enumerate(parts):
        whole.paste(part, (i * WIDTH, 0))
    ImageOps.expand(whole, 2, "#c9d2d6").quantize(256).save(PICTURES / "report.png", optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo/report.html"))
