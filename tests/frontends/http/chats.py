"""A server of a chat model whose template describes tools, and switches reasoning on and off."""

from collections.abc import Iterator

import pytest

from tests.server.chat_models import chat_bundles
from tests.server.test_grammar import byte_level
from tests.serving import ServerProcess, server_process

TEMPLATE = (
    "{% if tools %}TOOLS{% for tool in tools %} {{ tool | tojson }}{% endfor %}"
    "{{ '\n' }}{% endif %}"
    "{% for message in messages %}{{ message.role }}: "
    "{% if message.reasoning_content %}({{ message.reasoning_content }}){% endif %}"
    "{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function.name }} "
    "{{ call.function.arguments | tojson }}</tool_call>{% endfor %}"
    "{% if message.tool_call_id %}({{ message.tool_call_id }}){% endif %}{{ '\n' }}{% endfor %}"
    "assistant:"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>"
    "{% elif enable_thinking %}<think>{{ '\n' }}{% endif %}"
)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of a random decoder, ``model``."""
    root = tmp_path_factory.mktemp("chats")
    with server_process(chat_bundles(root, byte_level(), TEMPLATE, 2048)) as server:
        yield server


def num_tokens(prompt: str) -> int:
    """How many tokens the model has for ``prompt``."""
    return len(byte_level().encode(prompt).ids)
