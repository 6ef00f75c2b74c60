"""Whether the server is alive and ready, for the probes of orchestrators."""

from dataclasses import dataclass

from server.engine.engine import Engine


@dataclass(slots=True)
class ServingState:
    """``is_serving`` means that the models are loaded and the server is not draining."""

    engine: Engine
    is_serving: bool = False

    @property
    def is_live(self) -> bool:
        """Whether no lane has died or is stuck. If not, the process is about to exit."""
        return self.engine.is_alive

    @property
    def is_ready(self) -> bool:
        """Whether the server takes new calls: it is live, has started, and is not draining."""
        return self.is_serving and self.is_live
