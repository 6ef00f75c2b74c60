"""A language model that reranks, with random weights, as sentence-transformers 6.2 saves it."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from tests.export.importers.support import edit_json, randomise
from tests.families.gated import SMALL

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
YES, NO = 90, 40
# Of Qwen3-Reranker (Qwen Team 2025), with another wording.
TEMPLATE = """<|im_start|>system
Does the document answer the query? "yes" or "no"<|im_end|>
<|im_start|>user
<Task>: {{ messages | selectattr("role", "eq", "system") | map(attribute="content") | first \
| default("Find answers") }}
<Query>: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}
<Document>: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") \
| first }}<|im_end|>
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
STRUCTURED = (
    "{% for message in messages %}{{ message.role }}: {{ message.content[0].text }}\n{% endfor %}?"
)
PAIRS = (
    ("Which river is longer?", "The Nile: 6,650 km."),
    ("  <b>Rivers</b>", "\n{The} {{Amazon}} été \n"),
    ("x", "The bank of the river." * 4),
)


def tokenizer() -> Tokenizer:
    """Bytes as tokens. It ends texts with a special token, which templates do not use."""
    tokens = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    found = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, []))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    found.add_special_tokens(list(SPECIAL))
    found.post_processor = processors.TemplateProcessing(
        single="$A <|endoftext|>",
        pair="$A $B <|endoftext|>",
        special_tokens=[("<|endoftext|>", 0)],
    )
    return found


def save(folder: Path, template: str = TEMPLATE, **changes: Any) -> Any:
    """Writes a model into ``folder``, and returns that of transformers."""
    config = Qwen3Config(**SMALL | {"vocab_size": 260, "head_dim": 32, **changes})
    config.max_position_embeddings = 512
    model = randomise(Qwen3ForCausalLM(config))
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer(), pad_token=SPECIAL[0], eos_token=SPECIAL[2]
    ).save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(template)
    modules = (
        "sentence_transformers.base.modules.transformer.Transformer",
        ("sentence_transformers.cross_encoder.modules.logit_score.LogitScore"),
    )
    rows = [
        {"idx": 0, "name": "0", "path": "", "type": modules[0]},
        {"idx": 1, "name": "1", "path": "1_LogitScore", "type": modules[1]},
    ]
    (folder / "modules.json").write_text(json.dumps(rows))
    edit_json(
        folder / "sentence_bert_config.json",
        transformer_task="text-generation",
        modality_config={
            "text": {"method": "forward", "method_output_name": "logits"},
            "message": {
                "method": "forward",
                "method_output_name": "logits",
                "format": "structured" if template == STRUCTURED else "flat",
            },
        },
        module_output_name="causal_logits",
        processing_kwargs={"chat_template": {"add_generation_prompt": True}},
    )
    (folder / "1_LogitScore").mkdir()
    edit_json(
        folder / "1_LogitScore" / "config.json",
        true_token_id=YES,
        false_token_id=NO,
        module_input_name="causal_logits",
    )
    return model


def messages(query: str, document: str, prompt: str = "", *, structured: bool = False) -> list[Any]:
    """What the chat template of a pair gets."""

    def turn(role: str, text: str) -> dict[str, Any]:
        return {"role": role, "content": [{"type": "text", "text": text}] if structured else text}

    system = [turn("system", prompt)] if prompt else []
    return [*system, turn("query", query), turn("document", document)]


@torch.no_grad()
def scores(
    model: Any, folder: Path, prompt: str = "", *, template: str = TEMPLATE, has_no: bool = True
) -> list[float]:
    """The logit of yes, less that of no, after each of :data:`PAIRS`."""
    library = PreTrainedTokenizerFast.from_pretrained(folder)
    found = []
    for pair in PAIRS:
        ids = library.apply_chat_template(
            messages(*pair, prompt, structured=template == STRUCTURED),
            add_generation_prompt=True,
            return_tensors="pt",
        )["input_ids"]
        logits = model(ids).logits[0, -1]
        found.append(float(logits[YES] - logits[NO] * has_no))
    return found
