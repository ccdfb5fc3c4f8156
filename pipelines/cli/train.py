"""`mulosd train`: the tiny family, and learned up-samplers."""

from pathlib import Path
from typing import Any

import click

from mulosd.training.stages import CHOICES


@click.group()
def train() -> None:
    """Train the models that ship with the project."""


@train.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/tiny"), show_default=True)
@click.option("--stage", type=click.Choice(CHOICES), default="all", show_default=True)
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), help="Stop (resumably) after this long.")
def tiny(out: Path, stage: str, minutes: float | None) -> None:
    """Train the tiny family from scratch; the same command resumes."""
    from mulosd.training.tiny import main as train_tiny

    train_tiny(out=out, stage=stage, minutes=minutes)


@train.command()
@click.option("--family", type=click.Choice(["tiny"]), default="tiny", show_default=True)
@click.option("--family-folder", type=click.Path(path_type=Path), help="Folder of the card (default: the shipped one).")
@click.option("--ratio", type=click.IntRange(2), required=True, help="Target grid over draft grid.")
@click.option("--loss", required=True, help="ce, pixel or gan.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/upsamplers"), show_default=True)
@click.option("--minutes", type=click.FloatRange(0, min_open=True), default=5.0, show_default=True)
@click.option("--perceptual", default="effnet-lite0", show_default=True, help="effnet-lite0 or lpips.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--quiet", is_flag=True, help="No progress bar.")
def upsampler(
    family: str, family_folder: Path | None, ratio: int, loss: str, out: Path, quiet: bool, **chosen: Any
) -> None:
    """Train a latent up-sampler and measure it into its card; the same command resumes, or does nothing.

    Its .json and .safetensors take effect in the folder upsamplers/ beside the family's card.
    """
    from tqdm import tqdm

    from mulosd.targets import load_target
    from mulosd.training.upsampler import main, recipe_for, set_quality
    from pipelines.card.upsampler_quality import measure_upsampler

    card, recipe = recipe_for(family, ratio, loss, folder=family_folder, **chosen)
    vq = load_target(card.target_id, folder=card.folder).vq
    with tqdm(total=round(60 * recipe.minutes), unit="s", disable=quiet) as bar:

        def show(progress: Any, value: float) -> None:
            bar.set_postfix_str(f"step {progress.step}, loss {value:.4f}", refresh=False)
            bar.update(min(bar.total, round(progress.seconds)) - bar.n)

        latent = main(out, recipe, card, vq=vq, report=show)
    if not latent.raw["quality"]:
        set_quality(latent.path, latent.raw, measure_upsampler(latent, card, vq=vq))
    click.echo(f"{latent.path}: {latent.weights.stat().st_size / 2**20:.2f} MiB, measured on val scenes")
