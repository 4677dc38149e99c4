"""Bind each node's key to a client: recorded by the operator, never taken from the node.

operator/keys.json    {"<client>": "<fingerprint of its node's public key>"}
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from steppe.core.errors import SteppeError
from steppe.runs.folder import RunFolder

FILE = Path("operator") / "keys.json"


def take_fingerprint(public: bytes) -> str:
    """Hash a public key as ssh-keygen writes it, or as Flower passes it on (PEM)."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as ser

    load = ser.load_ssh_public_key if public.startswith((b"ssh-", b"ecdsa-")) else ser.load_pem_public_key
    try:
        key = load(public)
    except UnsupportedAlgorithm as error:  # also of a damaged file
        raise ValueError(str(error)) from None
    return hashlib.sha256(key.public_bytes(ser.Encoding.DER, ser.PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def bind(federation: Path, client: int) -> None:
    """Bind this client to the node whose public key is in nodes/<client>/key.pub."""
    path = federation / "nodes" / str(client) / "key.pub"
    try:
        mine = take_fingerprint(path.read_bytes())
    except OSError:
        raise SteppeError(
            f"{path} does not exist: put the public key there that the node's owner has created."
        ) from None
    except ValueError:
        raise SteppeError(f"{path} is not a public key: create one with ssh-keygen -t ecdsa -b 384.") from None
    known = read_keys(federation) or {}
    if other := [c for c, f in known.items() if f == mine and c != client]:
        raise SteppeError(f"{path} is already the key of client {other[0]}: every node needs its own key.")
    RunFolder(federation / FILE.parent).write(
        FILE.name, {str(c): f for c, f in sorted({**known, client: mine}.items())}
    )


def read_keys(federation: Path) -> dict[int, str] | None:
    """Return the fingerprint of each client's key; None if nodes have no keys."""
    path = federation / FILE
    if not path.exists():
        return None
    try:
        return {int(client): str(fingerprint) for client, fingerprint in json.loads(path.read_text()).items()}
    except (ValueError, AttributeError, RecursionError):
        raise SteppeError(f"{path} is damaged: write it again with steppe federate register.") from None
