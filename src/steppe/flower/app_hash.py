"""Hash an app, so that a node runs only the app whose hash it was given.

The hash covers everything in the bundle that can run: all files, but of federation.toml only the [own] table, which
names the user's Python. The rest of federation.toml (rounds, deadlines, the shape of a sample) may change from run to
run without a new hash.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
import zipfile
from io import BytesIO
from pathlib import Path

FILE, CODE, MANIFEST = "app.sha256", "federation.toml", ".info/CONTENT"
LARGEST = 32 * 2**20  # bytes per unpacked file; Flower limits the size of the bundle, not of its content


def hash_bundle(content: bytes) -> str:
    """Return the hash of an app as Flower ships it; refuse a malformed bundle."""
    digest = hashlib.sha256()
    with zipfile.ZipFile(BytesIO(content)) as bundle:
        entries = sorted(bundle.infolist(), key=lambda entry: entry.filename)
        names = [entry.filename for entry in entries]
        if len(set(names)) != len(names) or any(entry.file_size > LARGEST for entry in entries):
            raise ValueError("a file name occurs twice, or a file is too large")
        for name in names:
            if name == MANIFEST:  # lists the hash of every file; it is not installed
                continue
            data = bundle.read(name)
            if name == CODE:
                data = json.dumps(tomllib.loads(data.decode()).get("own", {}), sort_keys=True).encode()
            digest.update(name.encode() + b"\0" + hashlib.sha256(data).digest())
    return digest.hexdigest()


def hash_app(folder: Path) -> str:
    """Return the hash of an app in its folder."""
    from flwr.cli.build import build_fab_from_disk

    return hash_bundle(build_fab_from_disk(folder))
