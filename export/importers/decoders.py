"""The importers of decoders from ``transformers`` folders; a new family is an entry here."""

from collections.abc import Callable

from export.checkpoint import Checkpoint
from export.importers.apertus import import_apertus
from export.importers.bloom import import_bloom
from export.importers.cohere import import_cohere, import_cohere2
from export.importers.deepseek import (
    import_deepseek_v2,
    import_deepseek_v3,
    import_glm4_moe_lite,
    import_youtu,
)
from export.importers.dots1 import import_dots1
from export.importers.ernie4_5_moe import import_ernie4_5_moe
from export.importers.exaone4 import import_exaone4
from export.importers.falcon import import_falcon
from export.importers.gemma import (
    import_gemma,
    import_gemma2,
    import_gemma3,
    import_vaultgemma,
)
from export.importers.glm import import_glm, import_glm4
from export.importers.glm4_moe import import_glm4_moe
from export.importers.gpt2 import import_gpt2
from export.importers.gpt_bigcode import import_gpt_bigcode
from export.importers.gpt_neo import import_gpt_neo
from export.importers.gpt_neox import import_gpt_neox
from export.importers.gpt_oss import import_gpt_oss
from export.importers.gptj import import_codegen, import_gptj
from export.importers.granite import (
    import_granite,
    import_granitemoe,
    import_granitemoehybrid,
    import_granitemoeshared,
)
from export.importers.hunyuan import import_hunyuan, import_hunyuan_moe
from export.importers.hyperclovax import import_hyperclovax
from export.importers.lfm2 import import_lfm2, import_lfm2_moe
from export.importers.lfm3 import import_lfm3
from export.importers.llama import import_llama
from export.importers.llama_like import (
    import_arcee,
    import_ernie4_5,
    import_helium,
    import_jais2,
    import_ministral,
    import_seed_oss,
)
from export.importers.mellum import import_mellum
from export.importers.minicpm3 import import_minicpm3
from export.importers.mistral import import_ministral3, import_mistral
from export.importers.mixtral import import_mixtral
from export.importers.modernbert_decoder import import_modernbert_decoder
from export.importers.mpt import import_mpt
from export.importers.nanochat import import_nanochat
from export.importers.nemotron import import_nemotron
from export.importers.olmo import (
    import_flex_olmo,
    import_olmo,
    import_olmo2,
    import_olmo3,
    import_olmoe,
)
from export.importers.opt import import_opt
from export.importers.persimmon import import_persimmon
from export.importers.phi import import_phi
from export.importers.phi3 import import_phi3
from export.importers.phimoe import import_phimoe
from export.importers.qwen import import_qwen2, import_qwen2_moe, import_qwen3, import_qwen3_moe
from export.importers.smollm3 import import_smollm3
from export.importers.stablelm import import_stablelm
from export.importers.starcoder2 import import_starcoder2
from export.importers.xglm import import_biogpt, import_xglm
from export.readers.hugging_face import HuggingFaceFolder

# By ``model_type`` of config.json.
DECODERS: dict[str, Callable[[HuggingFaceFolder], Checkpoint]] = {
    "apertus": import_apertus,
    "arcee": import_arcee,
    "biogpt": import_biogpt,
    "bloom": import_bloom,
    "codegen": import_codegen,
    "cohere": import_cohere,
    "cohere2": import_cohere2,
    "deepseek_v2": import_deepseek_v2,
    "deepseek_v3": import_deepseek_v3,
    "dots1": import_dots1,
    "ernie4_5": import_ernie4_5,
    "ernie4_5_moe": import_ernie4_5_moe,
    "exaone4": import_exaone4,
    "falcon": import_falcon,
    "flex_olmo": import_flex_olmo,
    "gemma": import_gemma,
    "gemma2": import_gemma2,
    "gemma3_text": import_gemma3,
    "glm": import_glm,
    "glm4": import_glm4,
    "glm4_moe": import_glm4_moe,
    "glm4_moe_lite": import_glm4_moe_lite,
    "gpt2": import_gpt2,
    "gpt_bigcode": import_gpt_bigcode,
    "gpt_neo": import_gpt_neo,
    "gpt_neox": import_gpt_neox,
    "gpt_oss": import_gpt_oss,
    "gptj": import_gptj,
    "granite": import_granite,
    "granitemoe": import_granitemoe,
    "granitemoehybrid": import_granitemoehybrid,
    "granitemoeshared": import_granitemoeshared,
    "helium": import_helium,
    "hunyuan_v1_dense": import_hunyuan,
    "hunyuan_v1_moe": import_hunyuan_moe,
    "hyperclovax": import_hyperclovax,
    "jais2": import_jais2,
    "lfm2": import_lfm2,
    "lfm2_moe": import_lfm2_moe,
    "lfm3": import_lfm3,
    "llama": import_llama,
    "mellum": import_mellum,
    "minicpm3": import_minicpm3,
    "ministral": import_ministral,
    "ministral3": import_ministral3,
    "mistral": import_mistral,
    "mixtral": import_mixtral,
    "modernbert-decoder": import_modernbert_decoder,
    "mpt": import_mpt,
    "nanochat": import_nanochat,
    "nemotron": import_nemotron,
    "olmo": import_olmo,
    "olmo2": import_olmo2,
    "olmo3": import_olmo3,
    "olmoe": import_olmoe,
    "opt": import_opt,
    "persimmon": import_persimmon,
    "phi": import_phi,
    "phi3": import_phi3,
    "phimoe": import_phimoe,
    "qwen2": import_qwen2,
    "qwen2_moe": import_qwen2_moe,
    "qwen3": import_qwen3,
    "qwen3_moe": import_qwen3_moe,
    "seed_oss": import_seed_oss,
    "smollm3": import_smollm3,
    "stablelm": import_stablelm,
    "starcoder2": import_starcoder2,
    "vaultgemma": import_vaultgemma,
    "xglm": import_xglm,
    "youtu": import_youtu,
}
