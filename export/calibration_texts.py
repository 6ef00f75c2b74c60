"""Texts on which exports measure activations, for smoothing and for calibrated rounding.

Written for this repository, under its licence (Apache-2.0). No text that a bundle is measured on
(:mod:`export.evaluation_texts`, :mod:`export.fidelity.texts`) is among them.
"""

import itertools

ENGLISH = (
    "This library reads and writes compressed archives. It supports several formats, checks "
    "every block it unpacks, and never keeps more than a few megabytes in memory.",
    "Add the new user to the group before you restart the service; otherwise the program cannot "
    "open its log and stops with an error.",
    "After the rain the path was slippery, so we held on to the branches and went down one step "
    "at a time until we could hear the stream again.",
    "How long does the delivery take, and can I still change the address?",
    "The committee met on Tuesday, 14 June 2011, and approved a budget of 2.4 million euros, "
    "which is 7 % less than in the year before.",
    "Her brother repairs clocks. The oldest one in his workshop has only one hand, and nobody "
    "remembers who brought it there or why it was never collected.",
    "If the sensor reports more than eighty degrees, the controller opens the second valve and "
    "sends a warning to the operator.",
    "Thank you for calling. All our lines are busy at the moment. Please stay on the line, or "
    "leave your name and number after the tone.",
    "A graph is connected if there is a path between every two of its vertices. A connected "
    "graph without cycles is called a tree.",
    "Plants in small pots dry out fast. Water them in the evening, let the surplus drain, and "
    "turn each pot a little so that all sides get light.",
    "def read_lines(path, limit=None):\n"
    "    with open(path, encoding='utf-8') as file:\n"
    "        lines = [line.rstrip() for line in file]\n"
    "    return lines[:limit]",
    "The minister denied that there had been any agreement. Reporters asked her twice about the "
    "letters, but she said only that the investigation was not over.",
    "Swallow one tablet with a glass of water after breakfast. Do not drive if you feel dizzy, "
    "and see a doctor if the pain lasts longer than three days.",
    "What a goal! Two minutes before the end, the youngest player of the team runs past three "
    "defenders and puts the ball into the corner.",
    "Under this licence you may copy, change and distribute the work, provided that you keep the "
    "notice above and mark your changes clearly.",
    "In the desert, temperatures fall quickly after sunset, because dry air and bare sand hold "
    "little heat. Many animals there are active only at night.",
    "I never said that he was wrong; I said that he should have asked us first.",
    "The package contains the documentation, some examples, and a command-line tool that "
    "converts old configuration files to the new format.",
    "Mix the eggs with the sugar, fold in the flour, and bake the cake at 180 degrees for forty "
    "minutes. Let it cool before you cut it.",
    "Copper conducts electricity almost as well as silver, but costs much less, and that is why "
    "most cables in houses are made of it.",
    "SELECT name, price FROM products WHERE price < 20 ORDER BY price DESC LIMIT 10;",
    "She opened the window, looked at the empty street, and decided to wait for the last tram.",
    "Our hotel lies five minutes from the central station. Breakfast is served from seven to "
    "ten, and guests may leave their luggage at the desk.",
    "The experiment was repeated with forty volunteers. Those who slept well remembered more "
    "words than the others, but the difference was small.",
    "Sorry, I did not understand that. Could you say it again, more slowly?",
    "Banks raised their interest rates for the third time, and the number of new mortgages fell "
    "to its lowest level since the crisis.",
    "To install the driver, connect the device, download the archive from our site, and run the "
    "setup program as an administrator.",
    "The king had two daughters. One loved the sea and the other loved the forest, and neither "
    "wanted to live in the castle.",
    "Bacteria divide every few hours. From a single cell, millions may grow in a day if there is "
    "enough food and nothing stops them.",
    "Please find attached the invoice for March. We would be grateful if you could pay it by the "
    "end of next week.",
    "This module provides classes for parsing dates. It recognises most common formats and "
    "raises an exception if a value is out of range.",
    "He was born in a village near Kraków, studied law in Vienna, and spent the rest of his life "
    "writing plays that almost nobody wanted to stage.",
    "Every parcel is weighed, scanned and sorted by a machine that handles nine thousand of them "
    "in an hour.",
    "The painting shows a woman at a table. Light comes from the left, as in most of his works, "
    "and falls on a map behind her.",
    "Speed is distance divided by time: a cyclist who covers 45 km in 3 hours rides at 15 km/h.",
    "Do we need tickets for the concert, or is it free for children under twelve?",
    "The screen stays dark when the battery is empty. Charge it for at least half an hour, then "
    "hold the power button for ten seconds.",
    "Workers at the port went on strike on Monday. Ships had to anchor outside the bay, and "
    "several shops in the city ran out of fresh fruit.",
    "It is a simple editor with tabs, syntax highlighting, spell checking and a plug-in system, "
    "meant for people who write web pages.",
    "Glaciers move slowly, often less than a metre a day, yet over thousands of years they carve "
    "deep valleys into the rock.",
    "The parties shall inform each other in writing of any event that may delay the works under "
    "this contract.",
    "My neighbours have moved out, so the flat upstairs is quiet now, and I miss the piano a "
    "little.",
    "A compiler translates a whole program before it runs, while an interpreter carries out one "
    "statement after the other.",
    "Turn left at the church, follow the river as far as the old mill, and you will see the camp "
    "site on the other bank.",
    "Dolphins call each other by whistles. Each animal has its own, which it learns in its first "
    "months and keeps for the rest of its life.",
    "Warning: all data on the selected partition will be erased. Type YES to continue.",
    "The actor gave a fine performance, although the script was weak and the second half of the "
    "film far too long.",
    "They had walked for six days without meeting anyone, and when the smoke rose above the hill "
    "none of them dared to speak of it.",
    "Vaccination is free for everyone over sixty. Bring your card, a document with a photograph, "
    "and the list of the medicines that you take.",
    "A server that receives too many requests answers with status 429 and says after how many "
    "seconds the client may try again.",
)

