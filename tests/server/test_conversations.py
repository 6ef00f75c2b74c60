"""Conversations reuse their history: more of them than slots, and never another client's."""

from dataclasses import replace
from pathlib import Path

import pytest

from client.aio import AsyncClient
from client.channel import Security
from server.engine.cache.slot_tensors import Capacity
from server.engine.decoding.options import LogprobOptions
from server.engine.generation_worker import GenerationWorker
from server.engine.model_runner import ModelRunner
from server.engine.observer import Unobserved
from server.engine.requests.job import GenerationJob
from server.engine.requests.update import JobUpdate
from server.engine.scheduler import StepLimits
from server.models.registry import Model, load_bundle
from server.runtime.ort.backend import OrtBackend
from tests.faults.record import record
from tests.server.in_process_server import serving

DECODER = "tiny-decoder"
MAX_LENGTH = 96
NUM_TURNS, NUM_CONVERSATIONS, NUM_SLOTS = 3, 8, 4
PROMPT = "".join(f"{number}," for number in range(100, 112))


@pytest.fixture(scope="module")
def model(tiny_bundles: Path) -> Model:
    return load_bundle(tiny_bundles / DECODER / "1", OrtBackend("cpu", 1), MAX_LENGTH)


def make_worker(model: Model, num_prefix_slots: int) -> GenerationWorker:
    capacity = Capacity(NUM_SLOTS, MAX_LENGTH, MAX_LENGTH, num_prefix_slots)
    replica = model.replicas[0]
    runner = ModelRunner(
        model.manifest.graphs["decode"],
        replica.graphs["decode"],
        None,
        capacity,
        memory=replica.memory,
    )
    limits = StepLimits(NUM_SLOTS, 64, min_chunk=8)
    return GenerationWorker("turns", runner, capacity, limits, lambda: 0.0, Unobserved())


def job(prompt: list[int]) -> GenerationJob:
    """Without end tokens: an answer has 4 tokens, with their log-probabilities."""
    return GenerationJob(tuple(prompt), 4, logprob_options=LogprobOptions(top_logprobs=0))


def converse(model: Model, num_prefix_slots: int) -> tuple[list[list[JobUpdate]], list[list[int]]]:
    """All conversations take their turns at the same time.

    Returns:
        The updates of each turn, and its prompt.
    """
    worker = make_worker(model, num_prefix_slots)
    size = model.manifest.dimensions.vocabulary_size
    histories = [[(3 + 7 * n + k) % size for k in range(36)] for n in range(NUM_CONVERSATIONS)]
    turns: list[list[JobUpdate]] = []
    prompts: list[list[int]] = []
    for turn in range(NUM_TURNS):
        first = len(turns)
        for number, history in enumerate(histories):
            history += [(turn * 11 + number + k) % size for k in range(8)]
            prompts.append(list(history))
            turns.append([])
            worker.submit(first + number, job(history))
        while worker.has_work:
            for update in worker.step():
                turns[update.id].append(update)
                histories[update.id - first] += update.tokens
            worker.check()
    return turns, prompts


def num_reused(turn: list[JobUpdate]) -> int:
    assert turn[-1].completion is not None
    return turn[-1].completion.num_reused_tokens


def test_conversations_reuse_their_whole_history(model: Model) -> None:
    """Every next turn prefills only its question and the last token of the answer before it."""
    turns, prompts = converse(model, num_prefix_slots=NUM_CONVERSATIONS - NUM_SLOTS)
    first_turns, next_turns = turns[:NUM_CONVERSATIONS], turns[NUM_CONVERSATIONS:]
    assert [num_reused(turn) for turn in first_turns] == [0] * NUM_CONVERSATIONS
    for turn, prompt in zip(next_turns, prompts[NUM_CONVERSATIONS:], strict=True):
        assert num_reused(turn) == len(prompt) - 8 - 1


def test_without_prefix_slots_most_histories_are_lost(model: Model) -> None:
    turns, _ = converse(model, num_prefix_slots=0)
    assert sum(num_reused(turn) > 0 for turn in turns[NUM_CONVERSATIONS:]) <= NUM_SLOTS * 2


def test_reuse_is_bit_identical_to_a_prefill(model: Model) -> None:
    turns, prompts = converse(model, num_prefix_slots=4)
    for turn, prompt in zip(turns, prompts, strict=True):
        alone = make_worker(model, 0)
        alone.submit(0, job(prompt))
        updates: list[JobUpdate] = []
        while alone.has_work:
            updates += alone.step()
        assert [u.tokens for u in turn] == [u.tokens for u in updates]
        assert [u.logprobs for u in turn] == [u.logprobs for u in updates]


def test_equal_prompts_are_bit_identical(model: Model) -> None:
    prompt = [k % 9 + 1 for k in range(50)]
    worker = make_worker(model, 0)
    updates: dict[int, list[JobUpdate]] = {id_: [] for id_ in range(6)}
    for id_ in updates:
        worker.submit(id_, replace(job(prompt), priority=-id_))
    while worker.has_work:
        for update in worker.step():
            updates[update.id].append(update)
    assert [num_reused(updates[id_]) for id_ in updates] == [0] + [49] * 5
    logprobs = {tuple(u.logprobs for u in updates[id_]) for id_ in updates}
    assert len(logprobs) == 1


async def reused_tokens(port: int, token: str = "") -> int:
    security = Security(token=token) if token else Security()
    async with AsyncClient(f"127.0.0.1:{port}", security=security) as client:
        answer = await client.generate(DECODER, PROMPT, max_new_tokens=2)
        return answer.usage.reused_tokens


async def test_clients_do_not_reuse_each_others_prompts(tiny_bundles: Path, tmp_path: Path) -> None:
    """Two tokens of one name are one client; ``--share-prefixes`` makes all of them one."""
    (tmp_path / "tokens").write_text("alice:first\nbob:second\nalice:third\n")
    async with serving(tiny_bundles, tokens=tmp_path / "tokens", max_length=96) as running:
        assert await reused_tokens(running.port, "first") == 0
        assert await reused_tokens(running.port, "second") == 0
        own = [await reused_tokens(running.port, token) for token in ("first", "second", "third")]
        assert min(own) > 32
    record(
        19,
        "a client sends a prompt that another client has just sent",
        "nothing of the other's cached prompt is reused, so neither usage nor timing tells of it",
        reused_tokens_of_its_own=min(own),
        reused_tokens_of_others=0,
    )
    async with serving(
        tiny_bundles, tokens=tmp_path / "tokens", max_length=96, shares_prefixes=True
    ) as running:
        assert await reused_tokens(running.port, "first") == 0
        assert await reused_tokens(running.port, "second") > 32


async def test_without_authentication_all_callers_share_prefixes(tiny_bundles: Path) -> None:
    async with serving(tiny_bundles, max_length=96) as running:
        assert await reused_tokens(running.port) == 0
        assert await reused_tokens(running.port) > 32
