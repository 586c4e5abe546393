"""How a number is written in a report."""

from __future__ import annotations

from math import inf

NOTHING = "–"


def figure(value: float | None, digits: int = 3) -> str:
    """``digits`` significant digits, never in exponent form for what people read: 1,230 or 0.0457."""
    if value is None:
        return NOTHING
    if isinstance(value, int):
        return f"{value:,}"
    if value == inf:
        return "∞"
    if value == 0:
        return "0"
    if not 1e-6 <= abs(value) < 1e15:
        return f"{value:.{digits - 1}e}"
    # The exponent after rounding: 9.999 is 10.0, not 10.00.
    places = digits - 1 - int(f"{value:.{digits - 1}e}".partition("e")[2])
    return f"{round(value, places):,.{max(places, 0)}f}"


def percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.1f} %"


def plural(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
