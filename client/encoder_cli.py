"""The commands of the encoder calls: embed, classify, tag, fill-mask, answer, rerank, correct."""

import sys
from typing import Annotated

import typer

from client import encoder_types as types
from client import flags, render, render_embeddings
from client.option_flags import takes_options
from client.sync import Client
from client.text_batches import lines_of, result_of_files, results_of

app = typer.Typer()


def _connect(context: typer.Context) -> Client:
    client: Client = context.obj.connect()
    return client


@app.command()
@takes_options()
def embed(
    context: typer.Context,
    text: flags.Texts = None,
    model: Annotated[str, typer.Option()] = "minilm",
    image: flags.Images = None,
    json: flags.JsonOfBatches = False,
    *,
    options: types.EmbedOptions,
) -> None:
    """Map texts or images to vectors, or texts to weights of tokens, with an encoder."""
    if text and image:
        raise typer.BadParameter("give either texts or --image")

    def call(client: Client, inputs: list[str] | list[bytes]) -> types.EmbedResult:
        return client.embed(model, inputs, **options)

    results = result_of_files(context, image, call) if image else results_of(context, text, call)
    for names, result in results:
        if json:
            render_embeddings.write_embeddings_json(result)
        else:
            render_embeddings.write_embeddings(result, names)


@app.command()
@takes_options(without=("stride",))
def classify(
    context: typer.Context,
    model: Annotated[str, typer.Option()],
    text: flags.Texts = None,
    pair: Annotated[
        list[str] | None,
        typer.Option(help="The second text of a pair; once for each TEXT, in order."),
    ] = None,
    image: flags.Images = None,
    audio: flags.Recordings = None,
    json: flags.JsonOfBatches = False,
    *,
    options: types.ClassifyOptions,
) -> None:
    """Map texts, images, recordings, or texts with a second text or an image each, to labels."""
    if audio and (text or pair or image):
        raise typer.BadParameter("give either --audio or other inputs")
    if pair and image:
        raise typer.BadParameter("give either --pair or --image")
    if audio:
        results = result_of_files(
            context, audio, lambda client, files: client.classify(model, audio=files, **options)
        )
    elif pair or image:
        names, inputs = flags.read_texts_or_images(text, image, sys.stdin)
        pairs = flags.read_seconds(names, pair, image if text else None)
        with _connect(context) as client:
            result = client.classify(model, [] if pairs else inputs, pairs=pairs, **options)
        results = iter([(names, result)])
    else:
        results = results_of(
            context, text, lambda client, texts: client.classify(model, texts, **options)
        )
    for names, result in results:
        if json:
            render.write_outputs_json(result)
        else:
            render.write_classifications(result, names)


@app.command()
@takes_options()
def tag(
    context: typer.Context,
    model: Annotated[str, typer.Option()],
    text: flags.Texts = None,
    json: flags.JsonOfBatches = False,
    *,
    options: types.TagOptions,
) -> None:
    """Find entities: labelled spans of texts, such as names."""
    for _, result in results_of(
        context, text, lambda client, texts: client.tag(model, texts, **options)
    ):
        if json:
            render.write_outputs_json(result)
            continue
        for entity in (entity for output in result.outputs for entity in output.entities):
            print(f"{entity.label} {entity.score:.3f} {entity.start}:{entity.end} {entity.text}")


@app.command()
@takes_options(without=("stride",))
def fill_mask(
    context: typer.Context,
    model: Annotated[str, typer.Option()],
    text: flags.Texts = None,
    json: flags.JsonOfBatches = False,
    *,
    options: types.FillMaskOptions,
) -> None:
    """Predict words for the masks in texts."""
    for _, result in results_of(
        context, text, lambda client, texts: client.fill_mask(model, texts, **options)
    ):
        if json:
            render.write_outputs_json(result)
            continue
        for mask in (mask for output in result.outputs for mask in output.masks):
            print(", ".join(f"{each.text} {each.score:.3f}" for each in mask.candidates))


@app.command()
@takes_options()
def answer(
    context: typer.Context,
    model: Annotated[str, typer.Option()],
    question: Annotated[str, typer.Option()],
    context_text: flags.Texts = None,
    json: flags.Json = False,
    *,
    options: types.AnswerOptions,
) -> None:
    """Find the span of each TEXT that answers a question."""
    contexts = flags.read_texts(context_text, sys.stdin)
    questions = [types.Question(question, text) for text in contexts]
    with _connect(context) as client:
        result = client.answer(model, questions, **options)
    if json:
        render.write_outputs_json(result)
        return
    for output in result.outputs:
        for span in output.spans:
            print(f"{span.score:.3f} {span.start}:{span.end} {span.text or '(no answer)'}")


@app.command()
@takes_options()
def rerank(
    context: typer.Context,
    query: Annotated[str, typer.Option()],
    document: flags.Texts = None,
    model: Annotated[str, typer.Option()] = "minilm",
    json: flags.Json = False,
    *,
    options: types.RerankOptions,
) -> None:
    """Sort texts by relevance to a query, most relevant first."""
    documents = flags.read_texts(document, sys.stdin)
    options["return_documents"] = True
    with _connect(context) as client:
        result = client.rerank(model, query, documents, **options)
    if json:
        render.write_outputs_json(result)
        return
    for output in result.outputs:
        print(f"{output.score:+.4f}  {output.index}  {output.document[:80]}")


@app.command()
@takes_options()
def correct(
    context: typer.Context,
    text: flags.Texts = None,
    model: Annotated[str, typer.Option()] = "grammar",
    json: flags.JsonOfBatches = False,
    *,
    options: types.CorrectOptions,
) -> None:
    """Correct texts, such as their grammar, by editing words."""
    if json:
        for _, result in results_of(
            context, text, lambda client, texts: client.correct(model, texts, **options)
        ):
            render.write_outputs_json(result)
        return
    for line in lines_of(
        context,
        text,
        lambda client, texts: (row.text for row in client.correct(model, texts, **options).outputs),
    ):
        print(line)
