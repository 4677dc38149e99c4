"""Report why a node does not take part without revealing its data: it sends a code, and details stay in its log.

An error's text may quote a path, a patient or a sample. So a node sends one of the codes below, and the server looks up
the sentence for it.
"""

from __future__ import annotations

import json
from pathlib import Path

from steppe.core.errors import SteppeError
from steppe.runs.folder import RunFolder

REASONS = {
    "config": "its config lacks what a node needs: client, data or state",
    "client": "the client number in its config is not in this federation",
    "data": "its data cannot be read",
    "empty": "it has no samples",
    "samples": "its samples do not match federation.toml",
    "classes": "its classes or labels do not match federation.toml",
    "finite": "its data have numbers that are not finite",
    "state": 'it has lost its client\'s state: restore it there, or set lost_state = "fresh"',
    "model": "its model or algorithm differs: install the same versions of steppe, torch and your own code",
    "build": "its data do not fit the model, or it lacks what the run's settings need",
    "disk": "its disk is full",
    "terms": "it cannot read what the server sent: install the same version of steppe",
    "other": "an unexpected error occurred there",
}


class Refusal(SteppeError):
    """An error at a node: the text is for the node's own log, the code for the server."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def explain_refusal(code: object) -> str:
    """Return the sentence for a code; an unknown code gets the last one."""
    known = code if isinstance(code, str) and code in REASONS else "other"
    return f"{REASONS[known]} (details are in its log)"


class Strikes:
    """Count each client's refused replies, and record in the run's folder until which round it is left out.

    A round that fails writes no checkpoint, so this is a separate file. Otherwise a resumed run would immediately use
    the client again that ended it.
    """

    def __init__(self, path: Path | None, allowed: int, rounds: int) -> None:
        self.path, self.allowed, self.rounds = path, allowed, rounds
        self.times: dict[int, int] = {}
        self.until: dict[int, int] = {}
        if path is not None and path.exists():
            try:
                told = json.loads(path.read_text())
                self.times, self.until = ({int(k): int(v) for k, v in told[key].items()} for key in ("times", "until"))
            except (ValueError, ArithmeticError, TypeError, LookupError, AttributeError, RecursionError):
                raise SteppeError(f"{path} is damaged: delete it; refused clients will be asked again.") from None

    def add(self, client: int, round_: int) -> bool:
        """Count a refusal; return whether the client is left out from now on."""
        self.times[client] = self.times.get(client, 0) + 1
        out = self.times[client] >= self.allowed
        if out:
            self.times[client], self.until[client] = 0, round_ + 1 + self.rounds
        if self.path is not None:
            RunFolder(self.path.parent).write(self.path.name, {"times": self.times, "until": self.until})
        return out

    def is_out(self, client: int, round_: int) -> bool:
        return round_ < self.until.get(client, 0)
