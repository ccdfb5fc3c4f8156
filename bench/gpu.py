"""Ten minutes on a GPU: parity there, the bandwidth floor, t(m), and AR, ZipAR and MuLo-SD on random weights.

    python -m bench.gpu --minutes 9 --out result/                    # LlamaGen-XL's shape at 512p and 1024p, bfloat16
    python -m bench.gpu --device cpu --size b --out result/          # 112 M parameters at 256p
    python -m bench.gpu --device cpu --size tiny --out result/       # seconds: tries the script itself

Weights and condition are random, so images mean nothing and MuLo-SD resamples a set share of the cells
(RESAMPLED_FRACTION), not what a tau rejects; where they are differs from a trained pair too. What is measured is the
cost of forwards and of the loops around them, at batch 1. `gpu.json` and `gpu.md` are published after every step, so
that a lost machine costs no more than the step it was in; a phase past its share of the time stops between two steps.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor

from bench.gpu_report import EAGER, STATIC, markdown, summarise
from bench.static_ar import StaticAR
from mulosd.decoding.job import Job
from mulosd.decoding.registry import decode
from mulosd.decoding.verify import nearest_codes
from mulosd.files.publish import publish_bytes, publish_json
from mulosd.methods import AR, MuLoSD, SamplerKnobs, ZipAR
from mulosd.models.architectures import DTYPES
from mulosd.models.condition import Condition
from mulosd.models.gpt_config import GPTConfig
from mulosd.models.image_gpt import ImageGPT, llamagen_t2i
from mulosd.models.vq import VQConfig, VQModel
from mulosd.sampling.filters import Sampler
from mulosd.upsample import build_upsampler
from pipelines.host.provenance import provenance
from pipelines.latency.forward_time import forward_times
from tests.parity.fixtures import agrees, all_visible, condition_of, load, load_ar_dtok, load_gpt
from tests.parity.runs import run

log = logging.getLogger(__name__)

RESAMPLED_FRACTION = 0.25  # what the paper's 512p figure implies (docs/mulosd.md "Forward passes")
METHODS: dict[str, SamplerKnobs] = {
    # Unfiltered: random drafts are outside the top-k, and masses that are all 0 leave no share to choose.
    "mulosd": MuLoSD(resampled_fraction=RESAMPLED_FRACTION, pooling="unfiltered"),
    "zipar, window 4": ZipAR(),
    "zipar, window 16": ZipAR(window=16),
    EAGER: AR(),
}
PHASES = ("draft", "upsample", "verify", "resample", "downsample")
GPT = GPTConfig(dim=1280, n_layers=36, n_heads=20, vocab_size=16384, grid=0, prefix_len=120)


@dataclass(frozen=True)
class Size:
    """Shape of the models; grids: of the targets measured. Every drafter has grid `draft_grid`."""

    gpt: GPTConfig
    grids: tuple[int, ...]
    draft_grid: int
    vq: VQConfig = field(default_factory=VQConfig)
    caption_dim: int = 2048
    top_k: int = 1000
    copy_mib: int = 2048  # far above any cache


SIZES = {
    "xl": Size(GPT, (32, 64), 16),
    "b": Size(replace(GPT, dim=768, n_layers=12, n_heads=12), (16,), 8, copy_mib=512),
    "tiny": Size(
        replace(GPT, dim=32, n_layers=2, n_heads=2, vocab_size=48, prefix_len=6),
        (8,),
        4,
        VQConfig(ch=32, ch_mult=(1, 1), num_res_blocks=1, z_channels=32, codebook_size=48, codebook_dim=4),
        caption_dim=16,
        top_k=3,
        copy_mib=1,
    ),
}


@dataclass(frozen=True)
class Setup:
    """What a run measures, and where."""

    size: Size
    device: str
    dtype: torch.dtype
    rounds: int

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def seconds(self, call: Callable[[], Any]) -> float:
        """Synchronised wall time of a call."""
        self.synchronize()
        began = time.perf_counter()
        call()
        self.synchronize()
        return time.perf_counter() - began


@dataclass(frozen=True)
class Models:
    """Target, drafter and tokenizer of one grid, random, on the device."""

    model: ImageGPT
    drafter: ImageGPT
    vq: VQModel
    condition: Condition
    neighbours: Tensor

    def job(self, setup: Setup, seed: int) -> Job:
        """One image under LlamaGen's preset."""
        sampler = Sampler(guidance=7.5, top_k=setup.size.top_k)
        draft, ratio = setup.size.draft_grid, self.model.config.grid // setup.size.draft_grid
        return Job(
            self.model,
            self.condition,
            torch.tensor([seed], device=setup.device),
            sampler,
            drafter=self.drafter,
            draft_sampler=sampler,
            upsampler=build_upsampler("bicubic", vq=self.vq, draft_grid=draft, ratio=ratio),
            neighbours=lambda pool_k: self.neighbours[:, :pool_k],
            synchronize=setup.synchronize,
        )