PORTUGUESE = (
    "Esta biblioteca lê e escreve arquivos comprimidos. Ela aceita vários formatos e verifica "
    "cada bloco antes de o abrir.",
    "Depois da chuva o caminho estava escorregadio, por isso descemos devagar, segurando os ramos.",
    "Quanto tempo demora a entrega, e ainda posso mudar o endereço?",
    "A comissão reuniu-se na terça-feira, 14 de junho de 2011, e aprovou um orçamento de 2,4 "
    "milhões de euros.",
    "Se o sensor indicar mais de oitenta graus, o controlador abre a segunda válvula e envia um "
    "aviso ao operador.",
    "O irmão dela conserta relógios. O mais antigo da oficina tem apenas um ponteiro.",
    "Misture os ovos com o açúcar, junte a farinha e leve o bolo ao forno por quarenta minutos.",
    "O ministro negou que houvesse um acordo, mas não quis falar sobre as cartas.",
    "Tome um comprimido com um copo de água depois do café da manhã e não dirija se sentir "
    "tonturas.",
    "No deserto a temperatura cai depressa depois do pôr do sol, e muitos animais só saem à noite.",
    "Eu nunca disse que ele estava errado; disse que devia ter perguntado primeiro.",
    "O pacote contém a documentação, alguns exemplos e uma ferramenta que converte os arquivos "
    "antigos.",
    "O cobre conduz a eletricidade quase tão bem como a prata, mas custa muito menos.",
    "Nosso hotel fica a cinco minutos da estação central, e os hóspedes podem deixar as malas na "
    "recepção.",
    "Os bancos aumentaram os juros e o número de novos empréstimos caiu para o nível mais baixo "
    "desde a crise.",
    "Para instalar o programa, ligue o aparelho, baixe o arquivo e execute-o como administrador.",
    "O rei tinha duas filhas: uma amava o mar e a outra amava a floresta.",
    "Nasceu numa aldeia perto do Porto, estudou direito em Coimbra e passou o resto da vida a "
    "escrever peças de teatro.",
    "Os trabalhadores do porto entraram em greve na segunda-feira, e várias lojas ficaram sem "
    "fruta fresca.",
    "A tela fica escura quando a bateria está vazia; carregue-a durante pelo menos meia hora.",
    "Precisamos de ingressos para o concerto, ou ele é grátis para crianças?",
    "Vire à esquerda na igreja, siga o rio até o moinho velho e verá o parque de campismo.",
    "A vacinação é gratuita para todas as pessoas com mais de sessenta anos.",
    "Aviso: todos os dados da partição escolhida serão apagados. Digite SIM para continuar.",
)

_BY_LANGUAGE = {"en": ENGLISH, "pt": PORTUGUESE}


def calibration_texts(source_language: str | None) -> tuple[str, ...]:
    """Texts in the source language of a translator; in all languages for None."""
    if source_language is None:
        mixed = itertools.chain.from_iterable(itertools.zip_longest(*_BY_LANGUAGE.values()))
        return tuple(text for text in mixed if text is not None)
    return _BY_LANGUAGE.get(source_language, ())
