"""The command ``attention``: draws which tokens a model's heads attend to."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from client import flags, heat_map, render, types
from client.sync import Client

app = typer.Typer()


@app.command()
def attention(
    context: typer.Context,
    model: Annotated[str, typer.Option()],
    text: flags.Texts = None,
    pair: Annotated[
        list[str] | None,
        typer.Option(help="The second text of a pair; once for each TEXT. Of encoders."),
    ] = None,
    kind: Annotated[
        types.AttentionKind | None,
        typer.Option(
            help="By default cross-attention if the model has it, else self-attention; of an "
            "encoder, its attention."
        ),
    ] = None,
    layer: Annotated[
        list[int] | None, typer.Option(help="Layer, from 0; all by default; repeatable.")
    ] = None,
    head: Annotated[
        list[int] | None, typer.Option(help="Head, from 0; all by default; repeatable.")
    ] = None,
    average: Annotated[
        bool, typer.Option(help="Draw the mean over the layers and heads; by default if all.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a .png or .svg; needs matplotlib (pip install '.[plot]'). For one TEXT.",
        ),
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option(help="Stop an output after this many tokens.")
    ] = 64,
    version: flags.Version = "",
    source_language: flags.SourceLanguage = "",
    target_language: flags.TargetLanguage = "",
    json: flags.Json = False,
) -> None:
    """Draw attention weights as a heat map: of a generated text, or of an encoder's text."""
    texts = flags.read_texts(text, sys.stdin)
    if out is not None:
        if len(texts) > 1:
            raise typer.BadParameter("--out takes one TEXT")
        heat_map.check_image_path(out)
    selection = types.AttentionOptions(
        kind=kind,
        layers=tuple(layer or ()),
        heads=tuple(head or ()),
        average=average or not (layer or head),
    )
    client: Client
    with context.obj.connect() as client:
        described = client.get_model(model, version=version)
        if described.kind == types.ModelKind.ENCODER:
            drawn = _of_encoder(client, described, texts, pair, selection)
        elif pair:
            raise typer.BadParameter(f"--pair: {model} is no encoder")
        else:
            options: types.GenerationOptions = {
                "attention": selection,
                "max_new_tokens": max_new_tokens,
                "version": version,
            }
            languages = _Languages(source_language, target_language)
            drawn = _of_output(client, described, texts, languages, options)
    if out is not None:
        heat_map.save_heat_maps(drawn.attentions[0], out)
    if json:
        weights = [asdict(each) for each in drawn.attentions]
        found = drawn.result
        render.write_json(found.model, drawn.texts, found.usage, found.timing, attention=weights)
    elif out is None:
        for shown, weights_of_text in zip(drawn.texts, drawn.attentions, strict=True):
            print(shown)
            heat_map.write_heat_maps(weights_of_text)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Texts and the attention to draw under each."""

    result: types.Result
    texts: list[str]
    attentions: list[types.Attention]


class _Languages(NamedTuple):
    source: str
    target: str


def _of_encoder(
    client: Client,
    model: types.Model,
    texts: list[str],
    second: list[str] | None,
    selection: types.AttentionOptions,
) -> _Drawn:
    """Calls ``attend`` for ``texts``, or for pairs of ``texts`` and ``second``."""
    if selection.kind not in (None, types.AttentionKind.ENCODER):
        raise typer.BadParameter(f"--kind {selection.kind}: {model.name} is an encoder")
    if second and len(second) != len(texts):
        times, given = render.counted(len(second), "time"), render.counted(len(texts), "text")
        raise typer.BadParameter(f"--pair is given {times} for {given}")
    pairs = list(zip(texts, second, strict=True)) if second else []
    result = client.attend(
        model.name,
        [] if pairs else texts,
        pairs=pairs,
        version=model.version,
        layers=selection.layers,
        heads=selection.heads,
        average=selection.average,
    )
    shown = [" | ".join(pair) for pair in pairs] or texts
    return _Drawn(result, shown, [output.attention for output in result.outputs])


def _of_output(
    client: Client,
    model: types.Model,
    texts: list[str],
    languages: _Languages,
    options: types.GenerationOptions,
) -> _Drawn:
    """Generates or translates, and returns the attention weights of each output."""
    if "translate" in model.tasks:
        result = client.translate(
            model.name,
            texts,
            source_language=languages.source,
            target_language=languages.target,
            **options,
        )
    else:
        result = client.generate(model.name, texts, **options)
    shown = [output.text for output in result.outputs]
    return _Drawn(result, shown, [_weights(output) for output in result.outputs])


def _weights(output: types.Text) -> types.Attention:
    if output.attention is None:
        raise ValueError("the server returned no attention weights")
    return output.attention