def build_models(setup: Setup, grid: int) -> Models:
    """Models of a size for a target grid; the same weights every time on one kind of device."""
    size = setup.size
    torch.manual_seed(0)
    with torch.device(setup.device):
        target, drafter = (
            llamagen_t2i(replace(size.gpt, grid=side), size.caption_dim) for side in (grid, size.draft_grid)
        )
        vq = VQModel(size.vq).eval().requires_grad_(False)
        rows = size.gpt.prefix_len
        condition = Condition(torch.randn(1, rows, size.caption_dim), torch.ones(1, rows, dtype=torch.bool))
    for model in (target, drafter):
        model.to(setup.dtype).eval().requires_grad_(False)
    table = nearest_codes(vq.quantize.codebook(), MuLoSD().pool_k)
    return Models(target, drafter, vq, condition, table)


def weight_bytes(model: ImageGPT) -> int:
    """Bytes of the weights that every forward reads: blocks, last norm and head."""
    parts = model.layers, model.norm, model.output
    return sum(weight.nbytes for part in parts for weight in part.parameters())


def parity(device: str) -> dict[str, dict[str, Any]]:
    """Cached decoding of the reference fixtures on a device, in float32 without TF32.

    Per fixture: whether logits agree within atol = rtol = 1e-4, and their largest difference.
    """
    torch.set_float32_matmul_precision("highest")
    t2i, dtok = load("gpt_t2i"), load("ar_dtok")
    captions, features = condition_of(t2i), all_visible(dtok.tensors["in.cond9"])
    greedy = t2i.tensors["out.tokens_greedy"]
    logits = torch.cat([t2i.tensors["out.prefill_logits_2B"][None, :, -1], t2i.tensors["out.decode_logits_2B"]])
    dtok_run = dtok.tensors["out.cond9_cfg4.tokens"], dtok.tensors["out.cond9_cfg4.logits"]
    cases = {
        "gpt_t2i": (load_gpt(t2i), captions, greedy, logits),
        "gpt_t2i, plain prefix": (load_gpt(t2i, collapses=False), captions, greedy, logits),
        "ar_dtok": (load_ar_dtok(dtok), features, *dtok_run),
    }
    done = {}
    for name, (model, condition, tokens, reference) in cases.items():
        placed = Condition(condition.values.to(device), condition.mask.to(device))
        with torch.device(device), torch.inference_mode():
            ours = run(model.to(device), placed, tokens.to(device), len(reference)).cpu()
        difference = float((ours - reference).abs().max())
        done[name] = {"agrees": agrees(ours, reference), "max_difference": difference}
    return done


def measure_parity(setup: Setup) -> Iterator[dict[str, Any]]:
    """The fixtures; where one does not agree, the run counts as failed."""
    done = parity(setup.device)
    yield {"cases": done}
    if not all(case["agrees"] for case in done.values()):
        raise RuntimeError("the device does not reproduce the reference's logits; trust none of its results")


def measure_bandwidth(setup: Setup) -> Iterator[dict[str, Any]]:
    """Bytes read and written per second by a large copy: the best of 10 after a warm-up."""
    source = torch.ones(setup.size.copy_mib << 20, dtype=torch.uint8, device=setup.device)
    sink = torch.empty_like(source)
    times = [setup.seconds(lambda: sink.copy_(source)) for _ in range(11)][1:]
    yield {"bytes_per_s": 2 * source.nbytes / min(times), "copy_mib": setup.size.copy_mib}


