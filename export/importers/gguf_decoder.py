"""Shared by the importers of decoders in GGUF, as llama.cpp converts them."""

from collections.abc import Iterator, Mapping

from torch import Tensor

from export.checkpoint import Checkpoint, check_weights
from export.errors import SourceError, WeightsError
from export.importers.gated_decoder import TARGET, DecoderSizes, Names
from export.importers.gguf_tokenizer import end_tokens, gguf_tokenizer
from export.importers.norms import rms_norm
from export.importers.renaming import Rename, rename
from export.importers.samples import ENGLISH_PROMPTS
from export.importers.support import MAX_LAYERS, bundle_name, divide_heads
from export.readers.fields import Fields
from export.readers.gguf import GgufFile
from export.supported import check_supported, lookup
from model.bundle import SpecialTokens, Task
from model.config import ModelConfig, NormConfig, NormKind
from model.position_config import LinearScaling, ListedScaling, RotaryConfig, RotaryScaling

FACTORS = "rope_freqs.weight"
_SOURCE = "blk.{n}"
GGUF: Names = {
    "embedding.tokens": ("token_embd",),
    "embedding.positions": ("position_embd",),
    "decoder.final_norm": ("output_norm",),
    "head.output": ("output",),
    f"{TARGET}.mixer_norm": (f"{_SOURCE}.attn_norm",),
    f"{TARGET}.mixer.qkv": tuple(f"{_SOURCE}.attn_{name}" for name in "qkv"),
    f"{TARGET}.mixer.query_norm": (f"{_SOURCE}.attn_q_norm",),
    f"{TARGET}.mixer.key_norm": (f"{_SOURCE}.attn_k_norm",),
    f"{TARGET}.mixer.output": (f"{_SOURCE}.attn_output",),
    f"{TARGET}.feed_forward_norm": (f"{_SOURCE}.ffn_norm",),
    f"{TARGET}.feed_forward.input": (f"{_SOURCE}.ffn_gate", f"{_SOURCE}.ffn_up"),
    f"{TARGET}.feed_forward.output": (f"{_SOURCE}.ffn_down",),
}
# Feed-forwards without a gate; in Phi-3, the gates are the first half of the same matrix.
UNGATED: Names = {**GGUF, f"{TARGET}.feed_forward.input": (f"{_SOURCE}.ffn_up",)}
PACKED: Names = {**UNGATED, f"{TARGET}.mixer.qkv": (f"{_SOURCE}.attn_qkv",)}


