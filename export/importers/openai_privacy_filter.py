"""OpenAI's privacy filter (OpenAI 2026): gpt-oss as an encoder that tags personal data.

Windows are on both sides of a token, rotary positions rotate neighbouring dimensions, and gates
come before values.
"""

from export.checkpoint import Checkpoint
from export.importers.encoders import assemble
from export.importers.gated_decoder import DecoderSizes
from export.importers.gated_encoder import gated_encoder
from export.importers.gpt_oss import NAMES, experts_of, experts_table, positions_of
from export.importers.heads import Head, HeadReader, token_classifier
from export.importers.renaming import interleave_halves
from export.importers.rotary import rotary_rows
from export.importers.sentence_transformers import embedder
from export.readers.hugging_face import HuggingFaceFolder


def import_openai_privacy_filter(folder: HuggingFaceFolder) -> Checkpoint:
    """The model in ``folder``, ready for a bundle.

    Raises:
        SourceError, UnsupportedError, WeightsError: see :mod:`export.errors`.
    """
    config = folder.config
    sizes = DecoderSizes.of(config, epsilon=1e-5, head_size=64)
    positions = positions_of(config, sizes.head_size)
    bias = config.flag("attention_bias", True)
    attention = sizes.attention(
        input_bias=bias,
        output_bias=bias,
        rotary=positions.config,
        window=config.positive("sliding_window", 128) + 1,  # of the token and one side
        has_sinks=True,
    )
    layer = sizes.layer(attention, bias=True, experts=experts_of(config))
    model = sizes.model((layer,) * sizes.num_layers, positions.max_positions)
    body = gated_encoder(
        "model",
        model,
        names=NAMES,
        qkv=rotary_rows(attention, interleaved=True),
        experts=experts_table(interleave_halves),
    )
    return assemble(folder, body, HEADS, "OpenAIPrivacyFilterForTokenClassification")


def _token_classifier(folder: HuggingFaceFolder) -> Head:
    return token_classifier(folder, output="score")


HEADS: dict[str, HeadReader] = {
    "OpenAIPrivacyFilterModel": embedder,
    "OpenAIPrivacyFilterForTokenClassification": _token_classifier,
}
