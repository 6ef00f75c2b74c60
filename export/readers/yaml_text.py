"""Parses untrusted YAML."""

import yaml

from export.errors import SourceError


class _Loader(yaml.SafeLoader):
    """Rejects merge keys: a few lines of them can expand to more pairs than fit in memory."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """PyYAML calls this for each mapping before it constructs its pairs."""
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(
                    None, None, "merge keys are not supported", key.start_mark
                )
        super().flatten_mapping(node)


def read_yaml(text: str, origin: str) -> object:
    """The one document in ``text``.

    Args:
        origin: prefix of the error message.

    Raises:
        SourceError: it is not YAML, or a value does not fit its tag.
    """
    try:
        value: object = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise SourceError(f"{origin}: {error}") from error
    # Constructors of numbers, dates and booleans raise Python's own errors.
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise SourceError(f"{origin}: not YAML: {error}") from error
    except RecursionError as error:
        raise SourceError(f"{origin}: nested too deeply") from error
    return value
