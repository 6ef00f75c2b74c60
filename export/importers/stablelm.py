"""StableLM (Stability AI 2023 and 2024): Llama with layer norms and partly rotated heads.

StableLM 2 may normalize each head's queries and keys, with separate weights per head, and its
larger model has parallel branches.
"""

import torch
from torch import Tensor

from export.checkpoint import Checkpoint
from export.importers.activations import activation
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import HUGGING_FACE, TARGET, DecoderSizes, Names, gated_table
from export.importers.norms import layer_norm
from export.importers.rotary import rotary, rotary_dimensions_first, rotary_rows
from export.readers.hugging_face import HuggingFaceFolder
from model.config import Branches, HeadNormScope

_SOURCE = "model.layers.{n}"


def import_stablelm(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``StableLmForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, "StableLmForCausalLM")
    sizes = DecoderSizes.of(config, norm=layer_norm(config))
    positions = rotary(config, sizes.head_size, default_fraction=0.25)
    has_norms = config.flag("qk_layernorm", False)
    is_parallel = config.flag("use_parallel_residual", False)
    attention = sizes.attention(
        input_bias=config.flag("use_qkv_bias", False),
        output_bias=False,
        rotary=positions.config,
        head_norm=layer_norm(config, bias=False) if has_norms else None,
        head_norm_scope=HeadNormScope.EACH_HEAD,
    )
    layer = sizes.layer(
        attention,
        activation=activation(config, "hidden_act", "silu"),
        branches=Branches.PARALLEL if is_parallel else Branches.SEQUENTIAL,
    )
    model = sizes.model((layer,) * sizes.num_layers, positions.max_positions)
    names = _names(sizes, is_parallel=is_parallel)
    order = rotary_dimensions_first(sizes.head_size, positions.config)

    def head_norm(*weights: Tensor) -> Tensor:
        return torch.stack(weights)[:, order]

    table = gated_table(model, names, qkv=rotary_rows(attention), head_norm=head_norm)
    return causal_checkpoint(folder, model, architecture, table)


def _names(sizes: DecoderSizes, *, is_parallel: bool) -> Names:
    attention = f"{_SOURCE}.self_attn"
    norms = {
        f"{TARGET}.mixer.query_norm": _numbered(f"{attention}.q_layernorm", sizes.num_heads),
        f"{TARGET}.mixer.key_norm": _numbered(f"{attention}.k_layernorm", sizes.num_kv_heads),
    }
    if is_parallel:  # both branches read one norm
        norms[f"{TARGET}.feed_forward_norm"] = (f"{_SOURCE}.input_layernorm",)
    return {**HUGGING_FACE, **norms}


def _numbered(name: str, num_heads: int) -> tuple[str, ...]:
    return tuple(f"{name}.norms.{head}" for head in range(num_heads))
