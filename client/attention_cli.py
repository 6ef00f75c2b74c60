"""The command ``attention``: draws which tokens a model's heads attend to."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from client import flags, heat_map, render, types
from client.sync import Client

app = typer.Typer()


@app.command()
def attention(
    context: typer.Context,
    model: Annotated[str, typer.Option()],
    text: flags.Texts = None,
    kind: Annotated[
        types.AttentionKind | None,
        typer.Option(help="By default cross-attention if the model has it, else self-attention."),
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
            metavar="FILE", help="Write a .png or .svg; needs triune[plot]. For one TEXT."
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
    """Draw the attention weights of a generated text as a heat map."""
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
    options: types.GenerationOptions = {
        "attention": selection,
        "max_new_tokens": max_new_tokens,
        "version": version,
    }
    client: Client
    with context.obj.connect() as client:
        if "translate" in client.get_model(model, version=version).tasks:
            result = client.translate(
                model,
                texts,
                source_language=source_language,
                target_language=target_language,
                **options,
            )
        else:
            result = client.generate(model, texts, **options)
    if out is not None:
        heat_map.save_heat_maps(_weights(result.outputs[0]), out)
    if json:
        weights = [asdict(_weights(output)) for output in result.outputs]
        found = [output.text for output in result.outputs]
        render.write_json(result.model, found, result.usage, result.timing, attention=weights)
    elif out is None:
        for output in result.outputs:
            print(output.text)
            heat_map.write_heat_maps(_weights(output))


def _weights(output: types.Text) -> types.Attention:
    if output.attention is None:
        raise ValueError("the server returned no attention weights")
    return output.attention
