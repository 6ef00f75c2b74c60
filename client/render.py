"""Prints results as one JSON object or as text."""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from client import encoder_types, types


def counted(count: int, noun: str) -> str:
    """``count`` with a noun that takes an s: ``1 vector``, ``2 vectors``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def write_json(
    model: str | None,
    outputs: Sequence[object],
    usage: types.Usage | None,
    timing: types.Timing | None,
    **more: object,
) -> None:
    """Prints one JSON object on one line: the four keys of every result, then ``more``."""
    row = {
        "model": model,
        "outputs": outputs,
        "usage": None if usage is None else asdict(usage),
        "timing": None if timing is None else asdict(timing),
        **more,
    }
    print(json.dumps(row, ensure_ascii=False))


def write_outputs_json(
    result: types.ScoreResult
    | types.TokenizeResult
    | encoder_types.ClassifyResult
    | encoder_types.TagResult
    | encoder_types.FillMaskResult
    | encoder_types.AnswerResult
    | encoder_types.RerankResult
    | encoder_types.CorrectResult,
) -> None:
    """Writes a result whose outputs are objects."""
    outputs = [asdict(output) for output in result.outputs]
    write_json(result.model, outputs, result.usage, result.timing)


def write_texts_json(results: Sequence[types.TextResult], options: types.GenerationOptions) -> None:
    """Writes several requests as one object; usage and timing are summed.

    Each optional content that ``options`` request has a key of its own.
    """
    outputs = [output for result in results for output in result.outputs]
    usage, timing = results[0].usage, results[0].timing
    for result in results[1:]:
        usage, timing = usage + result.usage, timing + result.timing
    more: dict[str, object] = {}
    if options.get("token_ids"):
        more["token_ids"] = [output.token_ids for output in outputs]
    if options.get("logprobs"):
        more["logprobs"] = [[asdict(row) for row in output.logprobs] for output in outputs]
    if (options.get("num_hypotheses") or 1) > 1:
        more["hypotheses"] = [[asdict(row) for row in output.hypotheses] for output in outputs]
    if (options.get("beam_size") or 1) > 1:
        more["scores"] = [output.score for output in outputs]
    attention = options.get("attention")
    attentions = [asdict(output.attention) if output.attention else None for output in outputs]
    if attention is not None and attention.alignments:
        more["alignments"] = [one["alignments"] if one else [] for one in attentions]
    if attention is not None and attention.kind is not None:
        more["attention"] = attentions
    write_json(results[0].model, [output.text for output in outputs], usage, timing, **more)


def write_scores(result: types.ScoreResult, texts: Sequence[str]) -> None:
    """Prints a row per text: its log-probability, the mean per token, and the text."""
    table = Table(box=None, pad_edge=False)
    for title in ("log p", "per token", "text"):
        table.add_column(title, justify="left" if title == "text" else "right")
    for output, text in zip(result.outputs, texts, strict=True):
        per_token = output.score / output.num_tokens
        table.add_row(f"{output.score:.3f}", f"{per_token:.3f}", Text(text))
    Console().print(table)


def write_pieces(
    pieces: Iterable[types.Piece], out: TextIO, *, hypotheses_per_input: int = 1
) -> None:
    """Streams outputs in the order of the inputs, each followed by a newline and its token ids.

    The pieces of a batch arrive interleaved. Those of the first unfinished output are written
    at once; the others are buffered.
    """
    current = 0
    waiting: dict[int, list[types.Piece]] = {}
    token_ids: list[int] = []

    def write(ready: Iterable[types.Piece]) -> bool:
        """Writes the pieces of one output. Returns whether it ended."""
        for piece in ready:
            out.write(piece.text)
            token_ids.extend(piece.token_ids)
            if piece.finish_reason is not None:
                out.write(f"\n{token_ids}\n" if token_ids else "\n")
                token_ids.clear()
                return True
        return False

    for arrived in pieces:
        position = arrived.index * hypotheses_per_input + arrived.hypothesis
        waiting.setdefault(position, []).append(arrived)
        while ready := waiting.pop(current, None):
            if not write(ready):
                break
            current += 1
        out.flush()
    for position in sorted(waiting):  # an input had fewer hypotheses than requested
        write(waiting[position])


def text_of(output: types.Text) -> str:
    """What :func:`write_pieces` writes of an output, without the last newline."""
    lines = []
    for hypothesis in output.hypotheses or (output,):
        lines.append(hypothesis.text)
        if hypothesis.token_ids:
            lines.append(str([*hypothesis.token_ids]))
    return "\n".join(lines)


def write_classifications(result: encoder_types.ClassifyResult, texts: Sequence[str]) -> None:
    """Prints a line per text with its labels, most likely first."""
    for output, text in zip(result.outputs, texts, strict=True):
        labels = ", ".join(f"{row.label} {row.score:.3f}" for row in output.labels)
        print(f"{text[:60]}: {labels}")


def write_tokenizations(result: types.TokenizeResult) -> None:
    """Prints a line per text with its tokens and their ids."""
    for output in result.outputs:
        pairs = zip(output.tokens, output.token_ids, strict=True)
        print(" ".join(f"{token}:{token_id}" for token, token_id in pairs))


def write_models(models: Sequence[types.Model]) -> None:
    """Prints a table of the models, whose names are whole in 80 columns, and lines of details.

    The reasons why models were refused go to standard error.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("model", no_wrap=True)
    table.add_column("version")
    table.add_column("tasks")
    table.add_column("precision")
    table.add_column("memory\nof at most", justify="right")
    for model in models:
        table.add_row(
            model.name,
            model.version,
            ", ".join(_task(model, task) for task in model.tasks),
            model.precision,
            _memory(model),
        )
    Console().print(table)
    for model in models:
        for title, text in _details(model).items():
            if text:
                print(f"{model.name}/{model.version} {title}: {text}")
        if model.state is types.ModelState.REFUSED:
            print(f"{model.name} was refused: {model.failure}", file=sys.stderr)


