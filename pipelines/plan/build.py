"""Plan of a sweep: cells × chunks of samples, with the keys and seeds that results depend on. Pure and light.

cell = one resolved configuration; chunk = a fixed run of `chunk_prompts` prompts' images, cut by the prompt
list and never by the number of workers. No torch, ray, mlflow, datasets or pyarrow here: a plan must be cheap.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from mulosd.errors import ConfigError, DataError
from mulosd.families.encoder_facts import check_prompts, conditions_are_greedy
from mulosd.files.pin import content_of, pin_file
from mulosd.methods import SamplerKnobs, file_knobs, knobs_of
from mulosd.sampling.greedy import RULE
from mulosd.stage.manifest import KEY_SCHEMA
from mulosd.types import Prompt
from pipelines.plan.budget import check_hours
from pipelines.plan.cells import Cell, Chunk, Plan, Sample, key_of, sample_id_of, seed_of
from pipelines.plan.sweep import CHUNK_PROMPTS, Sweep


def build_plan(sweep: Sweep, *, limit: int | None = None) -> Plan:
    """Resolve a sweep: load prompts and cards, compute keys and seeds, cut chunks.

    limit: only the first `limit` prompts; it changes no key and no seed. ConfigError for a bad limit, repeated prompt
    ids, an empty prompt set, a prompt that a target does not take, or an estimate above the sweep's `max_hours`.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"--limit {limit} is too small; give the number of prompts, from 1 on.")
    prompts, prompts_hash = load_prompt_set(sweep.prompts)
    _check_prompts(prompts)
    chunks = cut_chunks(prompts, sweep, limit=limit)
    families = import_module(sweep.families)
    methods = [pin_files(method) for method in sweep.methods]
    cells = []
    for target in sweep.targets:
        card = families.load_card(target)
        check_prompts(card, (prompt.text for prompt in prompts))
        for method in methods:
            method.check_fit(card)
            is_greedy = method.draws_greedily(card.sampler) or conditions_are_greedy(card)
            weights = method.weights_hash(card)
            config = cell_config(sweep, target, weights, method, prompts_hash, is_greedy=is_greedy)
            cells.append(Cell(key_of(config), card, method, config, chunks))
    sweep_key = key_of(
        {
            "name": sweep.name,
            "cells": [cell.key for cell in cells],
            "evaluators": list(sweep.evaluators),
        }
    )
    plan = Plan(sweep, sweep_key, tuple(cells), tuple(prompts), limit)
    check_hours(plan)
    return plan


def pin_files(method: SamplerKnobs) -> SamplerKnobs:
    """The method with every file that it names made absolute and pinned to its content (`mulosd.files.pin`)."""
    return replace(method, **{key: pin_file(name) for key, name in file_knobs(method).items()})


def load_prompt_set(spec: Mapping[str, Any]) -> tuple[list[Prompt], str]:
    """The full prompt list that a sweep's `prompts` mapping names, and its hash."""
    from mulosd.prompts import load_prompts, prompt_list_hash

    prompts = load_prompts(spec)
    return prompts, prompt_list_hash(prompts)


def cell_config(
    sweep: Sweep, target: str, card_hash: str, method: SamplerKnobs, prompts_hash: str, *, is_greedy: bool = False
) -> dict[str, Any]:
    """The behaviour-relevant configuration of a cell; settings at their introduction default are left out.

    Left out on purpose: limit, workers, threads and hosts, which must not change an image. method: with pinned files.
    is_greedy: something is sampled greedily; the rule is then part of the key, because greedy images once had noise.
    """
    knobs = knobs_of(method) | {key: content_of(name) for key, name in file_knobs(method).items()}
    config: dict[str, Any] = {
        "schema": KEY_SCHEMA,
        "target": target,
        "weights": card_hash,
        "method": method.name,
        "knobs": knobs,
        "prompts": prompts_hash,
        "base_seed": sweep.base_seed,
        "images_per_prompt": sweep.images_per_prompt,
        "device": sweep.device,
        "dtype": sweep.dtype,
        "batch_size": sweep.batch_size,
    }
    if sweep.chunk_prompts != CHUNK_PROMPTS:
        config["chunk_prompts"] = sweep.chunk_prompts
    if is_greedy:
        config["greedy"] = RULE
    return config


def cut_chunks(prompts: Sequence[Prompt], sweep: Sweep, *, limit: int | None = None) -> tuple[Chunk, ...]:
    """Chunks of the first `limit` prompts; boundaries come from the full list."""
    wanted = len(prompts) if limit is None else min(limit, len(prompts))
    chunks = []
    for start in range(0, wanted, sweep.chunk_prompts):
        full = prompts[start : start + sweep.chunk_prompts]
        samples = tuple(
            _sample(prompt, image_index, sweep.base_seed)
            for prompt in full
            for image_index in range(sweep.images_per_prompt)
        )
        num_prompts = min(len(full), wanted - start)
        chunks.append(Chunk(start // sweep.chunk_prompts, samples, num_prompts * sweep.images_per_prompt))
    return tuple(chunks)


def check_weights(plan: Plan) -> None:
    """DataError where a target lacks weights: its keys are provisional, so nothing may be stored under them."""
    for card in plan.cards.values():
        if card.missing:
            raise DataError(card.fetch_hint)


def check_networks(plan: Plan) -> None:
    """`check_network` of every cell, before any worker loads weights."""
    for cell in plan.cells:
        check_network(cell.method, cell.card.ratio)


def check_network(method: SamplerKnobs, ratio: int | None) -> None:
    """Refuse a super-resolution network that cannot serve; ratio None is a target without drafter, refused elsewhere.

    Loads torch, where the method uses such a network.
    """
    chosen = method.upsampling()
    if chosen is not None and chosen.is_network and ratio is not None:
        from mulosd.upsample.sr import load_network

        load_network(chosen.sr_model, ratio)


def _sample(prompt: Prompt, image_index: int, base_seed: int) -> Sample:
    sample_id = sample_id_of(prompt, image_index)
    return Sample(sample_id, prompt, image_index, seed_of(base_seed, sample_id))


def _check_prompts(prompts: Sequence[Prompt]) -> None:
    if not prompts:
        raise ConfigError("the prompt set is empty; choose a set, split or file with at least one prompt.")
    seen: set[tuple[str, str]] = set()
    for prompt in prompts:
        name = (prompt.benchmark, prompt.prompt_id)
        if name in seen:
            raise ConfigError(
                f"prompt id {prompt.prompt_id!r} of {prompt.benchmark} occurs twice; make the ids unique."
            )
        seen.add(name)
