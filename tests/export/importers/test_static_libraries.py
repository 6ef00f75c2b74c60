"""Static embeddings that model2vec and sentence-transformers save, and their vectors of texts."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from client.encoder_types import LongInput
from client.sync import Client
from export.bundle_writer import write_bundle
from export.sources import load_checkpoint
from loadtest.compare.environments import Environment
from loadtest.compare.prepare import prepare
from tests import heads
from tests.serving import server_process
from tests.static_models import LONG, TEXTS, UNKNOWN, WITHOUT_TOKENS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

BUILD = Path(__file__).resolve().parents[3] / "build"
LIBRARIES = Environment(
    name="static-embeddings",
    requirements=(
        "model2vec==0.10.0",
        "scikit-learn==1.9.1",
        "sentence-transformers==6.2.0",
        "torch==2.13.0",
        "transformers==5.23.0",
    ),
)
ALL_TEXTS = (*TEXTS, *LONG, UNKNOWN, WITHOUT_TOKENS)
# Saves a folder for each name, and prints its vectors of the texts in standard input.
PROGRAM = """
import json, sys
from pathlib import Path
import numpy as np
from model2vec import StaticModel
from model2vec.model import quantize_model
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules
from tokenizers import Tokenizer

folder, tokenizer = Path(sys.argv[1]), Tokenizer.from_file(sys.argv[2])
tokenizer.no_padding()
random, size = np.random.default_rng(1), tokenizer.get_vocab_size()
rows = random.standard_normal((size, 32)) * random.lognormal(size=(size, 1))
rows = rows.astype(np.float32)
models = {
    "normalized": StaticModel(rows, tokenizer, normalize=True),
    "half": StaticModel(rows.astype(np.float16), tokenizer, max_length=9),
    "untruncated": StaticModel(rows, tokenizer, max_length=None),
}
models["int8"] = quantize_model(models["normalized"], quantize_to="int8")
models["clusters"] = quantize_model(models["untruncated"], vocabulary_quantization=40)
for name, model in models.items():
    model.save_pretrained(folder / name)
table = lambda: modules.StaticEmbedding(tokenizer, embedding_weights=rows.copy())
tokenizer.no_truncation()
models["mean"] = SentenceTransformer(modules=[table()])
models["dense"] = SentenceTransformer(
    modules=[table(), modules.Dense(32, 8), modules.Normalize()], device="cpu"
)
tokenizer.enable_truncation(7)
models["cut"] = SentenceTransformer(modules=[table(), modules.Normalize()])
for name in ("mean", "dense", "cut"):
    models[name].save(str(folder / name))
texts = json.load(sys.stdin)
found = {name: model.encode(texts).astype(float).tolist() for name, model in models.items()}
json.dump(found, sys.stdout)
"""


def test_vectors_are_those_of_the_libraries(tmp_path: Path) -> None:
    assert prepare([LIBRARIES], (), BUILD, print)
    sources, tokenizer = tmp_path / "sources", heads.tokenizer_folder() / "tokenizer.json"
    command = [str(LIBRARIES.python(BUILD / "peers")), "-c", PROGRAM, str(sources), str(tokenizer)]
    ran = subprocess.run(
        command, input=json.dumps(ALL_TEXTS), capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    vectors = json.loads(ran.stdout)
    assert len(vectors) == 8
    for name in vectors:
        write_bundle(load_checkpoint(str(sources / name)), tmp_path / "bundles", name=name)
    with (
        server_process(tmp_path / "bundles", "--threads", "1") as server,
        Client(server.target) as client,
    ):
        for name, expected in vectors.items():
            outputs = client.embed(name, ALL_TEXTS, long_input=LongInput.TRUNCATE_RIGHT).outputs
            found = [output.values for output in outputs]
            # model2vec returns vectors in the type of its table.
            tolerance = 5e-3 if name == "half" else 3e-5
            np.testing.assert_allclose(
                found, expected, atol=tolerance, rtol=tolerance, err_msg=name
            )
