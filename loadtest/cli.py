"""The command line: ``python -m loadtest run|compare|gpu``."""

import os
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console

from client.channel import DEFAULT_TARGET
from client.encoder_types import InputType
from client.errors import TriuneError
from client.render import counted
from loadtest import machine, report
from loadtest.compare.candidates import COMPARED, Level
from loadtest.compare.ceilings import USABLE
from loadtest.compare.command import Comparison, prepare_all
from loadtest.compare.command import compare as run_comparison
from loadtest.compare.decoders import SMOLLM2, decoder_of
from loadtest.compare.workloads import PRECISIONS
from loadtest.gpu.cli import gpu, gpu_models, gpu_server
from loadtest.prompts import LengthRange
from loadtest.run import Plan, Result, UnsuitableModelError
from loadtest.run import run as run_plan
from loadtest.tasks import DEFAULTS, QUERY_LENGTHS, Task

_ROUNDS = {Level.ENGINE: 5, Level.TEXT: 5, Level.STATIC: 3, Level.SERVER: 3}
_BUDGET_SECONDS = {Level.SERVER: 570.0, Level.STATIC: 570.0}
_DURATION_SECONDS = {Task.GENERATE: 5.0, Task.TRANSLATE: 5.0, Task.EMBED: 3.0}

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Runs a command. An error prints one line on standard error; exit code 1, or 2 for usage."""
    try:
        app()
    except (TriuneError, UnsuitableModelError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


@app.callback()
def describe() -> None:
    """Put load on a Triune server and measure it."""


def _lengths(text: str) -> LengthRange:
    try:
        return LengthRange.parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


@app.command()
def run(
    task: Annotated[Task, typer.Option()],
    model: Annotated[str, typer.Option()],
    json: Annotated[Path, typer.Option("--json", dir_okay=False, help="Output file.")],
    duration: Annotated[float, typer.Option(min=0.1, help="Seconds to measure.")] = 10.0,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Closed loop: number of clients, by default 1. With --rate: maximum number of "
            "requests in flight, by default unlimited.",
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            help="Open loop: requests per second with Poisson arrivals, whether or not earlier "
            "ones have finished.",
        ),
    ] = None,
    warmup: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Seconds before the measurement. A closed loop also waits for a first response.",
        ),
    ] = 2.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of prompts and arrival times.")] = 0,
    lengths: Annotated[
        LengthRange | None,
        typer.Option(
            parser=_lengths,
            metavar="MIN-MAX",
            help="Approximate prompt lengths in tokens. By default the task's own; with --prompts "
            "whole lines.",
        ),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="File with a text per line; by default our own."
        ),
    ] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1)] = None,
    ignore_eos: Annotated[
        bool | None,
        typer.Option(
            "--ignore-eos/--no-ignore-eos",
            help="Continue to --max-new-tokens; by default only for generate.",
        ),
    ] = None,
    input_type: Annotated[
        InputType | None, typer.Option(help="What texts are for; only for embed.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Timeout of a request in seconds.")] = 120,
    target: Annotated[
        str, typer.Option(envvar="TRIUNE_TARGET", metavar="HOST:PORT")
    ] = DEFAULT_TARGET,
) -> None:
    """Send requests to a server for a while, print a table and write JSON."""
    if input_type is not None and task is not Task.EMBED:
        raise typer.BadParameter("--input-type needs --task embed")
    defaults = DEFAULTS[task]
    default_lengths = QUERY_LENGTHS if input_type is InputType.QUERY else defaults.lengths
    plan = Plan(
        target=target,
        task=task,
        model=model,
        concurrency=concurrency,
        rate=rate,
        duration_seconds=duration,
        warmup_seconds=warmup,
        timeout_seconds=timeout,
        seed=seed,
        prompts=prompts,
        lengths=lengths or (default_lengths if prompts is None else None),
        max_new_tokens=defaults.max_new_tokens if max_new_tokens is None else max_new_tokens,
        ignore_eos=defaults.ignore_eos if ignore_eos is None else ignore_eos,
        input_type=input_type,
    )
    started = datetime.now(UTC).isoformat(timespec="seconds")
    result = uvloop.run(run_plan(plan, Console(stderr=True)))
    report.write_json(json, result.summary, _about(plan, result, started))
    report.print_table(result.summary, _title(plan), task.texts_per_request)
    if result.summary.requests == sum(result.summary.errors.values()):
        print("error: no request succeeded", file=sys.stderr)
        raise typer.Exit(1)
    if result.summary.requests_per_second == 0:
        print("no response arrived within --duration: use a longer one", file=sys.stderr)


@app.command()
def compare(
    task: Annotated[Task, typer.Option()],
    json: Annotated[
        Path | None,
        typer.Option("--json", dir_okay=False, help="Output file, rewritten after each row."),
    ] = None,
    level: Annotated[
        Level,
        typer.Option(
            help="engine: without a network; text: the same from text to text; server: with "
            "clients on the same cores; static: our engine with static batching, on mixed traffic."
        ),
    ] = Level.ENGINE,
    model: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="A GGUF file with weights of about 4 bits, instead of the task's own model. Only "
            "for --task generate and --level engine.",
        ),
    ] = None,
    peers: Annotated[str, typer.Option(help="Peers, separated by commas; by default all.")] = "",
    precisions: Annotated[
        str, typer.Option(help="fp32, int8 or int4, by commas; by default the task's own.")
    ] = "",
    protocols: Annotated[
        str,
        typer.Option(
            help="Protocols of our server, by commas: triune, oip, http (OpenAI's), tei; by "
            "default all that the task has. Only for --level server."
        ),
    ] = "",
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="Rounds; by default 5, for servers and static batching 3."),
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(
            min=0.5, help="Seconds of each run against a server; by default 5, for embed 3."
        ),
    ] = None,
    budget_s: Annotated[
        float | None,
        typer.Option(
            min=1, help="Time budget in seconds, met by fewer rounds; for servers and static 570."
        ),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each candidate.")] = len(
        os.sched_getaffinity(0)
    ),
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Small batches, few clients, two rounds: only shows that everything works.",
        ),
    ] = False,
    prepare: Annotated[
        bool,
        typer.Option("--prepare", help="Only install the peers and build the models."),
    ] = False,
    root: Annotated[Path, typer.Option(help="Folder of environments and models.")] = Path("build"),
) -> None:
    """Compare this engine, or this server, with others on the same work."""
    if task not in COMPARED:
        raise typer.BadParameter(f"only {', '.join(COMPARED)} can be compared", param_hint="--task")
    if not PRECISIONS[level][task]:
        raise typer.BadParameter(f"there is no {level} for {task}", param_hint="--level")
    if unknown := sorted(set(_names(precisions)) - set(USABLE)):
        raise typer.BadParameter(f"there is no {', '.join(unknown)}", param_hint="--precisions")
    if protocols and level != Level.SERVER:
        raise typer.BadParameter("only for --level server", param_hint="--protocols")
    if model is not None and (task, level) != (Task.GENERATE, Level.ENGINE):
        raise typer.BadParameter("only for --task generate --level engine", param_hint="--model")
    try:
        decoder = SMOLLM2 if model is None else decoder_of(model)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--model") from error
    comparison = Comparison(
        task=task,
        level=level,
        decoder=decoder,
        peers=_names(peers),
        precisions=_names(precisions),
        protocols=_names(protocols),
        rounds=rounds or (2 if quick else _ROUNDS[level]),
        duration_seconds=duration or (2.0 if quick else _DURATION_SECONDS[task]),
        budget_seconds=budget_s or _BUDGET_SECONDS.get(level),
        quick=quick,
        threads=threads,
        root=root.absolute(),
    )
    if prepare:
        if not prepare_all(comparison):
            raise typer.Exit(1)
        return
    if json is None:
        raise typer.BadParameter("an output file is required", param_hint="--json")
    if not run_comparison(comparison, json):
        raise typer.Exit(1)


for command in (gpu, gpu_models, gpu_server):
    app.command()(command)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _title(plan: Plan) -> str:
    clients = counted(plan.concurrency or 1, "client")
    load = clients if plan.rate is None else f"{plan.rate:g} requests/s"
    return f"{plan.task} with {plan.model}, {load}"


def _about(plan: Plan, result: Result, started: str) -> dict[str, object]:
    arguments = asdict(plan) | {"prompts": None if plan.prompts is None else str(plan.prompts)}
    return {
        "task": plan.task,
        "texts_per_request": plan.task.texts_per_request,
        "mode": "closed" if plan.rate is None else "open",
        "started": started,
        "model": asdict(result.model),
        "arguments": arguments,
        "machine": machine.machine(),
        "versions": machine.versions(),
    }
