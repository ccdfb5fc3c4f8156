"""DPG-Bench prompts (TencentQQGYLab/ELLA, dpg_bench/prompts): one UTF-8 text file each, the file's stem is the id."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mulosd.errors import DataError
from mulosd.prompts.base import check_id, check_keys, read_lines, required_path
from mulosd.types import Prompt

WHAT = "DPG-Bench's folder of prompt files (prompts/*.txt)"


KEYS = ("path",)


def load(spec: Mapping[str, Any]) -> list[Prompt]:
    """Keys: path (folder of .txt files). Prompts are sorted by id; outer white space is dropped."""
    check_keys(spec, KEYS)
    folder = required_path(spec, WHAT)
    if not os.path.isdir(folder):  # also for a name that no folder can have
        raise DataError(f"{folder}: no such folder; give the path of {WHAT}.")
    files = sorted((f for f in folder.iterdir() if f.suffix == ".txt" and not f.is_dir()), key=lambda f: f.stem)
    if not files:
        raise DataError(f"{folder}: holds no .txt file; give the path of {WHAT}.")
    return [_prompt(file) for file in files]


def _prompt(file: Path) -> Prompt:
    text = "\n".join(read_lines(file, WHAT)).strip()
    if not text:
        raise DataError(f"{file}:1: the prompt is empty; restore the file or delete it.")
    return Prompt("dpg", check_id(file.stem, str(file)), text)
