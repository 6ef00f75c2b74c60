"""StarCoder 2 (Lozhkov et al. 2024): Llama with layer norms, biases and a plain feed-forward."""

from export.checkpoint import Checkpoint
from export.importers.activations import activation
from export.importers.causal import architecture_of, causal_checkpoint
from export.importers.gated_decoder import HUGGING_FACE, TARGET, DecoderSizes, Names, gated_table
from export.importers.norms import layer_norm
from export.importers.rotary import rotary
from export.readers.hugging_face import HuggingFaceFolder
from export.supported import check_supported

NAMES: Names = {
    **HUGGING_FACE,
    f"{TARGET}.feed_forward.input": ("model.layers.{n}.mlp.c_fc",),
    f"{TARGET}.feed_forward.output": ("model.layers.{n}.mlp.c_proj",),
}


def import_starcoder2(folder: HuggingFaceFolder) -> Checkpoint:
    """The ``Starcoder2ForCausalLM`` in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    architecture = architecture_of(config, "Starcoder2ForCausalLM")
    check_supported(config, mlp_type=("default",), norm_type=("layer_norm",))
    sizes = DecoderSizes.of(config, tied=True, norm=layer_norm(config, "norm_epsilon"))
    positions = rotary(config, sizes.head_size)
    bias = config.flag("use_bias", True)
    layer = sizes.layer(
        sizes.attention(
            input_bias=bias,
            output_bias=bias,
            rotary=positions.config,
            window=config.optional_integer("sliding_window"),
        ),
        activation=activation(config, "hidden_act", "gelu_pytorch_tanh"),
        gated=False,
        bias=bias,
    )
    model = sizes.model((layer,) * sizes.num_layers, positions.max_positions)
    return causal_checkpoint(folder, model, architecture, gated_table(model, NAMES))
