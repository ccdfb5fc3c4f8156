"""Sampling settings that leave no choice: every draw is the most probable code. No torch, as cell keys ask for it."""

MIN_TEMPERATURE = 1e-5  # below it logits are not divided: sampling is greedy
RULE = "lowest id"  # what greedy sampling takes of several maxima; part of the keys of cells that sample so


def is_greedy(temperature: float, top_k: int) -> bool:
    """Whether settings leave only the maximum: temperature 0 (below `MIN_TEMPERATURE`) or top_k 1."""
    return temperature < MIN_TEMPERATURE or top_k == 1
