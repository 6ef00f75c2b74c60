"""A peer as a process: a JSON object a line in, one a line out, in the order of the questions.

This file and the peers beside it run in a peer's own environment: they import nothing of ours
but each other.

====================  ==============================================================
``{"op": "load"}``    with ``model`` (a path), ``precision``, ``threads`` and what the
                      layout adds. Answered by ``{"version": …}``.
``{"op": "run"}``     with ``inputs`` (token ids), ``max_new_tokens`` (0: encode) and
                      ``beams``. Answered by ``{"arrivals": [[seconds, …], …]}``, the
                      moments of each row's new tokens from the start of the run, or,
                      where tokens come all at once, ``{"seconds", "num_tokens"}``.
``{"op": "vectors"}``  with ``inputs``: ``{"vectors": [[…], …]}``.
====================  ==============================================================

What fails is answered by ``{"error": "…"}``, and the process goes on. It ends with its input.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

Message = dict[str, Any]


def serve(handlers: dict[str, Callable[[Message], Message]]) -> None:
    """Answers until the input ends. Whatever else prints goes to standard error."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        message = json.loads(line)
        try:
            reply = handlers[message["op"]](message)
        except Exception as error:  # whatever a peer raises is its reason
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=replies, flush=True)
