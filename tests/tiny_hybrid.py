"""A decoder that counts, with short convolutions between attentions as in LFM2; kept in build/."""

from msgspec import structs

from export.checkpoint import Checkpoint
from model.bundle import SpecialTokens, Task
from model.config import MixerKind, ShortConvolutionConfig, StackConfig
from tests.tiny import COUNTING, COUNTING_LAYER, counting_batches
from tests.tiny_training import BOS, EOS, PAD, UNKNOWN, character_tokenizer, trained
from train.recipe import TrainingRecipe

NAME, INT8_NAME = "tiny-hybrid", "tiny-hybrid-int8"
CONVOLUTION_LAYER = structs.replace(
    COUNTING_LAYER,
    mixer=MixerKind.SHORT_CONVOLUTION,
    attention=None,
    convolution=ShortConvolutionConfig(size=3),
)
LAYERS = (CONVOLUTION_LAYER, COUNTING_LAYER, CONVOLUTION_LAYER)
CONFIG = structs.replace(
    COUNTING, decoder=StackConfig(layers=LAYERS, final_norm=COUNTING_LAYER.norm)
)


def counting(name: str = NAME) -> Checkpoint:
    """After ``7,`` comes ``8,9,10,11.``."""
    training = TrainingRecipe(
        num_steps=500, learning_rate=5e-3, warmup_steps=100, label_smoothing=0.1
    )
    return Checkpoint(
        config=CONFIG,
        weights=trained("hybrid-counting", CONFIG, counting_batches, training, 50),
        tokenizer_json=character_tokenizer(begins=True, ends=False).to_str(),
        architecture="Lfm2ForCausalLM",
        tasks=(Task.GENERATE,),
        special_tokens=SpecialTokens(eos=(EOS,), pad=PAD, bos=BOS, unk=UNKNOWN),
        license="Apache-2.0",
        name=name,
        sample_inputs=("7,", "98,", "113,"),
    )
