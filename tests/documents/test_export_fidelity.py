"""The table of fidelity says what the reports say."""

from model.bundle import Fidelity, MatrixError
from scripts.export_fidelity import committed, table


def test_a_row_has_the_figures_of_its_task() -> None:
    decoder = Fidelity(
        num_texts=40,
        num_tokens=1509,
        top1_agreement=0.92379,
        kl_divergence=0.0233,
        rms_logprob_difference=0.16812,
        worst_matrices=(MatrixError(name="decoder.layers.24.mixer.qkv", relative_error=0.0433),),
    )
    encoder = Fidelity(num_texts=109, min_cosine=0.9978, mean_cosine=1.0, retrieval_agreement=0.0)
    assert table({"a, int8": decoder, "b, int4": encoder}).splitlines()[2:] == [
        "| a, int8 | 1,509 tokens | 0.9238 | 0.0233 | 0.1681 | – | – | – | – | – "
        "| `decoder.layers.24.mixer.qkv` 4.3 % |",
        "| b, int4 | 109 texts | – | – | – | – | – | 0.9978 | 1 | 0 | – |",
    ]


def test_every_default_model_has_a_committed_report() -> None:
    names = set(committed())
    assert {f"{name}, int8" for name in ("smollm2", "en-pt", "pt-en", "minilm")} <= names
