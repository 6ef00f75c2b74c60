"""Parses and formats byte sizes with units."""

import re

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY_UNITS = {"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}


def parse_bytes(text: str, whole: int | None = None) -> int:
    """Parses ``6GiB``, ``6G``, ``6000000000`` or ``80%``.

    Args:
        text: a number with an optional unit, which may end in B. K, M, G and T count in powers of
            1000; Ki, Mi, Gi and Ti in powers of 1024.
        whole: the size in bytes that a percentage refers to; ``None`` if it is unknown.

    Raises:
        ValueError: the text has another form, or is not above 0; or a percentage is above 100, or
            ``whole`` is unknown.
    """
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,9})?)\s*([KMGTkmgt]?i?)[Bb]?", text.strip())
    percentage = re.fullmatch(r"(\d{1,3}(?:\.\d{1,9})?)\s*%", text.strip())
    if percentage is not None:
        share = float(percentage[1]) / 100
        if whole is None:
            raise ValueError("the size of this machine's memory is unknown: give bytes")
        if not 0 < share <= 1:
            raise ValueError(f"{text!r} is not between 0% and 100%")
        return int(share * whole)
    units = {**_UNITS, **_BINARY_UNITS}
    if match is None or match[2].lower() not in units:
        raise ValueError(f"{text!r} is not a size such as 6GiB, 6G or 80%")
    size = int(float(match[1]) * units[match[2].lower()])
    if size < 1:
        raise ValueError(f"{text!r} is not above 0")
    return size


def in_units(size: int) -> str:
    """Formats a size in decimal units: ``1234567890`` becomes ``1.23 GB``."""
    for name, unit in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} B"
