"""Chat templates as ``transformers`` compiles them: sandboxed Jinja, with bounded values.

The source of the environment is ``transformers.utils.chat_template_utils``. A template is code of
whoever made the model. Therefore nothing is computed while it is compiled, and
:mod:`model.template_bounds` bounds what is computed later.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from model.bundle import SpecialTokens
from model.template_bounds import (
    bounded_braces,
    bounded_filter,
    check_call,
    check_operands,
    check_result,
    concatenate,
    counted,
    format_text,
    limited_steps,
    printable,
    text_of,
)

MAX_INDENT = 64
MAX_TIME_PATTERN = 256  # characters
NAMED_TOKENS = ("bos_token", "eos_token")


def compile_template(source: str) -> Template:
    """The compiled template ``source``.

    Raises:
        TemplateError: it does not compile.
    """
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, "jinja2.ext.loopcontrols"],
        optimized=False,
        finalize=printable,
    )
    del environment.globals["lipsum"]
    environment.globals["dict"] = _Dict()
    environment.globals["namespace"] = _Namespace
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _strftime_now
    environment.filters |= {"format": format_text, "tojson": _to_json}
    for name, function in environment.filters.items():
        environment.filters[name] = bounded_filter(name, function)
    environment.filters[_COUNTED] = counted
    try:
        return environment.from_string(source)
    except TemplateError:
        raise
    except Exception as error:  # such as RecursionError for deep nesting
        raise TemplateError(f"{type(error).__name__}: {error}") from error


def reads_variable(source: str, name: str) -> bool:
    """Whether the template ``source``, which compiles, mentions the variable ``name``."""
    tree = _Environment(extensions=[_Generation, "jinja2.ext.loopcontrols"]).parse(source)
    return any(node.name == name for node in tree.find_all(nodes.Name))


def text_content(text: str, *, has_images: bool) -> str | list[dict[str, str]]:
    """A message's text as templates take it: in a list of parts if the model reads images."""
    return [{"type": "text", "text": text}] if has_images else text


def render_template(
    template: Template,
    messages: Sequence[Mapping[str, object]],
    special_tokens: Mapping[str, str | None],
    options: Mapping[str, object] | None = None,
) -> str:
    """The prompt for the assistant's next turn.

    Args:
        template: from :func:`compile_template`.
        special_tokens: by name, such as ``bos_token``; variables of the template.
        options: more variables, such as ``tools``, which replace those of the same name.

    Raises:
        TemplateError: the template rejects the messages, or fails.
    """
    variables = {"tools": None, "documents": None, "add_generation_prompt": True}
    try:
        with limited_steps():
            return template.render(
                {"messages": messages, **variables, **special_tokens, **(options or {})}
            )
    except TemplateError:
        raise
    except Exception as error:  # the template is foreign code and may raise anything
        raise TemplateError(f"{type(error).__name__}: {error}") from error


def named_tokens(
    special: SpecialTokens, text_of_token: Callable[[int], str | None]
) -> dict[str, str]:
    """The texts of :data:`NAMED_TOKENS`, which every template may read; empty if there is none."""
    ids = (special.bos, next(iter(special.eos), None))
    return {
        name: "" if id_ is None else text_of_token(id_) or ""
        for name, id_ in zip(NAMED_TOKENS, ids, strict=True)
    }


class _CodeGenerator(CodeGenerator):
    """Folds no constants: ``'a' | center(1000000000)`` would be computed at compile time."""

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        if not isinstance(node, nodes.Const | nodes.TemplateData):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        """``a ~ b``, which is not one of the operators that a sandbox intercepts."""
        self.write("environment.concat(map(environment.text_of, (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write(")))")

    def visit_EvalContextModifier(  # noqa: N802
        self,
        node: nodes.EvalContextModifier,
        frame: Frame,  # noqa: ARG002
    ) -> None:
        """``{% autoescape %}``, whose argument is computed at compile time."""
        raise TemplateSyntaxError("autoescape is not supported", node.lineno)


_COUNTED = "items of a loop"  # a filter that no template can name


class _Environment(ImmutableSandboxedEnvironment):
    code_generator_class = _CodeGenerator
    concat = staticmethod(concatenate)
    text_of = staticmethod(text_of)
    intercepted_binops = frozenset({"+", "*", "**", "%", "//"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(
                loop.iter, _COUNTED, [], [], None, None, lineno=loop.lineno
            ).set_environment(self)
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        check_operands(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """The underscores allow keywords such as ``self``."""
        args = check_call(__obj, args, kwargs)
        return check_result(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        return None if wrapped is None else bounded_braces(value.__self__, wrapped)


class _Generation(Extension):
    """``{% generation %}`` marks what the assistant wrote, for training; the text is unchanged."""

    tags = {"generation"}  # noqa: RUF012, as in Jinja

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_unchanged"), [], [], body).set_lineno(line)

    def _unchanged(self, caller: Macro) -> str:
        text: str = caller()
        return text


class _Dict:
    """``dict`` without the attributes of a class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """``namespace`` without private attributes."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # self may be a key
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            _check_attribute(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute(name)
        super().__setitem__(name, value)


def _check_attribute(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot have the private attribute {name!r}")


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    """Returns the local time. Raises ``SecurityError`` if the pattern is too long."""
    if len(pattern) > MAX_TIME_PATTERN:
        raise SecurityError(f"a time of more than {MAX_TIME_PATTERN} characters")
    return datetime.now().strftime(pattern)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter ``tojson``: unlike Jinja's, it does not escape HTML."""
    width = indent if isinstance(indent, int) else len(indent or "")
    if max(width, *map(len, separators or ("",))) > MAX_INDENT:
        raise SecurityError(f"an indent or a separator of more than {MAX_INDENT} characters")
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return concatenate(encoder.iterencode(value))
