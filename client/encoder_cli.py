"""The command line's calls to encoders: embed, classify, tag, fill-mask, answer, rerank."""

import sys
from typing import Annotated

import typer

from client import encoder_types as types
from client import flags, render
from client.sync import Client

app = typer.Typer()

LongInput = Annotated[
    types.LongInput | None, typer.Option(help="What happens to a text that is too long.")
]
MaxTokens = Annotated[int | None, typer.Option(help="Read so many tokens at once.")]
Stride = Annotated[int | None, typer.Option(help="Tokens that neighbouring windows share.")]
ScoreFunction = Annotated[
    types.ScoreFunction | None,
    typer.Option(help="From logits to scores; the model's if not given."),
]


def _connect(context: typer.Context) -> Client:
    client: Client = context.obj.connect()
    return client


@app.command()
def embed(
    context: typer.Context,
    text: flags.Texts = None,
    model: Annotated[str, typer.Option()] = "minilm",
    version: flags.Version = "",
    dimensions: Annotated[
        int | None, typer.Option(help="Keep this many, if the model was trained for it.")
    ] = None,
    normalize: Annotated[bool | None, typer.Option(help="Vectors of length 1.")] = None,
    prompt_name: Annotated[str | None, typer.Option(help="The model's prompt to use.")] = None,
    encoding_format: Annotated[
        types.EncodingFormat, typer.Option(help="How vectors travel.")
    ] = types.EncodingFormat.FLOAT32_BYTES,
    long_input: LongInput = None,
    max_tokens: MaxTokens = None,
    stride: Stride = None,
    json: flags.Json = False,
) -> None:
    """Map texts to vectors with an encoder."""
    texts = flags.read_texts(text, sys.stdin)
    with _connect(context) as client:
        result = client.embed(
            model,
            texts,
            version=version,
            dimensions=dimensions,
            normalize=normalize,
            prompt_name=prompt_name,
            encoding_format=encoding_format,
            long_input=long_input,
            max_tokens=max_tokens,
            stride=stride,
        )
    if json:
        vectors = [output.values for output in result.outputs]
        render.write_json(result.model, vectors, result.usage, result.timing)
    else:
        render.write_embeddings(result, texts)


@app.command()
def classify(
    context: typer.Context,
    model: Annotated[str, typer.Option()],
    text: flags.Texts = None,
    pair: Annotated[
        list[str] | None,
        typer.Option(help="The second text of a pair; once for each TEXT, in order."),
    ] = None,
    version: flags.Version = "",
    top_k: Annotated[int | None, typer.Option(help="The best k labels.")] = None,
    score_function: ScoreFunction = None,
    long_input: LongInput = None,
    max_tokens: MaxTokens = None,
    json: flags.Json = False,
) -> None:
    """Map texts, or pairs of texts, to labels with an encoder."""
    texts = flags.read_texts(text, sys.stdin)
    if pair and len(pair) != len(texts):
        raise typer.BadParameter(f"{len(pair)} times --pair for {len(texts)} texts")
    with _connect(context) as client:
        result = client.classify(
            model,
            [] if pair else texts,
            pairs=list(zip(texts, pair, strict=True)) if pair else [],
            version=version,
            top_k=top_k,
            score_function=score_function,
            long_input=long_input,
            max_tokens=max_tokens,
        )
    if json:
        render.write_outputs_json(result)
    else:
        render.write_classifications(result, texts)


