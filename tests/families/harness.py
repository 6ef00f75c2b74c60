"""Parity of a family with ``transformers``: from a configuration class to a row of
``docs/families.md``.

A family's test is a few lines; ``tests/families/test_gpt2.py`` is one to copy::

    SMALL = {"vocab_size": VOCABULARY_SIZE, "n_embd": 64, ...}     # at least 96 positions

    @settings(max_examples=8)
    @given(st.fixed_dictionaries({...one strategy for each axis...}))
    def test_eager_matches_transformers(changes):  # many configurations: milliseconds each
        check_eager(GPT2LMHeadModel(GPT2Config(**SMALL | changes)))

    def test_graphs_match_transformers():          # one or two: each export takes 2 seconds
        check_graphs("GPT-2", GPT2LMHeadModel(GPT2Config(**SMALL)))

Both write the model with random weights (norms and biases too) as ``save_pretrained`` does, with
a small ``tokenizer.json``, import it, and compare with ``transformers`` run row by row, without
padding or cache. Decoders and encoder-decoders are compared on logits, encoders on hidden
states (``check_eager``) and on the graph's output (``check_graphs``): the mean of the hidden
states, unless ``expected`` computes another one.

:func:`check_graphs` runs the exported fp32 graphs in ONNX Runtime: 64 greedy tokens in a padded
batch, which then decodes ragged rows over the cache; every row alone; prompts in three chunks.
Then the graphs are rewritten in the other CPU precisions, checked against a minimum cosine, and
their sizes recorded. Each passing check writes its row to ``build/families``;
``python -m scripts.families`` renders the table.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from export.checkpoint import Checkpoint
from export.decoding import (
    lengths_of,
    padded,
)
from export.encoding import EncoderInputs, encode_in_graph
from export.graphs import export_graphs
from export.parity_reference import TOLERANCE, ParityReference
from export.runtime import Floats, Session
from export.smooth_quant import smooth_activations
from export.sources import load_checkpoint
from model.bundle import GraphSpec
from model.config import Kind
from model.kernels import Step
from model.transformer import Transformer, from_weights
from scripts.families import Family
from tests.export.importers.support import WORDS, randomise, save
from tests.families.beams import check_beams
from tests.families.decoder_check import ROW_TOLERANCE, CheckedFamily, check_decoder, max_errors
from tests.families.rows import operators_of, record_family, sizes_of

VOCABULARY_SIZE = len(WORDS)  # of the small tokenizer; a model may have more
END_TOKEN = 3  # ends beam hypotheses; random models generate it often enough
LENGTHS = (13, 1, 7)  # of prompts, sources and texts

Expected = Callable[[Any, Tensor], Tensor]


@contextmanager
def imported(
    model: Any,
    seed: int = 0,
    *,
    prepare: Callable[[Path], None] | None = None,
    tower: str | None = None,
    **options: Any,
) -> Iterator[Checkpoint]:
    """Randomises and saves ``model`` of transformers; yields the imported checkpoint.

    Args:
        prepare: changes the folder.
        tower: of a model of images and texts.
        options: for ``save_pretrained``.
    """
    with saved(model, seed, **options) as folder:
        if prepare is not None:
            prepare(folder)
        yield load_checkpoint(str(folder), tower)


@contextmanager
def saved(model: Any, seed: int = 0, **options: Any) -> Iterator[Path]:
    """As :func:`imported`; yields the folder."""
    randomise(model, seed)
    with torch.no_grad():  # larger ones amplify rounding until fp32 itself misses the tolerance
        for parameter in model.parameters():
            if parameter.ndim > 1 and parameter.requires_grad:
                parameter.mul_(0.5)
    model.set_attn_implementation("eager")
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        yield save(model, Path(folder), **options)


def rows_of(checkpoint: Checkpoint, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    size, pad = checkpoint.config.vocabulary_size, checkpoint.special_tokens.pad
    rows = [rng.integers(0, size, length) for length in LENGTHS]
    # Replace padding ids, which have no position in some families.
    return [np.where(row == pad, (row + 1) % size, row).tolist() for row in rows]


def check_eager(
    model: Any, seed: int = 0, *, expected: Expected | None = None, **importing: Any
) -> float:
    """Compares the eager module on a padded batch with ``model``, before and after smoothing.

    Args:
        expected: for encoders: hidden states ``[1, length, size]`` of ids ``[1, length]``.
        importing: for :func:`imported`.

    Returns:
        the largest absolute error
    """
    with imported(model, seed, **importing) as checkpoint:
        rows = rows_of(checkpoint, seed)
        smoothed = smooth_activations(checkpoint.config, checkpoint.weights, rows)
        reference_outputs = [reference_outputs_of(model, checkpoint, row, expected) for row in rows]
        errors = []
        for weights in (checkpoint.weights, smoothed):
            module = from_weights(checkpoint.config, weights).double()
            outputs = eager_outputs(module, checkpoint, rows)
            pairs = zip(outputs, reference_outputs, strict=True)
            errors += [float((actual - reference).abs().max()) for actual, reference in pairs]
        assert max(errors) <= TOLERANCE, f"{max(errors):.2e} from transformers"
        return max(errors)


def reference_outputs_of(
    model: Any, checkpoint: Checkpoint, row: list[int], expected: Expected | None
) -> Tensor:
    ids = torch.tensor([row])
    kind = checkpoint.config.kind
    outputs: Tensor
    if expected is not None:
        outputs = expected(model, ids)
    elif kind == Kind.ENCODER:
        outputs = model.base_model(ids).last_hidden_state
    elif kind == Kind.DECODER:
        outputs = model(ids).logits
    else:
        outputs = model(input_ids=ids, decoder_input_ids=ids).logits
    return outputs[0]


def eager_outputs(
    module: Transformer, checkpoint: Checkpoint, rows: list[list[int]]
) -> list[Tensor]:
    """Outputs of one padded batch. An encoder-decoder's targets are its sources."""
    ids, lengths = torch.from_numpy(padded(rows)), torch.from_numpy(lengths_of(rows))
    if checkpoint.config.kind == Kind.ENCODER:
        segments = torch.zeros_like(ids) if checkpoint.config.num_segments else None
        outputs = module.encode(ids, lengths, segments)
    elif checkpoint.config.kind == Kind.DECODER:
        outputs = module.logits(module.decode(ids, Step.whole(lengths)).hidden)
    else:
        states = module.encode_source(ids, lengths)
        outputs = module.logits(module.decode(ids, Step.whole(lengths, lengths), states).hidden)
    return [output[: len(row)] for output, row in zip(outputs, rows, strict=True)]


