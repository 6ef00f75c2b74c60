"""Finds tags in a text that arrives in pieces."""


def start_of_tag(text: str, tag: str) -> int:
    """Where the beginning of ``tag`` starts that ends ``text``; its length if none does.

    A whole ``tag`` is none.
    """
    sizes = range(min(len(tag) - 1, len(text)), 0, -1)
    return len(text) - next((size for size in sizes if text.endswith(tag[:size])), 0)
