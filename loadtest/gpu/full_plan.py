"""The plan of ``loadtest gpu`` for a device. Pure."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from loadtest.gpu.check_plan import checks
from loadtest.gpu.model_sizes import BENCHMARK_SIZES, CHECK_SIZES, Family, ModelSize
from loadtest.gpu.plan import Benchmark, CacheStep, Part, Plan, PlanSize, Profile

Item = tuple[Part, Benchmark | Profile | CacheStep]

TRANSFORMERS, COMPILED = "transformers_engine", "transformers_compiled_engine"
CONVERTED, TRANSLATOR = "ctranslate2_engine", "transformers_translator_engine"
SENTENCES, TORCH = "sentence_transformers_engine", "torch_encoder_engine"
# Modules of loadtest/peers.
PEERS = {
    Family.DECODER: (TRANSFORMERS, COMPILED, CONVERTED),
    Family.ENCODER_DECODER: (TRANSLATOR, CONVERTED),
    Family.ENCODER: (SENTENCES, TORCH),
}
WITHOUT_GRAPHS = {"cuda_graphs": False}
_STEPS = (1, 8, 32, 64, 256)
_PROFILED = (1, 8, 64, 256)
# Texts, and tokens of each.
_SHAPES = ((1, 128), (8, 128), (32, 128), (256, 128), (32, 512), (128, 512))
_SOME_SHAPES = ((1, 128), (32, 128), (128, 512))
_LIMIT_SECONDS = 120.0


def make_plan(device: str, sizes: PlanSize) -> Plan:
    """The plan for a device. Precisions start with fp32 on CPU, with fp16 on CUDA.

    CUDA has no fp32 attention kernel.
    """
    is_cuda = device.startswith("cuda")
    first = "fp16" if is_cuda else "fp32"
    if sizes == PlanSize.TINY:
        return Plan(
            device=device,
            checks=checks((first,), (first,), first, all_rows=False),
            items=tuple(_tiny(first, is_cuda=is_cuda)),
        )
    precisions = ("fp16", "bf16", "int8", "int4") if is_cuda else ("fp32", "int8", "int4")
    return Plan(
        device=device,
        checks=checks(precisions, precisions, first),
        items=tuple(_full(first, is_cuda=is_cuda)),
    )


def _tiny(precision: str, *, is_cuda: bool) -> Iterator[Item]:
    for size in CHECK_SIZES:
        ours = _benchmark(size, precision, (1, 4), 16, 8)
        yield Part.STEPS, ours
        for engine in PEERS[size.family]:
            yield Part.PEERS, replace(ours, engine=engine)
        if is_cuda:
            yield Part.PROFILE, Profile(benchmark=ours)
    yield Part.CACHES, CacheStep(batch=3, num_cached=300, capacity=512)


def _full(precision: str, *, is_cuda: bool) -> Iterator[Item]:
    by_name = {size.name: size for size in BENCHMARK_SIZES}
    llama, small = by_name["llama-1.1b"], by_name["llama-135m"]
    base, big = by_name["transformer-base"], by_name["transformer-big"]
    steps = _benchmark(llama, precision, _STEPS, 128, 64)
    yield Part.STEPS, steps
    for size in (base, big):
        yield Part.STEPS, _benchmark(size, precision, (1, 8, 64, 256), 128, 64)
    yield Part.STEPS, _beams(base, precision)
    if is_cuda:
        yield Part.PROFILE, Profile(benchmark=replace(steps, batches=_PROFILED, num_new_tokens=32))
        yield (
            Part.PROFILE,
            Profile(benchmark=_texts(by_name["bert-base"], precision, (32, 256), 128)),
        )
    yield from _encoders(by_name["bert-base"], precision)
    yield from _encoders(by_name["bert-large"], precision, _SOME_SHAPES)
    yield from _peers(steps, by_name)
    yield Part.STEPS, _benchmark(small, precision, (1, 8, 64, 256), 128, 64)
    for tokens in (512, 2048, 8192):
        prompts = _benchmark(llama, precision, (1, 64), 512, 8)
        config = {"max_batched_tokens": tokens}
        label = f"prompts of 512 tokens, steps of {tokens}"
        yield Part.PREFILL, replace(prompts, label=label, config=config)
    for batch in (1, 32, 128):
        for num_cached in (128, 1024):
            yield Part.CACHES, CacheStep(batch=batch, num_cached=num_cached, capacity=2048)
    some = replace(steps, batches=(1, 64, 256))
    if is_cuda:
        yield Part.OPTIONS, replace(some, label="without CUDA graphs", config=WITHOUT_GRAPHS)
        texts = _texts(by_name["bert-base"], precision, (128,), 512)
        label, config = f"{texts.label}, batches of 16384", {"max_padded_tokens": 16384}
        yield Part.OPTIONS, replace(texts, label=label, config=config)
    for each in ("int8", "int4"):
        yield Part.OPTIONS, replace(some, precision=each)
    yield Part.OPTIONS, replace(some, kv_cache="int8")


def _encoders(
    size: ModelSize, precision: str, shapes: tuple[tuple[int, int], ...] = _SHAPES
) -> Iterator[Item]:
    settings: dict[str, dict[str, Any]] = {
        "": {},
        ", without CUDA graphs": {"config": WITHOUT_GRAPHS},
        ", 2 lanes": {"lanes": 2},
    }
    for suffix, changes in settings.items():
        for num_tokens, num_texts in _by_length(shapes):
            ours = _texts(size, precision, num_texts, num_tokens)
            yield Part.ENCODERS, replace(ours, label=f"{ours.label}{suffix}", **changes)


def _peers(steps: Benchmark, by_name: dict[str, ModelSize]) -> Iterator[Item]:
    """The peers, the fastest first. The slowest one and the one that compiles run a part."""
    few: dict[str, Any] = {"rounds": 1, "num_new_tokens": 32}
    limits: dict[str, Any] = {"limit_seconds": _LIMIT_SECONDS}
    batches = (1, 8, 64, 256)
    yield Part.PEERS, replace(steps, engine=CONVERTED, batches=batches, **limits)
    for name in ("bert-base", "bert-large"):
        for engine in PEERS[Family.ENCODER]:
            for num_tokens, num_texts in _by_length(_SOME_SHAPES):
                texts = _texts(by_name[name], steps.precision, num_texts, num_tokens)
                yield Part.PEERS, replace(texts, engine=engine, **limits)
    for name in ("transformer-base", "transformer-big"):
        ours = _benchmark(by_name[name], steps.precision, batches, 128, 64)
        yield Part.PEERS, replace(ours, engine=CONVERTED, **limits)
        yield Part.PEERS, replace(ours, engine=TRANSLATOR, rounds=1, **limits)
    beams = _beams(by_name["transformer-base"], steps.precision)
    yield Part.PEERS, replace(beams, engine=CONVERTED, **limits)
    yield Part.PEERS, replace(steps, engine=TRANSFORMERS, batches=batches, **limits, **few)
    yield Part.PEERS, replace(steps, engine=COMPILED, batches=(8, 64), **limits)


def _beams(size: ModelSize, precision: str) -> Benchmark:
    searches = _benchmark(size, precision, (1, 8, 64), 128, 64)
    return replace(searches, label="4 beams", beams=4)


def _by_length(
    shapes: tuple[tuple[int, int], ...],
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """For each number of tokens, ascending, the numbers of texts."""
    for num_tokens in sorted({tokens for _, tokens in shapes}):
        yield num_tokens, tuple(texts for texts, tokens in shapes if tokens == num_tokens)


def _texts(size: ModelSize, precision: str, batches: tuple[int, ...], num_tokens: int) -> Benchmark:
    ours = _benchmark(size, precision, batches, num_tokens, 0)
    return replace(ours, label=f"{num_tokens} tokens", rounds=5)


def _benchmark(
    size: ModelSize, precision: str, batches: tuple[int, ...], num_tokens: int, num_new_tokens: int
) -> Benchmark:
    return Benchmark(
        size=size,
        precision=precision,
        batches=batches,
        num_tokens=num_tokens,
        num_new_tokens=0 if size.family == Family.ENCODER else num_new_tokens,
        rounds=2,
    )
