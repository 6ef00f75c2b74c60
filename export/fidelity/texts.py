"""Texts for comparing two precisions of a model: prompts, sentences and questions.

Written for this repository, under its licence (Apache-2.0).
"""

import re

from export.evaluation_texts import PASSAGES, SENTENCES

# Everyday requests to a decoder. The first are the most varied: a large model answers only those.
PROMPTS = (
    "What is the capital of Portugal, and what is it known for?",
    "Write a short poem about rain on a tin roof.",
    "How do I boil an egg so that the yolk stays soft?",
    "Explain in two sentences why the sky is blue.",
    "Write a Python function that reverses a string.",
    "What is 17 times 6? Show the steps.",
    "Give me three ideas for a birthday present for my father.",
    "Summarize the story of Little Red Riding Hood.",
    "Qual é a diferença entre clima e tempo?",
    "What should I pack for a weekend of hiking in the mountains?",
    "Who wrote Romeo and Juliet, and what happens in the end?",
    "Write a polite email asking my landlord to repair the heating.",
    "How does a bicycle stay upright?",
    "What are the health benefits of walking every day?",
    "Translate to French: the train leaves at nine o'clock.",
    "Name five animals that live in the ocean.",
    "How can I remove a coffee stain from a white shirt?",
    "What is the difference between a virus and a bacterium?",
    "Tell me a joke about computers.",
    "Write an SQL query that counts the orders of each customer.",
    "¿Cómo se prepara una tortilla de patatas?",
    "Why do cats purr?",
    "What is a good recipe for pancakes without milk?",
    "Explain photosynthesis to a ten-year-old child.",
    "Suggest a name for a small bakery by the sea.",
    "How many days are there in a leap year, and why?",
    "What causes the tides?",
    "Give me a plan to learn the guitar in three months.",
    "Was ist der Unterschied zwischen Nebel und Wolken?",
    "List the planets of the solar system in order.",
    "How do I write a good cover letter for a job?",
    "What is inflation, in simple words?",
    "Write the first paragraph of a detective story set in Lisbon.",
    "How do vaccines work?",
    "What is the opposite of each word: hot, early, brave, empty?",
    "My laptop is slow. What can I try first?",
    "Quelle est la meilleure saison pour visiter le Japon ?",
    "How is paper made?",
    "Should I learn Python or JavaScript first, and why?",
    "Describe a sunset to someone who has never seen one.",
)

# One question per passage of export.evaluation_texts, in the same order.
QUESTIONS = (
    "What did the three fishermen share?",
    "How long does the soup simmer after the stock is added?",
    "Where does a heat pump take warmth from?",
    "When does the reading room close?",
    "What does the function raise if the width is not positive?",
    "When was the town founded?",
    "What is the average speed of the train?",
    "How much money will be returned to the customer?",
)

MORE_SENTENCES = {
    "pt": (
        "O trem para o Porto parte às nove da plataforma três.",
        "Ela comprou pão, queijo e duas garrafas de água.",
        "O médico disse que a ferida vai sarar em uma semana.",
        "Guarde este documento em um lugar seguro.",
        "A reunião foi adiada porque o diretor está doente.",
        "As crianças brincavam na praia até o anoitecer.",
        "O preço da gasolina subiu pela terceira vez neste mês.",
        "Não se esqueça de fechar as janelas antes de sair.",
        "O rio transbordou e a estrada ficou fechada por dois dias.",
        "Quanto custa um bilhete de ida e volta para Coimbra?",
        "O professor explicou a lição de novo, mais devagar.",
        "Meu vizinho toca violino todas as noites.",
    ),
}


def sentences(language: str) -> tuple[str, ...]:
    """Sentences of ``language``; English ones if there are none."""
    if language in MORE_SENTENCES:
        return (*SENTENCES[language], *MORE_SENTENCES[language])
    return (*SENTENCES["en"], *(part for text in PASSAGES[:4] for part in _parts(text)))


def mixed_texts() -> tuple[str, ...]:
    """Short texts of every kind: sentences, requests and questions."""
    parts = tuple(part for text in PASSAGES for part in _parts(text))
    return (*SENTENCES["en"], *PROMPTS, *parts, *QUESTIONS, *sentences("pt"))


def _parts(text: str) -> list[str]:
    """The sentences of ``text``, or the lines of a program."""
    return [part.strip() for part in re.split(r"(?<=[.!?]) (?=[A-Z\"])|\n", text) if part.strip()]
