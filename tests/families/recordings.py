"""Compares graphs of encoders that read recordings with ``transformers``."""

from pathlib import Path

from export.checkpoint import Checkpoint
from export.encoding import EncoderInputs, encode_in_graph
from export.graphs import export_graphs
from export.parity_reference import TOLERANCE, ParityReference
from export.runtime import Floats, Session
from scripts.families import Family
from tests.families.decoder_check import max_errors
from tests.families.rows import operators_of, record_family, sizes_of


def check_recordings(
    checkpoint: Checkpoint,
    inputs: EncoderInputs,
    expected: list[Floats],
    folder: Path,
    family: str | None,
    tolerance: float = TOLERANCE,
) -> None:
    """Compares a padded batch, and each window alone, with ``expected``; records the row.

    Args:
        folder: for the graphs.
        family: the row's name; None: no row.
        tolerance: of the largest error.
    """
    graphs = export_graphs(checkpoint.config, checkpoint.weights, folder)
    session = Session(folder, graphs["encode"])
    batched = [outputs[0] for outputs in encode_in_graph(session, inputs)]
    parts = [inputs.part(row, row + 1) for row in range(len(inputs))]
    alone: list[Floats] = [encode_in_graph(session, part)[0][0] for part in parts]
    error = max(*max_errors(batched, expected), *max_errors(alone, expected))
    assert error <= tolerance
    if family is None:
        return
    reference = ParityReference(expected, error, 0, 0, encoder_inputs=inputs)
    record_family(
        Family(
            family=family,
            kind=checkpoint.config.kind,
            max_absolute_error=error,
            operators=operators_of(folder, graphs),
            bytes_by_precision=sizes_of(checkpoint.config, reference, folder, graphs),
        )
    )