def measure_grid(setup: Setup, grid: int) -> Iterator[dict[str, Any]]:
    """t(m), then whole images: a warm-up of every method, then rounds in which they take turns."""
    models = build_models(setup, grid)
    done: dict[str, Any] = {"weight_bytes": weight_bytes(models.model), "num_tokens": grid * grid, "methods": {}}
    done["forward_ms"] = forward_times(models, synchronize=setup.synchronize)
    yield done
    job = models.job(setup, 0)
    static = StaticAR(models.model, models.condition, job.sampler)
    for number in range(setup.rounds + 1):
        seed = torch.tensor([number], device=setup.device)
        row: dict[str, Any] = {"seconds": setup.seconds(lambda seed=seed: static(seed)), "forwards": grid * grid}
        _keep(done["methods"], STATIC, row, is_warm=number > 0)
        yield done
        for name, method in METHODS.items():
            stats = decode(models.job(setup, number), method).stats[0]
            times = {phase: getattr(stats, f"time_{phase}_s") for phase in PHASES}
            row = {"seconds": sum(times.values()), "forwards": stats.forwards, "phases": times}
            _keep(
                done["methods"],
                name,
                {**row, "tokens_fed": stats.tokens_fed, "resampled": stats.resampled},
                is_warm=number > 0,
            )
            yield done


def _keep(methods: dict[str, Any], name: str, row: dict[str, Any], *, is_warm: bool) -> None:
    """A warm image replaces the warm-up's row, which stands only until then and says so."""
    entry = methods.setdefault(name, {"is_warm": False, "images": []})
    if is_warm and not entry["is_warm"]:
        entry.update(is_warm=True, images=[])
    entry["images"].append(row)


def run_phases(setup: Setup, seconds: float, publish: Callable[[dict[str, Any]], None]) -> tuple[dict[str, Any], bool]:
    """All phases, publishing after every step; what fails is recorded with its reason, and the next phase runs.

    A phase may use an equal share of the time left; steps are not interrupted. Returns (results, all went well).
    """
    phases: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
        "parity": lambda: measure_parity(setup),
        "bandwidth": lambda: measure_bandwidth(setup),
        **{f"grid {grid}": lambda grid=grid: measure_grid(setup, grid) for grid in setup.size.grids},
    }
    results: dict[str, Any] = {}
    end, is_whole = time.monotonic() + seconds, True
    for left, (name, steps) in zip(range(len(phases), 0, -1), phases.items(), strict=True):
        deadline = time.monotonic() + (end - time.monotonic()) / left
        began = time.monotonic()
        try:
            for partial in steps():
                results[name] = partial
                publish(results)
                if time.monotonic() > deadline:
                    results[name]["stopped"] = f"after its share of the time, {deadline - began:.0f} s"
                    break
        except Exception as error:
            log.exception("phase %s failed", name)
            results.setdefault(name, {})["error"] = repr(error)
            is_whole = False
        publish(results)
    return results, is_whole


@click.command()
@click.option("--size", "name", type=click.Choice(list(SIZES)), default="xl", show_default=True)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cuda", show_default=True)
@click.option("--dtype", type=click.Choice(list(DTYPES)), help="default: bfloat16 on cuda, float32 on cpu")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="timed images per method")
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), default=9.0, show_default=True)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True)
def main(name: str, device: str, dtype: str | None, rounds: int, minutes: float, out: Path) -> None:
    """Measure and publish OUT/gpu.json and OUT/gpu.md; exit code 1 when a phase failed."""
    dtype = dtype or ("bfloat16" if device == "cuda" else "float32")
    setup = Setup(SIZES[name], device, DTYPES[dtype], rounds)
    device_name = torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} threads of a CPU"
    what = {"name": name, "device": device, "device_name": device_name, "dtype": dtype, "rounds": rounds}
    what["resampled_fraction"] = RESAMPLED_FRACTION
    content: dict[str, Any] = {"setup": {**what, "shape": asdict(setup.size)}, "record": provenance()}

    def publish(results: dict[str, Any]) -> None:
        content.update(results=results, rows=summarise(results), load_after=os.getloadavg()[0])
        if device == "cuda":
            content["peak_mib"] = torch.cuda.max_memory_allocated() / 2**20
        publish_json(out / "gpu.json", content)
        publish_bytes(out / "gpu.md", markdown(content).encode())

    _, is_whole = run_phases(setup, 60 * minutes, publish)
    click.echo(markdown(content))
    raise SystemExit(0 if is_whole else 1)


if __name__ == "__main__":
    main()
