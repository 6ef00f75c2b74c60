"""Sample texts for the parity check, by task."""

ENGLISH_TEXTS = (
    "The cat sat on the mat.",
    "A kitten was sleeping on the carpet.",
    "The bus to the airport leaves every twenty minutes from platform 4.",
    "Transformers process all tokens of a sequence in parallel; recurrent networks cannot, "
    "which is why they were slow to train on long documents.",
    "Is it possible to return a damaged item without the receipt?",
)

ENGLISH_PROMPTS = (
    "Why is the sky blue?",
    "The capital of France is",
    "Write one sentence about the sea.",
    "def fibonacci(n):\n    ",
    "In 1969, two astronauts walked on the Moon. What they brought back were",
)

SOURCE_SENTENCES = {
    "en": (
        "The children were playing in the garden.",
        "Please save your work before closing the window.",
        "Could not open the file: permission denied.",
        "She has lived in Lisbon for more than twenty years, and still misses the rain.",
        "Version 2.5 was released on 14 March 2021.",
    ),
    "pt": (
        "As crianças estavam brincando no jardim.",
        "Salve o seu trabalho antes de fechar a janela.",
        "Não foi possível abrir o arquivo: permissão negada.",
        "Ela mora em Lisboa há mais de vinte anos e ainda sente falta da chuva.",
        "A versão 2.5 foi lançada em 14 de março de 2021.",
    ),
}


# Ubiquitin, both chains of insulin, melittin and the start of lysozyme.
PROTEINS = (
    "MQIFVKTLTGKTITLEVEPSDTIENVKAKIQDKEGIPPDQQRLIFAGKQLEDGRTLSDYNIQKESTLHLVLRLRGG",
    "GIVEQCCTSICSLYQLENYCN",
    "FVNQHLCGSHLVEALYLVCGERGFFYTPKT",
    "GIGAVLKVLTTGLPALISWIKRKRQQ",
    "KVFGRCELAAAMKRHGLDNYRGYSLGNWVCAAKFESNFNTQATNRNTDGSTDYGILQINSRWWCNDGRTPGSRNLC",
)


def source_sentences(language: str | None) -> tuple[str, ...]:
    """Sentences to translate from ``language``; English ones if there are none."""
    return SOURCE_SENTENCES.get(language or "en", SOURCE_SENTENCES["en"])
