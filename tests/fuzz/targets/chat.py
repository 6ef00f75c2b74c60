"""Chat templates: typical templates with random messages, and random templates."""

from collections.abc import Iterator

from jinja2 import TemplateError

from server.errors import InvalidArgumentError
from server.text.chat import ROLES, ChatTemplate, Message
from tests.fuzz.draw import Draw

SIZE = 256
CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are helpful<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ALTERNATING = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'].strip() + ' [/INST]' }}"
    "{% else %}{{ message['content'] | trim + eos_token }}{% endif %}{% endfor %}"
)
TYPED = (
    "{%- set ns = namespace(n=0) -%}{%- macro say(m) -%}{{ m.role | upper }}: "
    "{{ m.content.split('</think>')[-1] | tojson(indent=1) }}{%- endmacro -%}"
    "{% for m in messages[::-1] %}{% set ns.n = ns.n + m.content | length %}{{ say(m) }}"
    "{% endfor %}{{ ns.n // messages | length }}"
)
TEMPLATES = (CHATML, ALTERNATING, TYPED)
FIXED = (Message("user", "one"), Message("assistant", "two"))


def run(data: bytes) -> None:
    """First byte: selects a template for random messages, or uses the rest as a template."""
    draw = Draw(data)
    kind = draw.byte() % (len(TEMPLATES) + 1)
    template = TEMPLATES[kind] if kind < len(TEMPLATES) else draw.rest_as_text()
    try:
        compiled = ChatTemplate(template, {"bos_token": "<s>", "eos_token": "</s>"})
    except TemplateError:
        return
    messages = list(FIXED)
    if kind < len(TEMPLATES):
        texts = draw.rest_as_texts(1 + draw.byte() % 5)
        messages = [Message(ROLES[len(text) % 3], text) for text in texts]
    try:
        prompt = compiled.render(messages)
    except InvalidArgumentError:
        return
    prompt.encode()
    if kind == 0:
        assert all(message.content in prompt for message in messages)


def seeds() -> Iterator[bytes]:
    for kind in range(len(TEMPLATES)):
        yield bytes([kind, 3]) + b"be kind\0hello\0hi </think> there\0{{ x }}"
    for template in TEMPLATES:
        yield bytes([len(TEMPLATES)]) + template.encode()
