"""One prompt, one image: what is said of a prompt that the encoder does not read whole."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mulosd.types import Decoded, DecodeStats, PromptTokens
from pipelines.cli import single


@pytest.mark.parametrize(
    ("read", "text"), [(PromptTokens(0, 1), "nothing of it is known, 1 unknown"), (PromptTokens(2), "")]
)
def test_a_prompt_that_is_not_read_whole_is_told(
    read: PromptTokens, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    zeros = np.zeros((4, 4), np.int32)
    image = Decoded(zeros, np.zeros((8, 8, 3), np.uint8), zeros.astype(np.uint8), DecodeStats(), prompt_tokens=read)
    target = SimpleNamespace(decode=lambda *_, **__: [image])
    monkeypatch.setattr(single, "load_target", lambda *_, **__: target)
    options = {"target": "tiny-mid", "method": "ar", "prompt": "x", "seed": 0, "device": "cpu", "dtype": "float32"}
    single.generate_png(tmp_path / "x.png", knobs=(), **options)  # type: ignore[arg-type]
    assert ("the prompt was not read whole" in caplog.text) == bool(text)
    assert text in caplog.text
