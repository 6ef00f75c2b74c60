"""LoRA adapters (Hu et al. 2021) in *peft*'s files, and the layers that they change.

Formulas: with ``A [rank, inputs]``, ``B [outputs, rank]`` and the scale ``s = alpha / rank``, or
``alpha / √rank`` (Kalajdzievski 2023), a layer ``W [outputs, inputs]`` becomes ``W + s·BA``. With
magnitudes ``m [outputs]``, each row of the sum then gets the length ``m`` (DoRA, Liu et al. 2024).
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from export.errors import SourceError, UnsupportedError
from export.readers.fields import Fields
from export.readers.hugging_face import has_safetensors
from export.readers.pickles import pickles_in, refusal
from export.readers.safetensors_weights import SafetensorsWeights
from export.supported import check_supported

ADAPTER_FILE = "adapter_config.json"
ADAPTER_WEIGHTS_FILE = "adapter_model.safetensors"

_PREFIX = "base_model.model."
_PARTS = re.compile(
    r"(?P<layer>.+)\.(?P<part>lora_A\.weight|lora_B\.weight|lora_B\.bias|lora_embedding_A"
    r"|lora_embedding_B|lora_magnitude_vector(\.weight)?|token_adapter\.trainable_tokens_delta)"
)
# GPT-2's layers of the class Conv1D, whose weights are [inputs, outputs]. The class decides, as in
# *peft*: ``fan_in_fan_out`` is that of the layer that was adapted last.
_CONV1D = ("c_attn", "c_fc", "c_proj", "q_attn")
_ROWS = "token_adapter.trainable_tokens_delta"  # of an embedding
# Matching takes time that grows exponentially with repeated groups, and with this power else.
MAX_REPEATS = 3
# Of other initialisations, the adapter alone does not tell the weights that it was trained beside.
_INITIALISATIONS = (True, False, "gaussian", "orthogonal", "eva")


@dataclass(frozen=True, kw_only=True)
class LayerChange:
    """What an adapter changes of one layer. ``parts``: names of its weights, by their role."""

    name: str
    parts: Mapping[str, str]
    alpha: float


class LoraAdapter:
    """An adapter: changes of layers, and whole weights that take the place of the model's.

    Args:
        config: its configuration.
        weights: its weights, by *peft*'s names.
        model_type: that of the model that it changes.

    Attributes:
        layers: the layers to whose weights something is added.
        whole: its whole weights, by the names of those whose place they take.

    Raises:
        SourceError: it is damaged.
        UnsupportedError: it is no LoRA adapter, or one that changes more than these weights.
    """

    def __init__(self, config: Fields, weights: Mapping[str, Tensor], model_type: str) -> None:
        check_supported(
            config,
            peft_type=("LORA",),
            init_lora_weights=_INITIALISATIONS,
            layer_replication=([],),
            target_parameters=([],),
            megatron_config=({},),
            use_qalora=(False,),
            use_bdlora=(False,),
            alora_invocation_tokens=([],),
            arrow_config=({},),
            kasa_config=({},),
        )
        self.config, self._weights = config, weights
        self._transposed = _CONV1D if model_type == "gpt2" else ()
        self.whole: dict[str, str] = {}
        parts: dict[str, dict[str, str]] = {}
        for name in weights:
            own = name.removeprefix(_PREFIX).replace(".base_layer.", ".")
            own = own.replace(".modules_to_save.", ".")
            if found := _PARTS.fullmatch(own):
                role = found["part"].removesuffix(".weight")
                parts.setdefault(found["layer"], {})[role] = name
            elif "lora_" in own or "token_adapter" in own:
                raise UnsupportedError(f"{ADAPTER_WEIGHTS_FILE}: {name} is not supported")
            elif ".original_module." not in own:
                self.whole[own] = name
        self.layers = [
            LayerChange(name=name, parts=of_layer, alpha=self._alpha(name))
            for name, of_layer in parts.items()
        ]

    def trained_modules(self) -> set[str]:
        """The last parts of the names of modules that were trained, without those tied to others.

        Rows of a token table count only if its output matrix has rows of its own.
        """
        names = [
            layer.name
            for layer in self.layers
            if set(layer.parts) != {_ROWS} or layer.name == "lm_head"
        ]
        if not self.config.flag("ensure_weight_tying", False):
            names += self.config.texts("modules_to_save")
        return {name.rpartition(".")[2] for name in names}

    def num_labels(self) -> int | None:
        """The number of labels of the classifier that the adapter brings; None without one."""
        for name in ("score", "classifier", "classifier.out_proj"):
            if (own := self.whole.get(f"{name}.weight")) is not None:
                return len(self._weights[own])
        return None

    def read(self, name: str) -> Tensor:
        """The adapter's weight ``name`` in fp32."""
        return self._weights[name].float()

    def changed(self, layer: LayerChange, weight: Tensor) -> Tensor:
        """The weight of ``layer`` with the adapter, in fp32.

        Raises:
            SourceError: shapes do not fit.
            UnsupportedError: the layer is neither linear nor an embedding.
        """
        parts = {role: self.read(name) for role, name in layer.parts.items()}
        rows = parts.pop(_ROWS, None)
        weight = weight.float()
        if "lora_embedding_A" in parts or "lora_embedding_B" in parts:
            a, b = self._pair(layer, parts, "lora_embedding_A", "lora_embedding_B")
            if "lora_magnitude_vector" in parts:
                raise UnsupportedError(f"{layer.name}: an embedding with DoRA is not supported")
            _check_shape(layer, weight, (a.shape[1], len(b)))
            weight = torch.add(weight, (b @ a).T, alpha=self._scale(layer, a))
        elif parts:
            a, b = self._pair(layer, parts, "lora_A", "lora_B")
            weight = self._linear(layer, weight, a, b, parts.get("lora_magnitude_vector"))
        return weight if rows is None else self._with_rows(layer, weight, rows)

    def changed_bias(self, layer: LayerChange, bias: Tensor) -> Tensor:
        """The bias of ``layer`` with that of the adapter."""
        parts = {role: self.read(name) for role, name in layer.parts.items()}
        a, _ = self._pair(layer, parts, "lora_A", "lora_B")
        delta = parts["lora_B.bias"]
        _check_shape(layer, bias, tuple(delta.shape))
        return torch.add(bias.float(), delta, alpha=self._scale(layer, a))

    def _linear(
        self, layer: LayerChange, weight: Tensor, a: Tensor, b: Tensor, magnitudes: Tensor | None
    ) -> Tensor:
        transposed = layer.name.rpartition(".")[2] in self._transposed
        weight = weight.T if transposed else weight
        _check_shape(layer, weight, (len(b), a.shape[1]))
        weight = torch.add(weight, b @ a, alpha=self._scale(layer, a))
        if magnitudes is not None:
            if magnitudes.numel() != len(weight):
                raise SourceError(f"{layer.name}: {magnitudes.numel()} magnitudes")
            weight = weight * (magnitudes.flatten() / weight.norm(dim=1))[:, None]
        return weight.T.contiguous() if transposed else weight

    def _pair(
        self, layer: LayerChange, parts: Mapping[str, Tensor], first: str, second: str
    ) -> tuple[Tensor, Tensor]:
        if first not in parts or second not in parts:
            raise SourceError(f"{ADAPTER_WEIGHTS_FILE}: {layer.name} lacks {first} or {second}")
        a, b = parts[first], parts[second]
        if a.dim() != 2 or b.dim() != 2:
            raise UnsupportedError(f"{layer.name}: the adapter of a convolution is not supported")
        if len(a) != b.shape[1] or not len(a):
            raise SourceError(f"{layer.name}: {first} has {len(a)} rows, {second} {b.shape[1]}")
        return a, b

    def _with_rows(self, layer: LayerChange, weight: Tensor, rows: Tensor) -> Tensor:
        """An embedding with the trained rows of some tokens."""
        ids = list(self._token_ids(layer))
        if rows.shape != (len(ids), *weight.shape[1:]) or max(ids, default=0) >= len(weight):
            raise SourceError(f"{layer.name}: trainable_token_indices does not fit the weights")
        weight = weight.clone()
        weight[ids] = rows
        return weight

    def _token_ids(self, layer: LayerChange) -> tuple[int, ...]:
        field = "trainable_token_indices"
        if not isinstance(self.config.get(field), dict):
            return self.config.integers(field)
        by_layer = self.config.fields(field)
        names = [name for name in by_layer if f".{layer.name}".endswith(f".{name}")]
        return by_layer.integers(names[0]) if names else ()

    def _alpha(self, layer: str) -> float:
        """``alpha_pattern`` has the regular expressions of layers with another ``lora_alpha``."""
        patterns = self.config.fields("alpha_pattern")
        for pattern in patterns:
            if re.search(r"\)[*+?{]", pattern) or len(re.findall("[*+{]", pattern)) > MAX_REPEATS:
                raise UnsupportedError(f"{patterns.origin}: {pattern!r} repeats too much")
            try:
                is_found = re.match(rf"(.*\.)?({pattern})$", layer)
            except re.error as error:
                raise SourceError(f"{patterns.origin}: {pattern!r}: {error}") from error
            if is_found:
                return patterns.number(pattern)
        return self.config.number("lora_alpha", 8.0)

    def _scale(self, layer: LayerChange, a: Tensor) -> float:
        rank = len(a)
        root = self.config.flag("use_rslora", default=False)
        return layer.alpha / (math.sqrt(rank) if root else rank)


def _check_shape(layer: LayerChange, weight: Tensor, shape: tuple[int, ...]) -> None:
    """Raises ``SourceError`` unless ``weight`` has the shape of what is to be added."""
    if weight.shape != shape:
        raise SourceError(
            f"{layer.name}: the adapter changes {list(shape)} values, the weight has "
            f"{list(weight.shape)}"
        )


def is_adapter(path: Path) -> bool:
    """Whether ``path`` is the folder of an adapter without the model that it changes."""
    return (path / ADAPTER_FILE).is_file() and not has_safetensors(path)


def read_adapter(path: Path, config: Fields, model_type: str) -> LoraAdapter:
    """The adapter in the folder ``path`` for a model of the type ``model_type``.

    ``config``: its file ``ADAPTER_FILE``.

    Raises:
        SourceError: its weights are missing or damaged.
        UnsupportedError: they are a pickle, or of a kind that is not supported.
    """
    file = path / ADAPTER_WEIGHTS_FILE
    if not file.is_file() and (pickles := pickles_in(path)):
        raise refusal(pickles, file)
    return LoraAdapter(config, SafetensorsWeights([file]), model_type)
