"""Decode times by batch size: seconds per image of each method at batch 1 and 16, and the ratio to `ar`.

    python bench/decode.py --target tiny-mid [--threads 2] [--rounds 3] [--batch 1 --batch 16]

All methods take turns within a round and see the same prompts and seeds; the median over rounds is shown, with the
whole call by the clock (condition and detokenizer too). Nothing is written; `mulosd bench` is the recorded measurement.
"""

import os
import statistics
import time
from typing import Any

import click

from mulosd.methods import SamplerKnobs, build_method
from mulosd.scenes.world import sample_prompts
from pipelines.provenance import machine, versions

METHODS = ("ar", "draft-only", "zipar", "mulosd")  # with their default knobs


@click.command()
@click.option("--target", required=True, help="Target id, e.g. tiny-mid.")
@click.option("--batch", "batches", multiple=True, type=click.IntRange(1), default=(1, 16), show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--threads", type=click.IntRange(1), help="torch threads (default: what torch chooses).")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
def main(target: str, batches: tuple[int, ...], rounds: int, threads: int | None, device: str) -> None:
    """Print seconds per image and the ratio to ar for each method and batch size."""
    import torch

    from mulosd.models.families import load_target

    if threads:
        torch.set_num_threads(threads)
    facts = machine()
    click.echo(
        f"{target} on {facts['processor'] if device == 'cpu' else torch.cuda.get_device_name()}, "
        f"{torch.get_num_threads()} threads, torch {versions()['torch']}, load {facts['load_1min']}"
    )
    loaded = load_target(target, device=device)
    methods = {name: build_method(name) for name in METHODS}
    for batch in batches:
        times = measure(loaded, methods, batch, rounds)
        for label, seconds in times.items():
            click.echo(f"B = {batch:<3} {label:<12} {seconds / batch:8.3f} s/image  {times['ar'] / seconds:5.2f}x")
    click.echo(f"load afterwards {os.getloadavg()[0]:.2f}")


def measure(target: Any, methods: dict[str, SamplerKnobs], batch: int, rounds: int) -> dict[str, float]:
    """Median seconds per call, [batch] images each; one call per method before the clock runs."""
    prompts = [text for text, _ in sample_prompts("val", batch, 0)]
    seeds = list(range(batch))
    spent: dict[str, list[float]] = {label: [] for label in methods}
    for number in range(rounds + 1):
        for label, method in methods.items():
            began = time.perf_counter()
            target.decode(prompts, seeds, method)  # ends with the images on the host: synchronised
            if number:
                spent[label].append(time.perf_counter() - began)
    return {label: statistics.median(values) for label, values in spent.items()}


if __name__ == "__main__":
    main()
