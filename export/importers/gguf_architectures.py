"""The importers of decoders in GGUF; a new architecture is an entry here."""

from collections.abc import Callable

from export.checkpoint import Checkpoint
from export.importers.decoders_gguf import (
    import_command_r_gguf,
    import_falcon_gguf,
    import_gpt2_gguf,
    import_gptneox_gguf,
    import_olmo2_gguf,
    import_phi2_gguf,
    import_phi3_gguf,
    import_stablelm_gguf,
    import_starcoder2_gguf,
)
from export.importers.gemma_gguf import (
    import_gemma2_gguf,
    import_gemma3_gguf,
    import_gemma_gguf,
)
from export.importers.lfm2_gguf import import_lfm2_gguf
from export.importers.llama_gguf import (
    import_granite_gguf,
    import_llama_gguf,
    import_qwen2_gguf,
    import_qwen3_gguf,
)
from export.readers.gguf import GgufFile

# By ``general.architecture`` of the metadata.
GGUF: dict[str, Callable[[GgufFile], Checkpoint]] = {
    "command-r": import_command_r_gguf,
    "falcon": import_falcon_gguf,
    "gemma": import_gemma_gguf,
    "gemma2": import_gemma2_gguf,
    "gemma3": import_gemma3_gguf,
    "gpt2": import_gpt2_gguf,
    "gptneox": import_gptneox_gguf,
    "granite": import_granite_gguf,
    "lfm2": import_lfm2_gguf,
    "llama": import_llama_gguf,
    "olmo2": import_olmo2_gguf,
    "phi2": import_phi2_gguf,
    "phi3": import_phi3_gguf,
    "qwen2": import_qwen2_gguf,
    "qwen3": import_qwen3_gguf,
    "stablelm": import_stablelm_gguf,
    "starcoder2": import_starcoder2_gguf,
}
