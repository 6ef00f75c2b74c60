"""Whether the server is alive, and whether it is ready: what an orchestrator asks."""

from dataclasses import dataclass

from server.engine.engine import Engine


@dataclass(slots=True)
class ServingState:
    """``is_serving``: the models are loaded and the server does not drain."""

    engine: Engine
    is_serving: bool = False

    @property
    def is_live(self) -> bool:
        """Whether no lane has died or is stuck. If not, the process is about to exit."""
        return self.engine.is_alive

    @property
    def is_ready(self) -> bool:
        """Whether new calls are welcome: not while it starts or drains, nor when not live."""
        return self.is_serving and self.is_live