def _details(model: types.Model) -> dict[str, str]:
    """Returns what has no column in the table, by title; empty where a model has none."""
    size = f"{model.parameters:,} parameters" if model.parameters else ""
    return {
        "architecture": ", ".join(filter(None, (model.kind, model.architecture, size))),
        "adapter of": model.base_model,
        "fidelity to fp32": _fidelity(model),
        "quality": _quality(model),
        "native nodes": _native_nodes(model),
    }


def write_models_json(models: Sequence[types.Model]) -> None:
    """Prints one JSON object on one line: ``{"models": [...]}``."""
    print(json.dumps({"models": [asdict(model) for model in models]}, ensure_ascii=False))


def _task(model: types.Model, task: str) -> str:
    """The task's name, followed by the kind of embedding if that is not dense."""
    kind = "dense" if model.embedding is None else model.embedding.kind
    if task == "embed" and model.embedding is not None and model.embedding.kinds:
        return f"{task} ({', '.join(model.embedding.kinds)})"
    return f"{task} ({kind})" if task == "embed" and kind != "dense" else task


def _native_nodes(model: types.Model) -> str:
    """For each kernel, how many of the nodes that it supports it computes, over all graphs."""
    native: Counter[str] = Counter()
    standard: Counter[str] = Counter()
    for nodes in model.kernel_nodes:
        native.update(nodes.num_native)
        standard.update(nodes.num_standard)
    return ", ".join(
        f"{kernel} {native[kernel]} of {count}" if standard[kernel] else f"{kernel} {count}"
        for kernel, count in sorted((native + standard).items())
    )


def _quality(model: types.Model) -> str:
    """Returns the metrics of each held-out set."""
    found = []
    for measured in model.quality:
        values = ", ".join(
            f"{name} {value:.4g}" for name, value in sorted(measured.metrics.items())
        )
        found.append(f"{values} ({measured.dataset})")
    return "; ".join(found)


def _memory(model: types.Model) -> str:
    """The memory that a model uses now, and with all slots full, in MB."""
    memory = model.memory
    if memory is None:
        return ""
    fixed = memory.weight_bytes + memory.working_bytes
    return (
        f"{(fixed + memory.cache_resident_bytes) / 1e6:,.0f} of "
        f"{(fixed + memory.cache_bytes) / 1e6:,.0f} MB"
    )


def _fidelity(model: types.Model) -> str:
    """The main figures that compare a quantized model with its fp32 graph."""
    found = None if model.parity is None else model.parity.fidelity
    if found is None:
        return ""
    figures = (
        ("top-1", found.top1_agreement),
        ("KL", found.kl_divergence),
        ("rms", found.rms_logprob_difference),
        ("cosine ≥", found.min_cosine),
        ("retrieval", found.retrieval_agreement),
        ("Δp ≤", found.max_probability_difference),
        *((f"{kind} cosine ≥", one.min_cosine) for kind, one in found.other_vectors.items()),
    )
    measured = [f"{name} {value:.3f}" for name, value in figures if value is not None]
    return ", ".join(measured)
