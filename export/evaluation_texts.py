"""Texts for measuring perplexity before and after quantization.

Written for this repository, under its licence (Apache-2.0), so no model had been trained on them
when the perplexities were first measured. They resemble real requests: prose, dialogue, code,
numbers and other languages.
"""

PASSAGES = (
    "The ferry left the harbour a little after six, when the lamps along the quay were still "
    "burning. Three fishermen sat on the upper deck with their collars turned up and shared a "
    "flask of coffee. None of them spoke until the lighthouse had slipped behind the headland, "
    "and then the oldest said that the wind would turn before noon.",
    "To make the soup, cut two onions into thin rings and let them soften in butter over a low "
    "heat for twenty minutes. Add a spoonful of flour, stir until it smells of biscuits, and pour "
    "in a litre of hot stock. Simmer for another half an hour. Season at the end, because the "
    "stock is salty already.",
    "A heat pump does not make heat; it moves it. A fluid that boils at a low temperature takes up "
    "warmth from the outside air, is compressed until it is hot, and gives that warmth to the "
    "water in the radiators. For each unit of electricity it uses, a good one delivers three or "
    "four units of heat.",
    '"You are late," said the librarian without looking up. "The reading room closes at five." '
    '"I only need one page," I answered, "and I know which shelf it is on." She sighed, took a '
    "ring of keys from the drawer, and walked ahead of me down the corridor.",
    "def moving_average(values, width):\n"
    '    """Returns the mean of each window of the given width."""\n'
    "    if width <= 0:\n"
    '        raise ValueError("width must be positive")\n'
    "    total = sum(values[:width])\n"
    "    averages = [total / width]\n"
    "    for i in range(width, len(values)):\n"
    "        total += values[i] - values[i - width]\n"
    "        averages.append(total / width)\n"
    "    return averages\n",
    "The town was founded in 1284 at a ford of the river, where two trade roads crossed. Its walls "
    "were pulled down in the nineteenth century to make room for the railway, but four of the "
    "towers remain. Today about 38,000 people live there, and most of them work in the paper mills "
    "or at the university.",
    "Question: A train travels 180 kilometres in two hours and then 120 kilometres in one hour and "
    "a half. What is its average speed? Answer: The whole distance is 300 kilometres and the whole "
    "time is 3.5 hours, so the average speed is 300 divided by 3.5, which is about 86 kilometres "
    "per hour.",
    "Dear Ms Okafor, thank you for your letter of 3 May. We have checked your account and found "
    "that the second payment was indeed counted twice. The amount of 48.50 will be returned to you "
    "within five working days. We are sorry for the trouble this has caused. Yours sincerely, the "
    "accounts department.",
)

# The same sentences in every language, in the same order.
SENTENCES = {
    "en": (
        "The museum opens at ten o'clock and closes at six.",
        "We could not find the printer; check that it is switched on.",
        "My grandmother kept bees behind the house for thirty years.",
        "The file is larger than the space that is left on the disk.",
        "Heavy rain is expected in the north of the country tomorrow afternoon.",
        "Select a language from the list and press the green button.",
        "The two companies announced that they will share the cost of the bridge.",
        "If you lose your key, tell the reception at once.",
    ),
    "pt": (
        "O museu abre às dez horas e fecha às seis.",
        "Não conseguimos encontrar a impressora; verifique se ela está ligada.",
        "Minha avó criou abelhas atrás da casa durante trinta anos.",
        "O arquivo é maior que o espaço que resta no disco.",
        "Espera-se chuva forte no norte do país amanhã à tarde.",
        "Selecione um idioma na lista e pressione o botão verde.",
        "As duas empresas anunciaram que vão dividir o custo da ponte.",
        "Se você perder a sua chave, avise a recepção imediatamente.",
    ),
}
