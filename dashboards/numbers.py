"""How numbers are printed for people."""

DASH = "–"  # an unavailable value
MINUS = "−"
NOT_A_KNOB = "n/a"  # a setting that this cell does not have


def fixed(value: float, digits: int, *, signed: bool = False) -> str:
    """`0.613`, `+0.040`, `−0.012`: a true minus sign, and no sign before a value that rounds to 0."""
    text = f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("+-")
    return text.replace("-", MINUS)