def check_graphs(
    family: str,
    model: Any,
    seed: int = 0,
    *,
    expected: Expected | None = None,
    **importing: Any,
) -> Family:
    """Compares the exported fp32 graphs with ``model`` and records the row of ``family``.

    Args:
        expected: for encoders: the graph's output for ids ``[1, length]``, as a batch of 1.
        importing: for :func:`imported`.
    """
    with (
        imported(model, seed, **importing) as checkpoint,
        tempfile.TemporaryDirectory() as folder,
    ):
        directory = Path(folder)
        graphs = export_graphs(checkpoint.config, checkpoint.weights, directory)
        if checkpoint.config.kind == Kind.ENCODER:
            checked = _check_encoder(model, checkpoint, directory, graphs, expected)
        else:
            checked = check_decoder(model, checkpoint, rows_of(checkpoint), directory, graphs)
            check_beams(
                model,
                checkpoint,
                directory,
                graphs,
                eos=END_TOKEN,
                prompts=rows_of(checkpoint, seed=1),
            )
        row = msgspec.structs.replace(
            checked.row,
            family=family,
            operators=operators_of(directory, graphs),
            bytes_by_precision=sizes_of(checkpoint.config, checked.reference, directory, graphs),
        )
        return record_family(row)


def _check_encoder(
    model: Any,
    checkpoint: Checkpoint,
    directory: Path,
    graphs: dict[str, GraphSpec],
    expected: Expected | None,
) -> CheckedFamily:
    rows = rows_of(checkpoint)
    session = Session(directory, graphs["encode"])

    def inputs_of(rows: list[list[int]]) -> EncoderInputs:
        has_segments = bool(checkpoint.config.num_segments)
        return EncoderInputs(rows, [[0] * len(row) for row in rows] if has_segments else None)

    def run(rows: list[list[int]]) -> list[Floats]:
        return [outputs[0] for outputs in encode_in_graph(session, inputs_of(rows))]

    reference_outputs = [
        reference_outputs_of(model, checkpoint, row, expected or _mean_hidden).numpy()
        for row in rows
    ]
    batched, alone = run(rows), [run([row])[0] for row in rows]
    error = max(max_errors(batched, reference_outputs))
    assert error <= TOLERANCE, f"{error:.2e} from transformers"
    assert max(max_errors(batched, alone)) <= ROW_TOLERANCE, "a row depends on its batch"
    row = Family(family="", kind=checkpoint.config.kind, max_absolute_error=error)
    return CheckedFamily(
        row, ParityReference(reference_outputs, error, 0, 0, encoder_inputs=inputs_of(rows))
    )


def _mean_hidden(model: Any, ids: Tensor) -> Tensor:
    mean: Tensor = model.base_model(ids).last_hidden_state.mean(1)
    return mean
