"""What speculative decoding gains and costs: one sequence, with and without drafts.

    python -m tests.benchmarks.speculative --json build/speculative.json
    python -m tests.benchmarks.speculative --bundle bundles/debian-summaries/1

A decoder answers the chats below; ``debian-summaries`` summarizes descriptions of its held-out set.
Two workers with the same graphs decode the same prompts, without a front end. They take turns at
each step, the one with fewer tokens first, so that other work on the machine slows down both. The
speed-up is the ratio of the times of their decode steps, which are medians of all rounds. The
outputs are compared token by token.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from loadtest.machine import machine
from model.config import Kind
from server.app import make_backends
from server.config import ServerConfig
from server.engine.generation_worker import GenerationWorker
from server.engine.observer import RunReport, Unobserved
from server.engine.requests.busy_lanes import BusyLanes
from server.engine.requests.job import Delivery, GenerationJob
from server.models.registry import Model, load_bundle
from server.models.workers import make_worker
from server.text.chat import Message
from tests.benchmarks import reports
from tests.benchmarks.translation import held_out_pairs

CANALS = """The Amsterdam canal ring was built in the seventeenth century, when the city was the \
richest port in the world. Three main canals were dug in concentric half circles, and the land \
between them was sold in narrow plots, because taxes depended on the width of a house. The houses \
were therefore deep and tall, with warehouses in the attic and a beam with a hook above the \
highest window to lift goods from the boats below."""
LEAVES = """Photosynthesis is the process by which plants, algae and some bacteria turn light into \
chemical energy. Chlorophyll in the leaves absorbs red and blue light and reflects green light. \
The energy splits water into oxygen, which leaves the plant, and hydrogen, which is used to make \
sugar from carbon dioxide. Nearly all oxygen in the air was made in this way."""
CODE = """def total(prices, tax):
    result = 0
    for price in prices:
        result = result + price
    result = result + result * tax
    return result
