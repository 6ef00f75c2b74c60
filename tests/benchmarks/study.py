"""Systems of the literature on the same tasks, measured through the server.

    python -m tests.benchmarks.study [--json docs/study.json] [--rounds 5]
    python -m scripts.study

Exports each of ``train/recipes/study-*.toml`` that is trained in ``build/training`` as fp32, serves
all, and measures: quality by the length of the source on texts that no training saw; then latency
and processor time per token, in interleaved rounds. Systems that are not trained keep their rows.
"""

import json
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from tokenizers import Tokenizer

from client.sync import Client
from client.types import SentenceSplit
from export.quality.metrics import edit_distance, translation_metrics
from loadtest.machine import machine
from model.bundle import Task
from model.examples import TranslationExample, parse_examples
from model.native_checkpoint import CONFIG_FILE, HELD_OUT_FILE, TOKENIZER_FILE, TRAINING_FILE
from scripts.study import SYSTEMS
from tests.benchmarks import reports
from tests.benchmarks.study_quality import phonemes
from tests.benchmarks.translation import (
    ROOT,
    export_bundle,
    group_by_length,
    translate_all,
    translations,
)
from tests.serving import ServerProcess, server_process

RECIPES = ROOT / "train" / "recipes"
TRAINED, SERVED = ROOT / "build" / "training", ROOT / "build" / "study"
# Texts of a timed batch, tokens of each of its outputs, and batches of a round.
NUM_TEXTS, NUM_TOKENS, NUM_BATCHES = 16, 16, 20


@dataclass(frozen=True, kw_only=True)
class StudyTask:
    """``bounds``: of the groups of source lengths, both included; the first begins at 1.

    ``unit``: letters or words, which lengths count.
    """

    name: str
    unit: str
    bounds: tuple[int, ...]
    texts_of_group: int


TASKS = (
    StudyTask(name="sound", unit="letters", bounds=(4, 6, 8, 10, 12, 14, 40), texts_of_group=200),
    StudyTask(name="en-it", unit="words", bounds=(5, 10, 15, 20, 30, 40, 80), texts_of_group=100),
)


def name_of(task: str, system: str) -> str:
    """The name of a recipe and its model."""
    return f"study-{task}-{system}"


def systems(task: StudyTask) -> list[str]:
    """The systems that have a recipe for ``task``."""
    return [one for one in SYSTEMS if (RECIPES / f"{name_of(task.name, one)}.toml").is_file()]


def length_of(task: StudyTask, text: str) -> int:
    """Letters or words of a source."""
    return len(text) if task.unit == "letters" else len(text.split())


def groups(
    task: StudyTask, examples: Sequence[TranslationExample]
) -> dict[tuple[int, int], list[TranslationExample]]:
    """By first and last length: the first ``texts_of_group`` examples."""
    lengths = [length_of(task, example.source) for example in examples]
    return {
        span: [examples[index] for index in indices[: task.texts_of_group]]
        for span, indices in group_by_length(lengths, task.bounds).items()
    }


def quality(
    task: StudyTask, outputs: Sequence[str], examples: Sequence[TranslationExample]
) -> dict[str, float]:
    """Shares, except BLEU and chrF, which are percent."""
    targets = [example.target for example in examples]
    if task.unit == "words":
        return translation_metrics(outputs, targets)
    pairs = [
        (phonemes(output), phonemes(target))
        for output, target in zip(outputs, targets, strict=True)
    ]
    errors = sum(edit_distance(output, target) for output, target in pairs)
    return {
        "phoneme_error_rate": errors / sum(len(target) for _, target in pairs),
        "word_accuracy": sum(output == target for output, target in pairs) / len(pairs),
    }


