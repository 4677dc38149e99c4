"""A process that trains what it is told: configurations as lines of JSON in, events as lines of JSON out.

Plain processes and plain text, so that nothing depends on how the parent was started.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

from steppe.config import Config
from steppe.core.errors import SteppeError


def main() -> None:
    out = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not be taken for an event
    from steppe.reproduce.runner import train

    event: dict[str, Any]
    for line in sys.stdin:
        try:
            config = Config.model_validate(json.loads(line))
            row = train(config, lambda r: print(json.dumps({"round": r["round"]}), file=out))
            event = {"row": row}
        except SteppeError as error:
            event = {"error": str(error)}
        except Exception as error:  # the other cells go on, and this one says what happened
            event = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
        print(json.dumps(event), file=out)


if __name__ == "__main__":
    main()
