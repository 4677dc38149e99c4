"""The README for package indexes: the same text, with absolute links."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

HERE = Path(__file__).parent


def make_absolute(text: str, home: str) -> str:
    """Point links and pictures of the repository to its public home."""
    text = re.sub(r"(!\[[^\]]*\]\()(?!https?:|#)", rf"\g<1>{home}/raw/main/", text)
    return re.sub(r"((?<!!)\[[^\]]*\]\()(?!https?:|#)", rf"\g<1>{home}/blob/main/", text)


class Readme(MetadataHookInterface):
    """The long description, made when a package is built."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = make_absolute((HERE / "README.md").read_text("utf-8"), metadata["urls"]["Source"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
