"""One prompt, one image: `mulosd generate` and `mulosd animate`. All settings are checked before weights load."""

import io
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from mulosd.errors import ConfigError, EnvironmentProblem, unknown_name
from mulosd.families.card import Card, load_card, target_ids
from mulosd.families.encoder_facts import check_prompts
from mulosd.files.publish import problem_of_writing
from mulosd.methods import SamplerKnobs, build_method
from mulosd.targets import load_target
from mulosd.types import Decoded
from pipelines.cli.schedule_text import explain as explained
from pipelines.plan.build import check_network
from pipelines.plan.sweep import DTYPES, parse_override

log = logging.getLogger(__name__)


def decode_options(command: Any) -> Any:
    """What `generate` and `animate` need to decode one image."""
    options = [
        click.option("--target", required=True, help="Target id, e.g. tiny-mid."),
        click.option("--method", required=True, help="Id of a method; `mulosd methods` lists them."),
        click.option("--prompt", required=True, help="What to generate: a text, or class:N."),
        click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True),
        click.option("--set", "knobs", multiple=True, metavar="KEY=VALUE", help="A knob of the method, e.g. tau=0.2."),
        click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True),
        click.option("--dtype", default="float32", show_default=True),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@decode_options
@click.option("--out", required=True, type=click.Path(path_type=Path), help="PNG file to write.")
@click.option("--explain", is_flag=True, help="First print the resolved schedule and its forwards.")
@click.option("--dry-run", is_flag=True, help="Check the settings; decode and write nothing.")
def generate(out: Path, explain: bool, dry_run: bool, **options: Any) -> None:
    """Decode one prompt into a PNG file."""
    if explain or dry_run:
        _check(out, explain=explain, **options)
    if dry_run:
        return
    decoded = generate_png(out, **options)
    stats = decoded.stats
    taus = ", tau " + " ".join(f"{tau:.4g}" for tau in stats.chosen_taus) if stats.chosen_taus else ""
    click.echo(f"{out}: {stats.forwards} forwards for {decoded.tokens.size} tokens, {stats.resampled} resampled{taus}")


@click.command()
@decode_options
@click.option("--out", required=True, type=click.Path(path_type=Path), help="GIF file to write.")
def animate(out: Path, **options: Any) -> None:
    """Decode one prompt and show its steps as an animated GIF."""
    click.echo(animate_gif(out, **options))


def generate_png(
    out: Path, *, target: str, method: str, prompt: str, seed: int, knobs: Sequence[str], device: str, dtype: str
) -> Decoded:
    """Decode and publish `out` (.png); returns what was decoded. UserErrors leave nothing behind."""
    from PIL import Image

    from mulosd.files.publish import publish_bytes

    built, card = resolve(out, ".png", target=target, method=method, knobs=knobs, dtype=dtype)
    check_prompts(card, [prompt])
    loaded = load_target(target, device=device, dtype=dtype)
    decoded: Decoded = loaded.decode([prompt], [seed], built)[0]
    _warn_of_loss(decoded)
    data = io.BytesIO()
    Image.fromarray(decoded.image).save(data, "PNG")
    publish_bytes(out, data.getvalue())
    return decoded


def animate_gif(
    out: Path, *, target: str, method: str, prompt: str, seed: int, knobs: Sequence[str], device: str, dtype: str
) -> Path:
    """Decode with snapshots and publish `out` (.gif)."""
    from dashboards.animation import save_animation

    built, card = resolve(out, ".gif", target=target, method=method, knobs=knobs, dtype=dtype)
    check_prompts(card, [prompt])
    loaded = load_target(target, device=device, dtype=dtype)
    decoded = loaded.decode([prompt], [seed], built, frames=True)[0]
    _warn_of_loss(decoded)

    def to_image(tokens: np.ndarray) -> np.ndarray:
        # Undecided cells are covered later; any code will do, and the final one keeps the seams invisible.
        filled = np.where(tokens < 0, decoded.tokens, tokens).astype(np.int32)
        return np.asarray(loaded.detokenize(filled))

    label = " ".join([method, *knobs])
    return save_animation(out, decoded.frames, to_image, title=f"{label} · {prompt}")


def _warn_of_loss(decoded: Decoded) -> None:
    if decoded.prompt_tokens is not None and decoded.prompt_tokens.loss:
        log.warning("the prompt was not read whole: %s", decoded.prompt_tokens.loss)


def parse_knobs(texts: Sequence[str]) -> dict[str, Any]:
    """`("tau=0.2", "rows_per_cycle=all")` -> mapping of YAML values; ConfigError for a repeated key."""
    pairs = [parse_override(text) for text in texts]
    knobs = dict(pairs)
    if len(knobs) < len(pairs):
        raise ConfigError(f"--set sets a knob twice ({', '.join(key for key, _ in pairs)}); give each once.")
    return knobs


def resolve(
    out: Path, suffix: str, *, target: str, method: str, knobs: Sequence[str], dtype: str
) -> tuple[SamplerKnobs, Card]:
    """The method and the card of the target, with everything checked that needs no weights."""
    if out.suffix.lower() != suffix:
        raise ConfigError(f"--out {out}: this command writes {suffix} files; give a name that ends in {suffix}.")
    built = build_method(method, parse_knobs(knobs), where="--method")
    _check_writable(out)
    if target not in target_ids():
        raise unknown_name("target", target, target_ids(), "--target")
    if dtype not in DTYPES:
        raise unknown_name("dtype", dtype, DTYPES, "--dtype")
    card = load_card(target)
    built.check_fit(card)
    check_network(built, card.ratio)
    return built, card


def _check_writable(out: Path) -> None:
    """EnvironmentProblem before any work when `out` cannot be written; no folder is made for it yet."""
    if problem := "it is a folder" if out.is_dir() else problem_of_writing(out.absolute().parent):
        raise EnvironmentProblem(f"--out {out} cannot be written ({problem}); give a file in a writable folder.")


def _check(out: Path, *, explain: bool, **options: Any) -> None:
    """Check the settings of `generate` and, with `explain`, print the schedule."""
    request = {key: options[key] for key in ("target", "method", "knobs", "dtype")}
    method, card = resolve(out, ".png", **request)
    if explain:
        click.echo("\n".join(explained(method, card)))