@app.command()
def tag(
    context: typer.Context,
    model: Annotated[str, typer.Option()],
    text: flags.Texts = None,
    version: flags.Version = "",
    aggregation: Annotated[
        types.Aggregation, typer.Option(help="How tokens become entities.")
    ] = types.Aggregation.SIMPLE,
    ignore: Annotated[
        list[str] | None, typer.Option(help="A label that is no entity; O if not given.")
    ] = None,
    min_score: Annotated[float | None, typer.Option(help="Leave out what is less sure.")] = None,
    long_input: LongInput = None,
    max_tokens: MaxTokens = None,
    stride: Stride = None,
    json: flags.Json = False,
) -> None:
    """Find the parts of texts that have labels, such as names."""
    texts = flags.read_texts(text, sys.stdin)
    with _connect(context) as client:
        result = client.tag(
            model,
            texts,
            version=version,
            aggregation=aggregation,
            ignored_labels=ignore or (),
            min_score=min_score,
            long_input=long_input,
            max_tokens=max_tokens,
            stride=stride,
        )
    if json:
        render.write_outputs_json(result)
        return
    for output in result.outputs:
        for row in output.entities:
            print(f"{row.label} {row.score:.3f} {row.start}:{row.end} {row.text}")


@app.command()
def fill_mask(
    context: typer.Context,
    model: Annotated[str, typer.Option()],
    text: flags.Texts = None,
    version: flags.Version = "",
    top_k: Annotated[int | None, typer.Option(help="Words for each mask.")] = None,
    target: Annotated[
        list[str] | None, typer.Option(help="Only this word. May be given several times.")
    ] = None,
    long_input: LongInput = None,
    max_tokens: MaxTokens = None,
    json: flags.Json = False,
) -> None:
    """Find words for the masks of texts."""
    texts = flags.read_texts(text, sys.stdin)
    with _connect(context) as client:
        result = client.fill_mask(
            model,
            texts,
            version=version,
            top_k=top_k,
            targets=target or (),
            long_input=long_input,
            max_tokens=max_tokens,
        )
    if json:
        render.write_outputs_json(result)
        return
    for output in result.outputs:
        for mask in output.masks:
            print(", ".join(f"{row.text} {row.score:.3f}" for row in mask.candidates))


@app.command()
def answer(
    context: typer.Context,
    model: Annotated[str, typer.Option()],
    question: Annotated[str, typer.Option()],
    context_text: flags.Texts = None,
    version: flags.Version = "",
    top_k: Annotated[int | None, typer.Option(help="The best k answers.")] = None,
    max_answer_tokens: Annotated[int | None, typer.Option(help="The longest answer.")] = None,
    allow_no_answer: Annotated[
        bool, typer.Option("--allow-no-answer", help="There may be no answer.")
    ] = False,
    long_input: LongInput = None,
    max_tokens: MaxTokens = None,
    stride: Stride = None,
    json: flags.Json = False,
) -> None:
    """Find the part of each TEXT that answers a question."""
    contexts = flags.read_texts(context_text, sys.stdin)
    with _connect(context) as client:
        result = client.answer(
            model,
            [types.Question(question, text) for text in contexts],
            version=version,
            top_k=top_k,
            max_answer_tokens=max_answer_tokens,
            allow_no_answer=allow_no_answer,
            long_input=long_input,
            max_tokens=max_tokens,
            stride=stride,
        )
    if json:
        render.write_outputs_json(result)
        return
    for output in result.outputs:
        for row in output.spans:
            print(f"{row.score:.3f} {row.start}:{row.end} {row.text or '(no answer)'}")


@app.command()
def rerank(
    context: typer.Context,
    query: Annotated[str, typer.Option()],
    document: flags.Texts = None,
    model: Annotated[str, typer.Option()] = "minilm",
    version: flags.Version = "",
    top_n: Annotated[int | None, typer.Option(help="The best n documents.")] = None,
    score_function: ScoreFunction = None,
    long_input: LongInput = None,
    max_tokens: MaxTokens = None,
    stride: Stride = None,
    json: flags.Json = False,
) -> None:
    """Sort texts by how well they fit a query, best first."""
    documents = flags.read_texts(document, sys.stdin)
    with _connect(context) as client:
        result = client.rerank(
            model,
            query,
            documents,
            version=version,
            top_n=top_n,
            score_function=score_function,
            return_documents=True,
            long_input=long_input,
            max_tokens=max_tokens,
            stride=stride,
        )
    if json:
        render.write_outputs_json(result)
        return
    for row in result.outputs:
        print(f"{row.score:+.4f}  {row.index}  {row.document[:80]}")
