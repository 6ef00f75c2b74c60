"""The protocol of a candidate's process: one JSON object per line, a reply for each message.

The modules of this folder run in a peer's own environment: they import only each other, nothing
else of this project.

====================  ==============================================================
``{"op": "load"}``    with ``model`` (a path), ``precision``, ``threads`` and what the
                      layout adds. Reply: ``{"version": …}``.
``{"op": "run"}``     with ``inputs`` (token ids), ``max_new_tokens`` (0: encode) and
                      ``beams``. Reply: ``{"arrivals": [[seconds, …], …]}``, when each
                      new token of each sequence arrived since the start of the run; or
                      ``{"seconds", "num_tokens"}`` if all tokens arrive together.
``{"op": "run"}``     with ``requests`` (lists of texts, run one after another), if the
                      candidate's work begins and ends with text. Reply: ``{"seconds",
                      "texts"}``, the results of all requests.
``{"op": "vectors"}``  with ``inputs``: ``{"vectors": [[…], …]}``.
``{"op": "score"}``   with ``inputs`` and ``starts``. Reply: ``{"logprobs": [[…], …]}`` of the
                      tokens of each input from its start on, each given all before it, and
                      ``top``, the likeliest token in each place.
====================  ==============================================================

A failure has the reply ``{"error": "…"}``, and the process continues. It ends when its input does.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

Message = dict[str, Any]


def serve(handlers: dict[str, Callable[[Message], Message]]) -> None:
    """Replies to messages until the input ends. Other output is redirected to standard error."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        message = json.loads(line)
        try:
            reply = handlers[message["op"]](message)
        except Exception as error:  # any error of a peer is its reason
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=replies, flush=True)
