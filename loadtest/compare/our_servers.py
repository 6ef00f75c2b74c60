"""Our own server, by each of its protocols."""

from dataclasses import dataclass
from pathlib import Path

from loadtest.compare.candidates import bundles_folder
from loadtest.compare.environments import require
from loadtest.compare.servers import Protocol, ServerCandidate
from loadtest.tasks import Task

OURS = "triune"
NATIVE = "triune"
"""The protocol ``triune.v1``, with which the others are compared."""

OUR_PROTOCOLS: dict[Task, dict[str, Protocol]] = {
    Task.GENERATE: {
        NATIVE: Protocol.TRIUNE,
        "oip": Protocol.OIP,
        "http": Protocol.COMPLETIONS,
    },
    Task.TRANSLATE: {NATIVE: Protocol.TRIUNE, "oip": Protocol.OIP},
    Task.EMBED: {
        NATIVE: Protocol.TRIUNE,
        "oip": Protocol.OIP,
        "http": Protocol.EMBEDDINGS,
        "tei": Protocol.TEI,
    },
}
"""The protocols of our server that are measured, by name."""

_BUNDLES = {
    Task.GENERATE: "smollm2",
    Task.TRANSLATE: "transformer-base",
    Task.EMBED: "minilm",
}
# Each beam needs a slot; translations are short.
_LAYOUTS: dict[Task, dict[str, tuple[str, ...]]] = {
    Task.GENERATE: {"": ()},
    Task.TRANSLATE: {"": ("--slots", "128", "--max-length", "256")},
    Task.EMBED: {"": ()},
}
_GRPC_ADDRESS = ("--listen", "127.0.0.1:{port}", "--http", "none")
_HTTP_ADDRESS = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:{port}")
_GRPC = (Protocol.TRIUNE, Protocol.OIP)


@dataclass(frozen=True, kw_only=True, slots=True)
class OurSide:
    """What is compared with the peers: a precision, by a protocol of ``OUR_PROTOCOLS``."""

    precision: str
    protocol: str = NATIVE

    @property
    def name(self) -> str:
        """``triune int8`` by our own protocol, or as ``triune-http int8``."""
        door = "" if self.protocol == NATIVE else f"-{self.protocol}"
        return f"{OURS}{door} {self.precision}"


def our_server(task: Task, side: OurSide) -> ServerCandidate:
    """Our own server, as ``python -m server`` starts it."""
    protocol = OUR_PROTOCOLS[task][side.protocol]
    is_grpc = protocol in _GRPC
    return ServerCandidate(
        name=side.name,
        protocol=protocol,
        command=(
            *("{python}", "-m", "server", "--bundles", "{model}/../.."),
            *(_GRPC_ADDRESS if is_grpc else _HTTP_ADDRESS),
            *("--metrics", "127.0.0.1:0", "--threads", "{threads}"),
        ),
        layouts=_LAYOUTS[task],
        health="" if is_grpc else "/readyz",
        model=f"{bundles_folder(Path()).name}/{side.precision}/{_BUNDLES[task]}/1",
    )


def our_sides(task: Task, precisions: tuple[str, ...], protocols: tuple[str, ...]) -> list[OurSide]:
    """Each precision by each protocol; no protocols means all of the task.

    Raises ``ValueError`` for a protocol that the task has not.
    """
    known = OUR_PROTOCOLS[task]
    unknown = sorted(set(protocols) - set(known))
    if unknown:
        raise ValueError(
            f"{task} is not measured by {', '.join(unknown)}; there are {', '.join(known)}"
        )
    chosen = [name for name in known if not protocols or name in protocols]
    return [
        OurSide(precision=precision, protocol=protocol)
        for precision in precisions
        for protocol in chosen
    ]


def tokenizer_path(task: Task, precision: str, models: Path) -> Path:
    """The tokenizer file of our bundle: it cuts the texts that all servers get.

    Raises ``FileNotFoundError`` if the bundle is missing.
    """
    model = our_server(task, OurSide(precision=precision)).model
    try:
        return require(models / model) / "tokenizer.json"
    except LookupError as error:
        raise FileNotFoundError(str(error)) from error