"""
PEOPLE = """{"name": "Anna", "age": 31, "city": "Lisbon"}, {"name": "Ben", "age": 27, "city": \
"Porto"}, {"name": "Carla", "age": 44, "city": "Braga"}"""
QUESTIONS = {
    "copy": (
        f"Repeat this paragraph word for word:\n\n{CANALS}",
        f"Correct the spelling of this paragraph and return it:\n\n{LEAVES}",
        f"Rewrite this paragraph, but replace 'Amsterdam' by 'Utrecht':\n\n{CANALS}",
        f"Rename the variable result in this Python function and print all of it:\n\n{CODE}",
        f"Add a docstring to this Python function:\n\n{CODE}",
        f"Format this JSON as a list with one object per line:\n\n{PEOPLE}",
    ),
    "summary": (
        f"Summarize this paragraph:\n\n{CANALS}",
        f"Summarize in one sentence:\n\n{LEAVES}",
        f"{CANALS}\n\nWhy were the houses narrow?",
        f"{LEAVES}\n\nWhich colours of light does chlorophyll absorb?",
    ),
    "question": (
        "Why is the sky blue?",
        "Write a short poem about the sea.",
        "Explain how a bicycle stays upright.",
        "Give me three tips for learning a language.",
        "What is the capital of Portugal and what is it known for?",
        "Write a Python function that checks whether a number is prime.",
    ),
}

NUM_SOURCES = 40


class DraftCounts(Unobserved):
    """Counts runs of the decoder and drafted tokens."""

    def __init__(self) -> None:
        self.num_runs = self.num_drafted = self.num_accepted = 0

    def on_run(self, model: str, report: RunReport) -> None:
        del model
        if report.phase == "decode":
            self.num_runs += len(report.seconds)
            self.num_drafted += report.num_draft_tokens
            self.num_accepted += report.num_accepted_tokens


@dataclass
class Output:
    """An output, and the duration of its steps after the first token, in seconds."""

    tokens: list[int] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True)
class Comparison:
    """The outputs of one prompt: all are equal, or not. Seconds are medians of all rounds."""

    num_tokens: int
    plain_seconds: float
    seconds: float
    num_runs: int
    num_drafted: int
    num_accepted: int
    is_equal: bool

    @property
    def speed_up(self) -> float:
        return self.plain_seconds / self.seconds


def generate(workers: Sequence[GenerationWorker], id_: int, job: GenerationJob) -> list[Output]:
    """Runs the job once in each worker, in turns."""
    outputs = [Output() for _ in workers]
    for worker in workers:
        worker.submit(id_, job)
    while any(worker.has_work for worker in workers):
        turns = [index for index, worker in enumerate(workers) if worker.has_work]
        index = min(turns, key=lambda index: len(outputs[index].tokens))
        output, started = outputs[index], time.perf_counter()
        updates = workers[index].step(lambda: True)
        if output.tokens:
            output.seconds += time.perf_counter() - started
        for update in updates:
            output.tokens += update.tokens
    return outputs


def jobs_of(model: Model, max_new_tokens: int) -> dict[str, list[GenerationJob]]:
    """The jobs of each kind of prompt."""
    if model.manifest.kind is Kind.DECODER:
        return {
            kind: [_chat_job(model, question, max_new_tokens) for question in questions]
            for kind, questions in QUESTIONS.items()
        }
    pairs = held_out_pairs(model.manifest.name)[:NUM_SOURCES]
    return {"source": [_source_job(model, pair.source, max_new_tokens) for pair in pairs]}


def _chat_job(model: Model, question: str, max_new_tokens: int) -> GenerationJob:
    assert model.chat_template is not None
    text = model.chat_template.render([Message("user", question)])
    (ids,) = model.tokenizer.encode([text], special_tokens=False)
    eos = frozenset(model.manifest.special_tokens.eos)
    return GenerationJob(ids, max_new_tokens, eos=eos, delivery=Delivery.STREAM)


def _source_job(model: Model, source: str, max_new_tokens: int) -> GenerationJob:
    special = model.manifest.special_tokens
    assert special.decoder_start is not None
    (ids,) = model.tokenizer.encode([source])
    return GenerationJob(
        (special.decoder_start,),
        max_new_tokens,
        source=ids,
        eos=frozenset(special.eos),
        delivery=Delivery.STREAM,
    )


def compare(
    workers: Sequence[GenerationWorker], counts: DraftCounts, job: GenerationJob, num_rounds: int
) -> Comparison:
    """Compares a worker without drafts and one with them, whose observer is ``counts``."""
    generate(workers, 0, job)  # warms up
    before = counts.num_runs, counts.num_drafted, counts.num_accepted
    rounds = [generate(workers, 1 + index, job) for index in range(num_rounds)]
    after = counts.num_runs, counts.num_drafted, counts.num_accepted
    num_runs, num_drafted, num_accepted = (
        (b - a) // num_rounds for a, b in zip(before, after, strict=True)
    )
    tokens = rounds[0][0].tokens
    return Comparison(
        num_tokens=len(tokens),
        plain_seconds=median(plain.seconds for plain, _ in rounds),
        seconds=median(drafted.seconds for _, drafted in rounds),
        num_runs=num_runs,
        num_drafted=num_drafted,
        num_accepted=num_accepted,
        is_equal=all(output.tokens == tokens for outputs in rounds for output in outputs),
    )


def main(
    bundle: Annotated[
        Path, typer.Option(help="The bundle of a chat model, or of debian-summaries.")
    ] = Path("bundles/smollm2/1"),
    json: Annotated[Path | None, typer.Option(help="Output file.")] = None,
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    threads: Annotated[int, typer.Option(min=1)] = 2,
    max_new_tokens: Annotated[int, typer.Option(min=2)] = 200,
) -> None:
    """Prints and writes the speed-up of each kind of prompt."""
    config = ServerConfig(bundles=bundle, num_threads=threads, num_slots=2, max_length=1024)
    (backend,) = make_backends(config, BusyLanes())
    model = load_bundle(bundle, backend, config.max_length)
    plain_config = ServerConfig(
        bundles=bundle, num_threads=threads, num_slots=2, max_length=1024, allows_drafts=False
    )
    counts = DraftCounts()
    workers: list[GenerationWorker] = []
    for each, observer in ((plain_config, Unobserved()), (config, counts)):
        worker = make_worker(model, model.replicas[0], each, observer)
        assert isinstance(worker, GenerationWorker)
        workers.append(worker)
    report = {}
    for kind, jobs in jobs_of(model, max_new_tokens).items():
        found = [compare(workers, counts, job, rounds) for job in jobs]
        report[kind] = {
            # As if all outputs were decoded one after another.
            "speed_up": sum(each.plain_seconds for each in found)
            / sum(each.seconds for each in found),
            "speed_up_of_prompts": [each.speed_up for each in found],
            "tokens_per_run": sum(each.num_tokens - 1 for each in found)
            / sum(each.num_runs for each in found),
            "accepted_share": sum(each.num_accepted for each in found)
            / max(sum(each.num_drafted for each in found), 1),
            "equal_outputs": sum(each.is_equal for each in found),
            "outputs": len(found),
        }
        print(kind, report[kind], flush=True)
    if json is not None:
        reports.write({"machine": machine(), "bundle": str(bundle), "kinds": report}, json)


if __name__ == "__main__":
    typer.run(main)
