"""Language models that rerank, and templates for pairs, from sentence-transformers' files.

The score of a pair is the logit of a token such as "yes" after a prompt with both texts, minus that
of a token such as "no" (the module ``LogitScore``). So the head is the difference of two rows of
the output matrix.
"""

from collections.abc import Callable, Iterable

from jinja2 import TemplateError
from torch import Tensor

from export.errors import UnsupportedError
from export.importers.heads import SENTENCE_TRANSFORMERS_FILE, Head, score_function
from export.importers.renaming import Rename, Transform
from export.importers.sentence_transformers import module_config, read_modules, transformer_fields
from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported
from model.bundle import PairTemplate, Task
from model.chat_template import compile_template, render_template
from model.config import HeadConfig, HeadKind, ModelConfig, PoolingKind

SCORE = "LogitScore"
TOKENS, OUTPUT = "embedding.tokens.weight", "head.output.weight"
# Texts that a template must leave unchanged: spaces, markup, placeholders.
PROBES = (
    ("Which river is longer?", "The Nile has a length of 6,650 km."),
    ("  <a href='x'>{{ 1 }} & \"b\"", "\n| {document} \\ %s\n\n"),
)


def is_reranker(folder: HuggingFaceFolder) -> bool:
    """Whether sentence-transformers saved ``folder`` as a language model that scores pairs."""
    return any(module.kind == SCORE for module in read_modules(folder))


def reranker(folder: HuggingFaceFolder, model: ModelConfig, table: Iterable[Rename]) -> Head:
    """The head that scores pairs.

    Args:
        model: the language model.
        table: all of its weights.

    Raises:
        SourceError: a file is damaged.
        UnsupportedError: a file needs a feature that is not supported.
    """
    modules = read_modules(folder)
    kinds = [module.kind for module in modules]
    if kinds != ["Transformer", SCORE]:
        raise UnsupportedError(
            f"modules.json: the modules {', '.join(kinds)}; supported: Transformer, {SCORE}"
        )
    if model.head.soft_cap is not None:
        raise UnsupportedError(
            f"{folder.config.origin}: a reranker with a final_logit_softcapping is not supported; "
            "supported: without one"
        )
    config = module_config(folder, modules[1].path)
    check_supported(config, module_input_name=("causal_logits",))
    ids = [config.integer("true_token_id", maximum=model.vocabulary_size - 1)]
    if config.get("false_token_id") is not None:
        ids.append(config.integer("false_token_id", maximum=model.vocabulary_size - 1))
    label = folder.tokenizer.id_to_token(ids[0]) or "LABEL_0"
    return Head(
        config=HeadConfig(
            kind=HeadKind.CLASSIFICATION,
            bias=model.head.bias,
            pooling=PoolingKind.LAST,
            num_labels=1,
        ),
        tasks=(Task.CLASSIFY, Task.RERANK),
        table=tuple(_difference(table, ids, is_tied=model.head.tied)),
        labels=(label,),
        score_function=score_function(folder, 1),
        pair_template=pair_template(folder),
        max_input_tokens=transformer_fields(folder).optional_integer("max_seq_length"),
    )


def _difference(table: Iterable[Rename], ids: list[int], *, is_tied: bool) -> list[Rename]:
    """The head's output matrix ``[hidden, 1]`` and its bias."""
    sources = {entry.target: entry for entry in table}
    if is_tied:  # [vocabulary, hidden]
        tokens = sources[TOKENS]
        entries = [Rename(OUTPUT, tokens.sources, _transposed(tokens.transform))]
    else:
        entries = [sources[OUTPUT]]
    if "head.output.bias" in sources:
        entries.append(sources["head.output.bias"])
    return [Rename(e.target, e.sources, _columns(e.transform, ids)) for e in entries]


def _transposed(transform: Transform) -> Transform:
    return lambda *weights: transform(*weights).T


def _columns(transform: Transform, ids: list[int]) -> Transform:
    """The column ``ids[0]``, minus ``ids[1]`` if there are two: ``[..., 1]``."""

    def select(*weights: Tensor) -> Tensor:
        columns = transform(*weights)[..., ids]
        return columns[..., :1] - columns[..., 1:] if len(ids) > 1 else columns

    return select


def pair_template(folder: HuggingFaceFolder) -> PairTemplate | None:
    """The template for pairs; None if the tokenizer alone joins both texts.

    Without ``modules.json``, a chat template that does not take pairs is for conversations.

    Raises:
        SourceError: a file is damaged.
        UnsupportedError: the template cannot be split into parts around both texts.
    """
    limits, modules = transformer_fields(folder), read_modules(folder)
    modalities = limits.fields("modality_config")
    if modules and "message" not in modalities:
        if _prompt(folder):
            raise UnsupportedError(
                f"{SENTENCE_TRANSFORMERS_FILE}: a prompt without a chat template is not supported"
            )
        return None
    if folder.chat_template is None:
        return None
    try:
        return _split(_renderer(folder, folder.chat_template, limits))
    except UnsupportedError:
        if modules:
            raise
        return None


def _prompt(folder: HuggingFaceFolder) -> str:
    """The default prompt, which is the instruction."""
    saved = folder.read_json(SENTENCE_TRANSFORMERS_FILE)
    fields = Fields(saved if isinstance(saved, dict) else {}, SENTENCE_TRANSFORMERS_FILE)
    name = fields.text("default_prompt_name", "")
    return fields.fields("prompts").text(name, "") if name else ""


Render = Callable[[str, str], str]


def _renderer(folder: HuggingFaceFolder, template: str, limits: Fields) -> Render:
    """Renders a query and a document as sentence-transformers does."""
    message = limits.fields("modality_config").fields("message")
    is_structured = message.text("format", "flat") == "structured"
    saved = limits.fields("processing_kwargs").fields("chat_template")
    prompt, special = _prompt(folder), folder.special_tokens
    options = {"add_generation_prompt": False, **saved}
    try:
        compiled = compile_template(template)
    except TemplateError as error:
        raise UnsupportedError(f"the chat template does not compile: {error}") from error

    def turn(role: str, text: str) -> dict[str, object]:
        content: object = [{"type": "text", "text": text}] if is_structured else text
        return {"role": role, "content": content}

    def render(query: str, document: str) -> str:
        messages = [turn("query", query), turn("document", document)]
        if prompt:
            messages.insert(0, turn("system", prompt))
        try:
            return render_template(compiled, messages, special, options)
        except TemplateError as error:
            raise UnsupportedError(f"the chat template does not render a pair: {error}") from error

    return render


def _split(render: Render) -> PairTemplate:
    """Splits the rendered text into the parts around both texts."""
    query, document = PROBES[0]
    before, found, rest = render(query, document).partition(query)
    between, also_found, after = rest.partition(document)
    if found and also_found:
        expected = (before + query + between + document + after for query, document in PROBES)
        if list(expected) == [render(*pair) for pair in PROBES]:
            return PairTemplate(before=before, between=between, after=after)
    raise UnsupportedError(
        "the chat template does not render a pair as a text with the query, and then the document, "
        "once each and unchanged"
    )
