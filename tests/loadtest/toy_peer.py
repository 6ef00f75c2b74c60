"""A peer whose behaviour is the name of its model: a real process for tests."""

import sys
import time
from pathlib import Path

from loadtest.peers.json_lines import Message, serve

_SPEED = {"slow": 1.0, "fast": 0.25}


class Toy:
    def __init__(self) -> None:
        self.name = ""
        self.layout = 1.0

    def load(self, message: Message) -> Message:
        self.name = Path(message["model"]).name
        self.layout = message.get("layout", 1.0)
        if self.name == "refuses":
            raise RuntimeError("this model is not for me")
        print("chatter of a library")
        return {"version": "1.2"}

    def run(self, message: Message) -> Message:
        rows, new = message["inputs"], message["max_new_tokens"]
        if self.name == "dies":
            print("out of luck", file=sys.stderr, flush=True)
            sys.exit(3)
        if self.name == "hangs":
            while True:
                time.sleep(60)
        count = new - 1 if self.name == "short" else new
        step = _SPEED.get(self.name, 0.5) * self.layout
        return {"arrivals": [[step * (index + 1) for index in range(count)] for _ in rows]}


if __name__ == "__main__":
    toy = Toy()
    serve({"load": toy.load, "run": toy.run})