def cpu_seconds(server: ServerProcess) -> float:
    """Processor time that the server used so far."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def fitting(folder: Path) -> list[TranslationExample]:
    """Held-out examples whose source the model reads whole."""
    config = json.loads((folder / CONFIG_FILE).read_text("utf-8"))
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    data = (folder / HELD_OUT_FILE).read_bytes()
    examples = translations(parse_examples(data, Task.TRANSLATE, HELD_OUT_FILE))
    lengths = [len(one) for one in tokenizer.encode_batch([example.source for example in examples])]
    limit = config["max_input_tokens"]
    return [example for example, length in zip(examples, lengths, strict=True) if length <= limit]


def translate(client: Client, name: str, texts: list[str], **options: Any) -> Any:
    return client.translate(name, texts, sentence_split=SentenceSplit.OFF, **options)


def measure_quality(client: Client, task: StudyTask, name: str) -> dict[str, Any]:
    """Quality of greedy outputs by length, and of all these texts."""
    rows, outputs, examples = [], list[str](), list[TranslationExample]()
    for (first, last), group in groups(task, fitting(TRAINED / name)).items():
        texts = [example.source for example in group]
        answers = translate_all(client, name, texts)
        lengths = [length_of(task, text) for text in texts]
        rows.append(
            {
                "first": first,
                "last": last,
                "mean_length": statistics.mean(lengths),
                "num_texts": len(texts),
                **quality(task, answers, group),
            }
        )
        outputs += answers
        examples += group
    return {"num_texts": len(outputs), **quality(task, outputs, examples), "by_length": rows}


def measure_round(
    client: Client, server: ServerProcess, name: str, texts: list[str]
) -> dict[str, float]:
    """Latency of a single short request, and the server's processor time of a batch."""
    options = {"max_new_tokens": NUM_TOKENS, "ignore_eos": True}
    seconds = []
    for text in texts:
        started = time.perf_counter()
        translate(client, name, [text], **options)
        seconds.append(time.perf_counter() - started)
    before, num_tokens = cpu_seconds(server), 0
    for _ in range(NUM_BATCHES):
        num_tokens += translate(client, name, texts, **options).usage.output_tokens
    used = cpu_seconds(server) - before
    return {
        "latency_milliseconds": 1000 * statistics.median(seconds),
        "cpu_microseconds_per_token": 1e6 * used / num_tokens,
    }


def training_of(name: str) -> dict[str, Any]:
    """What ``training.json`` says about size and cost."""
    record = json.loads((TRAINED / name / TRAINING_FILE).read_text("utf-8"))
    keys = ("num_parameters", "num_steps", "num_target_tokens", "cpu_seconds", "validation_loss")
    return {"description": record["recipe"]["description"], **{key: record[key] for key in keys}}


def measure(out: Path, rounds: int) -> dict[str, Any]:
    """The report; rows of systems that are not trained here are those of ``out``."""
    names = {
        name_of(task.name, system): (task, system) for task in TASKS for system in systems(task)
    }
    trained = {
        name: pair for name, pair in names.items() if (TRAINED / name / CONFIG_FILE).is_file()
    }
    load_before = os.getloadavg()[0]
    for name in trained:
        export_bundle(str(TRAINED / name), SERVED / name, "fp32", TRAINED / name / CONFIG_FILE)
    results: dict[str, dict[str, Any]] = {}
    with server_process(SERVED, "--threads", "1") as server, Client(server.target) as client:
        for name, (task, system) in trained.items():
            results[name] = {
                "task": task.name,
                "system": system,
                "load_average_before": load_before,
                **training_of(name),
                "quality": measure_quality(client, task, name),
            }
        samples: dict[str, list[dict[str, float]]] = {name: [] for name in trained}
        for _ in range(rounds + 1):  # the first warms up
            for name in trained:
                texts = [one.source for one in fitting(TRAINED / name)[:NUM_TEXTS]]
                samples[name].append(measure_round(client, server, name, texts))
    for name, rows in samples.items():
        results[name] |= {key: statistics.median(row[key] for row in rows[1:]) for key in rows[0]}
    kept = {}
    if out.exists():
        kept = {
            name_of(row["task"], row["system"]): row
            for row in json.loads(out.read_text("utf-8"))["systems"]
        }
    return {
        "machine": machine(),
        "rounds": rounds,
        "tokens_of_a_timed_output": NUM_TOKENS,
        "texts_of_a_timed_batch": NUM_TEXTS,
        "tasks": [asdict(task) for task in TASKS],
        "systems": [(kept | results)[name] for name in names if name in kept | results],
    }


def main(
    json_path: Annotated[Path, typer.Option("--json", help="The report.")] = ROOT
    / "docs"
    / "study.json",
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds of timing.")] = 5,
) -> None:
    """Measures every trained system of the study."""
    reports.write(measure(json_path, rounds), json_path)


if __name__ == "__main__":
    typer.run(main)
