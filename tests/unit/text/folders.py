"""Hugging Face folders of toy encoders, with tokenizers of the released classes, and cards that name them."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, pre_tokenizers
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer, T5Config, T5EncoderModel, T5Tokenizer

from mulosd.families.card import Card
from mulosd.files.publish import file_sha256
from mulosd.models.ta_tok import TATokConfig, TATokDecoder

WORDS = ("a", "red", "circle", "blue", "square", "two", "of", "photo")
IDS = 32  # image tokens of the toy LLM = codes of the toy TA-Tok
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TA_TOK = {
    "width": 8,
    "bottleneck_dim": 6,
    "codebook_size": IDS,
    "decoder_layers": 1,
    "decoder_heads": 2,
    "decoder_mlp": 12,
    "decoder_side": 2,
}


def t5_folder(folder: Path) -> Path:
    """A T5 encoder of width 16 with a unigram tokenizer: </s> is 1, <pad> 0, as in the released one."""
    torch.manual_seed(0)
    vocab = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", -9.0), ("▁", -4.0)]
    vocab += [(f"▁{word}", -2.0) for word in WORDS] + [(letter, -5.0) for letter in "abcdefghijklmnopqrstuvwxyz,."]
    tokenizer = T5Tokenizer(vocab=vocab, extra_ids=0)
    tokenizer.save_pretrained(folder)
    config = T5Config(
        vocab_size=len(vocab), d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu"
    )
    T5EncoderModel(config).save_pretrained(folder)
    return folder


def llm_folder(folder: Path, *, is_brief: bool = False, penalty: float = 1.0) -> Path:
    """A Qwen2 of width 16 whose byte-level tokenizer has Tar's added tokens. It draws image tokens alone; a brief one
    draws any token, and letters end its answer."""
    torch.manual_seed(0)
    letters = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Qwen2Tokenizer(
        vocab=letters, merges=[], unk_token=None, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.add_tokens([AddedToken(t, special=True) for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")])
    tokenizer.add_tokens([AddedToken(token, special=True) for token in ("<im_start>", "<im_end>")])
    tokenizer.add_tokens([f"<S{k}>" for k in range(3)] + [f"<I{i}>" for i in range(IDS)])
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )
    model = Qwen2ForCausalLM(config)
    image = torch.tensor(tokenizer.convert_tokens_to_ids([f"<I{i}>" for i in range(IDS)]))
    with torch.no_grad():
        model.lm_head.weight[image] *= 25 if is_brief else 70
    model.generation_config.eos_token_id = (
        list(range(258)) if is_brief else tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    )
    model.generation_config.repetition_penalty = penalty
    model.save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": "llava_qwen"}))
    return folder


def ta_tok_file(path: Path) -> Path:
    """Weights of a toy TA-Tok."""
    from safetensors.torch import save_file

    torch.manual_seed(0)
    save_file(TATokDecoder(TATokConfig(**TA_TOK)).state_dict(), path)
    return path


def folder_entry(folder: Path, architecture: str) -> dict[str, Any]:
    """The card entry of a folder, as `mulosd convert` writes it."""
    files = {path.name: file_sha256(path) for path in sorted(folder.iterdir()) if path.is_file()}
    return {"architecture": architecture, "config": {}, "folder": folder.name, "files": files, "sha256": "toy"}


def card(root: Path, parts: dict[str, Any], *, prefix_len: int, **target: Any) -> Card:
    """A card whose target is conditioned by `parts`, in their order."""
    raw = {
        "parts": {"model": {"config": {"prefix_len": prefix_len}}, **parts},
        "targets": {"toy": {"model": "model", "drafter": None, "encoders": list(parts), **target}},
    }
    return Card("toy", "toys", 4, 16, 8, None, {}, "hash", root, raw)
