"""Memory and time of exporting a large model: ``python -m tests.benchmarks.big_export``.

A Llama with TinyLlama's shape (1.1 billion parameters; Zhang et al. 2024) with random weights in
bf16, as a Hugging Face folder, is exported by ``python -m export`` in a child process. The
report has that process's peak resident memory, mapped files included, and its time.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.benchmarks import reports

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
# The standard deviation of Llama's initial weights.
DEVIATION = 0.02


def _shapes() -> dict[str, tuple[int, ...]]:
    hidden, inner, vocabulary = 2048, 5632, 32000
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, hidden),
        "lm_head.weight": (vocabulary, hidden),
        "model.norm.weight": (hidden,),
    }
    for layer in range(22):
        prefix = f"model.layers.{layer}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{prefix}.{name}.weight"] = (hidden,)
        for name, outputs in (("q", hidden), ("k", 256), ("v", 256), ("o", hidden)):
            shapes[f"{prefix}.self_attn.{name}_proj.weight"] = (outputs, hidden)
        shapes[f"{prefix}.mlp.gate_proj.weight"] = (inner, hidden)
        shapes[f"{prefix}.mlp.up_proj.weight"] = (inner, hidden)
        shapes[f"{prefix}.mlp.down_proj.weight"] = (hidden, inner)
    return shapes


def write_model(folder: Path) -> int:
    """Writes a random model to ``folder``; returns its number of parameters."""
    generator = torch.Generator().manual_seed(0)
    shapes = _shapes()
    weights = {
        name: (
            torch.ones(shape, dtype=torch.bfloat16)
            if len(shape) == 1
            else torch.empty(shape, dtype=torch.bfloat16).normal_(0, DEVIATION, generator=generator)
        )
        for name, shape in shapes.items()
    }
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    vocabulary = {f"w{index}": index for index in range(31999)} | {"[UNK]": 31999}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return sum(weight.numel() for weight in weights.values())


def measure(source: Path, precision: str, out: Path) -> dict[str, object]:
    """Exports ``source`` in a child process."""
    load_before, started = os.getloadavg()[0], time.monotonic()
    command = [sys.executable, "-m", "export", str(source), "--out", str(out / precision)]
    with subprocess.Popen([*command, "--precision", precision]) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"the export of {precision} failed")
    parity = json.loads((out / precision / "1" / "parity.json").read_text())
    return {
        "precision": precision,
        "peak_resident_bytes": usage.ru_maxrss * 1024,
        "seconds": round(time.monotonic() - started, 1),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "load_average_before": round(load_before, 2),
        "load_average_after": round(os.getloadavg()[0], 2),
        "bundle_bytes": sum(file.stat().st_size for file in (out / precision).rglob("*.*")),
        "parity": parity,
    }


def main() -> None:
    """Writes the JSON report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--precision", nargs="+", default=["fp32", "int8"])
    parser.add_argument("--folder", type=Path, help="folder for 15 GB of temporary files")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        source, out = Path(name) / "model", Path(name) / "bundles"
        source.mkdir()
        num_parameters = write_model(source)
        runs = []
        for precision in arguments.precision:
            runs.append(measure(source, precision, out))
            shutil.rmtree(out)
    pages = os.sysconf("SC_PHYS_PAGES") * resource.getpagesize()
    report = {
        "model": "Llama, TinyLlama's shape, random bf16 weights",
        "num_parameters": num_parameters,
        "num_cores": os.cpu_count(),
        "memory_bytes": pages,
        "runs": runs,
    }
    reports.write(report, arguments.json)


if __name__ == "__main__":
    main()
