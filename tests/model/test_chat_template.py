"""Chat templates give the same prompts as with ``transformers``, or are refused in time."""

import pytest
from jinja2 import TemplateError
from jinja2.exceptions import SecurityError
from transformers.utils.chat_template_utils import render_jinja_template

from model.chat_template import compile_template, render_template
from model.template_bounds import MAX_CHARACTERS, concatenate

MESSAGES = [{"role": "user", "content": "Hi <b>\u00e9"}, {"role": "assistant", "content": "Yes"}]


@pytest.mark.parametrize(
    "source",
    [
        "{{ strftime_now('%Y') }}",
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
        "{% for m in messages %}{{ m.content }}{% break %}{% endfor %}",
        "{% if tools is not none or documents is not none %}tools{% endif %}{{ tools }}",
        "{{ messages | tojson(separators=(',', ':'), ensure_ascii=True, sort_keys=True) }}",
        "{{ messages | tojson(indent=2) }}{{ '%s is %04d' | format('x', 3) }}",
        "{{ add_generation_prompt }}{{ bos_token }}{{ eos_token is defined }}",
        "{{ 'a' ~ 1 ~ none }}{{ [1] + [2] }}{{ 'ab' * 3 }}{{ 2 ** 70 }}{{ -7 % 3 }}{{ '%d' % 5 }}",
        "{% set ns = namespace(a=1) %}{% set ns.a = ns.a + 1 %}{{ ns.a }}{{ dict(b=2) }}",
        "{{ namespace(_a=1) }}",
        "{{ namespace(self=2).self }}{{ messages | join('|', attribute='role') }}",
        "{{ ['a', 2] | join('-') }}{{ '-'.join(['a', 'b']) }}",
        "{{ 'a' | center(5) }}{{ 'a'.zfill(3) }}{{ 'aba'.replace('a', '') }}",
        "{{ '{}-{x:>3}'.format(1, x='b') }}{{ 'aba' | replace('a', 'c') }}",
        "{{ 'a\nb' | indent(2) }}{{ 2.567 | round(1) }}{{ [1, 2, 3] | batch(2, 0) | list }}",
        "{{ messages | map(attribute='role') | join(',') }}",
        "{{ dict.fromkeys(['a']) }}{{ dict.update }}",
        "{{ 'Name: {}'.format('a') }}{{ '{} : {}'.format(1, 2) }}{{ '{{\"a\": {}}}'.format(1) }}",
        "{{ '* %s' | format('a') }}{{ '**%s** since 20240101' % 'a' }}",
        "{{ 'on 20240101 {}'.format(1) }}",
        "{% for m in messages %}{{ loop.length }}{{ loop.last }}{{ loop.revindex }}{% endfor %}",
        "{% for k, v in messages[0] | dictsort %}{{ k }}={{ v }}{% endfor %}{{ [1, 2] | sum }}",
        "{% for m in [1, [2, [3]]] recursive %}{{ loop(m) if m is iterable else m }}{% endfor %}",
        "{{ messages }}{{ messages | string | length }}{{ 7 // 2 }}{{ 1e3 | round(1) }}",
        "{{ raise_exception('no') }}",
        "{{ ''.__class__.__mro__ }}",
    ],
)
def test_prompts_are_those_of_transformers(source: str) -> None:
    def ours() -> str:
        template = compile_template(source)
        return render_template(template, MESSAGES, {"bos_token": "<s>"})

    def theirs() -> str:
        rendered = render_jinja_template(
            [MESSAGES], chat_template=source, add_generation_prompt=True, bos_token="<s>"
        )
        return str(rendered[0][0])

    outcomes = []
    for render in (ours, theirs):
        try:
            outcomes.append(render())
        except TemplateError as error:
            outcomes.append(type(error).__name__)
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    "expression",
    [
        "(7 ** 4000000) % 3",
        "9 ** 99999999",
        "('a' * 1000000000) | length",
        "1000000000 * [1]",
        "'%1000000000d' % 1",
        "'%*d' % (1000000000, 1)",
        "'%1000000000d' | format(1)",
        "[1] | tojson(indent=1000000000)",
        "'a' | center(1000000000)",
        "'a'.ljust(1000000000)",
        "['a'] | map('center', 1000000000) | first",
        "'{:1000000000}'.format(1)",
        "'{:{}}'.format(1, 1000000000)",
        "('a' * 4000000).replace('a', 'b' * 4000000)",
        "('a' * 4000000) | replace('a', 'b' * 4000000)",
        "(['a' * 4000000] * 1000) | join",
        "('b' * 4000000).join('a' * 4000000)",
        "('\\n' * 4000000) | indent(1000000)",
        "(1).to_bytes(1000000000, 'big')",
        "1.5 | round(100000000, 'ceil')",
        "['a'] | batch(1000000000, 'b') | first",
        "5 | round(-1000000000)",
        "('f' * 200000) | int(0, 16) // 3",
        "('x' | e).center(500000000)",
        "(['a' * 4000000] * 200) | string",
        "(['a' * 4000000] * 200) | tojson",
        "['a' * 4000000] * 2",
        "([[0] * 1000] * 1000) | sum(start=[]) | length",
        "strftime_now('%9999Y' * 100)",
        "('a' * 4000000).encode('utf-32')",
    ],
)
def test_large_values_are_refused_when_a_prompt_is_rendered(expression: str) -> None:
    template = compile_template(f"{{% if 0 %}}{{{{ {expression} }}}}{{% endif %}}fine")
    assert render_template(template, [], {}) == "fine"
    template = compile_template(f"{{{{ {expression} }}}}")
    with pytest.raises(SecurityError):
        render_template(template, [], {})


@pytest.mark.parametrize(
    "doubled",
    [
        "{% set ns.x = ns.x + ns.x %}",
        "{% set ns.x = ns.x ~ ns.x %}",
        "{% set x %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = x %}",
        "{% set ns.x = twice(ns.x) %}",
        "{% set ns.x = ns.x | tojson %}",
        "{% set ns.x = [ns.x, ns.x] %}{% set _ = ns.x | string %}",
    ],
)
def test_strings_cannot_double_beyond_the_limit(doubled: str) -> None:
    template = compile_template(
        "{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}{% set ns = namespace(x='ab') %}"
        f"{{% for _ in range(40) %}}{doubled}{{% endfor %}}"
    )
    with pytest.raises(SecurityError, match="more than"):
        render_template(template, [], {})


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% for m in [1] recursive %}{{ loop([1, 2]) if loop.depth < 60 }}{% endfor %}",
        "{% for i in range(9999) %}{{ range(9999) | map('string') | join | length }}{% endfor %}",
    ],
)
def test_steps_are_bounded(source: str) -> None:
    with pytest.raises(SecurityError, match="steps"):
        render_template(compile_template(source), [], {})


def test_constants_are_not_computed_when_a_template_is_compiled() -> None:
    calls: list[str] = []
    environment = compile_template("").environment
    environment.filters["recorded"] = calls.append
    compiled = environment.from_string(
        "{{ 'a' | recorded }}{% set x = 'b' | recorded %}{% if 0 %}{{ 'c' | recorded }}{% endif %}"
    )
    assert calls == []
    compiled.render()
    assert calls == ["a", "b"]
    with pytest.raises(TemplateError, match="autoescape"):
        compile_template("{% autoescape 'a' | center(1000000000) %}{% endautoescape %}")


def test_prompts_are_bounded() -> None:
    assert len(concatenate(["a" * MAX_CHARACTERS, ""])) == MAX_CHARACTERS
    with pytest.raises(SecurityError):
        concatenate(["a" * MAX_CHARACTERS, "b"])