class GgufModel:
    """The metadata of a model of the architecture ``kind``, without its prefix."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.kind = file.metadata.text("general.architecture")
        prefix = f"{self.kind}."
        own = {
            name.removeprefix(prefix): value
            for name, value in file.metadata.items()
            if name.startswith(prefix)
        }
        self.fields = Fields(own, f"{file.metadata.origin}: {self.kind}")

    def sizes(self, *, partial: bool = False) -> DecoderSizes:
        """The sizes of the model.

        Args:
            partial: whether rotary positions may cover only a part of each head.
        """
        fields, weights = self.fields, self.file.weights
        hidden_size = fields.positive("embedding_length")
        num_heads = fields.positive("attention.head_count")
        head_size = fields.optional_integer("attention.key_length") or divide_heads(
            fields.origin, hidden_size, num_heads
        )
        values: dict[str, tuple[object, ...]] = {
            "attention.value_length": (head_size,),
            "expert_count": (0,),
        }
        if not partial:
            values["rope.dimension_count"] = (head_size,)
        check_supported(fields, **values)
        return DecoderSizes(
            origin=fields.origin,
            vocabulary_size=len(self.file.metadata.texts("tokenizer.ggml.tokens")),
            hidden_size=hidden_size,
            inner_size=fields.positive("feed_forward_length"),
            num_layers=fields.positive("block_count", maximum=MAX_LAYERS),
            num_heads=num_heads,
            num_kv_heads=fields.positive("attention.head_count_kv", num_heads),
            head_size=head_size,
            norm=self._norm(),
            tied="output.weight" not in weights,
        )

    def _norm(self) -> NormConfig:
        epsilon = self.fields.optional_number("attention.layer_norm_epsilon")
        if epsilon is None:
            return rms_norm(self.fields.number("attention.layer_norm_rms_epsilon"))
        has_bias = "output_norm.bias" in self.file.weights
        return NormConfig(kind=NormKind.LAYER, epsilon=epsilon, bias=has_bias)

    def has(self, name: str) -> bool:
        """Whether the first layer has the tensor ``name``."""
        return f"blk.0.{name}" in self.file.weights

    @property
    def max_positions(self) -> int:
        return self.fields.positive("context_length")

    def rotary(self, sizes: DecoderSizes) -> RotaryConfig:
        """The rotary positions; Llama 3.1 and later store a factor per frequency in the file."""
        size = self.fields.positive("rope.dimension_count", sizes.head_size)
        if size > sizes.head_size or size % 2:
            raise SourceError(
                f"{self.fields.origin}: rope.dimension_count {size} does not fit {sizes.head_size}"
            )
        scaling = self._linear_scaling()
        if FACTORS in self.file.weights:
            scaling = self.listed(FACTORS, size)
        return RotaryConfig(
            base=self.fields.number("rope.freq_base", 10_000.0),
            size=None if size == sizes.head_size else size,
            scaling=scaling,
        )

    def _linear_scaling(self) -> RotaryScaling | None:
        """Without a type, a factor is linear; ``rope.scale_linear`` is its name in old files."""
        fields = self.fields
        kind = fields.text("rope.scaling.type", "")
        kinds = {"": 1.0, "none": None, "linear": None}
        default = lookup(kinds, kind, f"{fields.origin}: rope.scaling.type")
        if kind == "none":
            return None
        name = "rope.scaling.factor"
        if name not in fields and "rope.scale_linear" in fields:
            name = "rope.scale_linear"
        factor = fields.number(name, default)
        if factor <= 0:
            raise SourceError(f"{fields.origin}: {name} is {factor}")
        return None if factor == 1 and not kind else LinearScaling(factor=factor)

    def listed(self, name: str, size: int) -> ListedScaling:
        """The factors in the tensor ``name`` for ``size`` rotated dimensions."""
        factors = tuple(self.file.weights[name].flatten().tolist())
        if len(factors) != size // 2 or not min(factors) > 0:
            raise SourceError(f"{self.file.metadata.origin}: {name} does not fit the heads")
        return ListedScaling(factors=factors)

    def checkpoint(
        self,
        model: ModelConfig,
        architecture: str,
        table: list[Rename],
        weights: Mapping[str, Tensor] | None = None,
        *,
        ignored: tuple[str, ...] = (FACTORS,),
    ) -> Checkpoint:
        """The model in the file, ready for a bundle.

        Args:
            architecture: the name in ``transformers``.
            weights: default: those of the file.
        """
        metadata = self.file.metadata
        renamed = rename(table, weights or self.file.weights, ignored=ignored)
        check_weights(model, renamed)
        ids = end_tokens(metadata)
        return Checkpoint(
            config=model,
            weights=renamed,
            tokenizer_json=gguf_tokenizer(metadata),
            architecture=architecture,
            tasks=(Task.GENERATE,),
            special_tokens=SpecialTokens(
                eos=ids,
                pad=metadata.integer("tokenizer.ggml.padding_token_id", next(iter(ids), 0)),
                bos=metadata.optional_integer("tokenizer.ggml.bos_token_id"),
                unk=metadata.optional_integer("tokenizer.ggml.unknown_token_id"),
            ),
            license=metadata.text("general.license", "unknown"),
            name=bundle_name(self.file.path),
            chat_template=metadata.text("tokenizer.chat_template", "") or None,
            sample_inputs=ENGLISH_PROMPTS,
        )


class Unpermuted(Mapping[str, Tensor]):
    """A GGUF file's weights, with the rows of Q and K in half-split order.

    llama.cpp's converter interleaves the two halves of each head's rows
    (``convert_hf_to_gguf.py``, ``LlamaModel.permute``); rotary positions here are half-split.
    """

    def __init__(self, weights: Mapping[str, Tensor], shape: DecoderSizes) -> None:
        self._weights = weights
        self._num_heads = {"attn_q": shape.num_heads, "attn_k": shape.num_kv_heads}

    def __getitem__(self, name: str) -> Tensor:
        weight = self._weights[name]
        heads = next((n for part, n in self._num_heads.items() if f".{part}." in name), None)
        if heads is None:
            return weight
        if weight.shape[0] % (2 * heads):
            raise WeightsError(f"wrong shapes: {name} {list(weight.shape)} has {heads} heads")
        halves = weight.reshape(heads, weight.shape[0] // heads // 2, 2, -1)
        return halves.swapaxes(1, 2).reshape(weight.shape)

    def __contains__(self, name: object) -> bool:
        return name in self._weights

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)
