"""Begins runs with folders that transformers made, trains them, takes the models home, and loads them again.

    pip install torch transformers tokenizers prometheus_client
    cargo build -p syncer-server -p native-learner
    python tests/golden/init_try.py [FOLDER OF PROGRAMS, target/debug unless given]

It fails unless, for each shape: the first held-out loss is what transformers finds on the same tokens, within 1e-3; the
loss falls; the exports in f32 and in bf16 load, write the text's tokens as before and have the loss that the run
measured last; the tokenizer warns of texts that are longer than the context; the export begins a run too; what cannot be
represented is refused; and Prometheus's own parser for Python reads `/metrics`, with the figures of the status.
"""
import io
import logging
import math
import subprocess
import tempfile
import urllib.request
from pathlib import Path

import torch
from prometheus_client.parser import text_string_to_metric_families
from transformers import AutoModelForCausalLM, AutoTokenizer

from init_fixture import END, held_out, loss, model, text, tokenizer
from tried import CONTEXT, PROGRAMS, SHARE, first_loss, near, serving, trained

BASE = dict(
    hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
    max_position_embeddings=CONTEXT, tie_word_embeddings=True,
)
ROPE = lambda theta: dict(rope_parameters=dict(rope_type="default", rope_theta=theta))
# Name, changes of the shape, type of the parameters, tokens of the vocabulary, settings of save_pretrained.
SHAPES = [
    ("plain", {}, torch.float32, 300, {}),
    ("grouped", dict(num_key_value_heads=2, rms_norm_eps=1e-6, **ROPE(500.0)), torch.bfloat16, 400, {}),
    ("one-key-head", dict(num_key_value_heads=1, hidden_size=48, intermediate_size=40), torch.float16, 350, {}),
    ("many-files", dict(num_hidden_layers=4, **ROPE(1e6)), torch.bfloat16, 300, dict(max_shard_size="20KB")),
    ("longer", dict(max_position_embeddings=4096, vocab_size=512), torch.float32, 300, {}),
    ("own-head", dict(tie_word_embeddings=False), torch.bfloat16, 300, {}),
    ("experts", dict(num_local_experts=4, num_experts_per_tok=2, **ROPE(1e4)), torch.float32, 300, {}),
    ("own-head-experts", dict(num_local_experts=3, num_experts_per_tok=1, tie_word_embeddings=False), torch.bfloat16, 300, {}),
]
REFUSED = [
    ("attention_bias", dict(attention_bias=True)),
    ("sliding_window", dict(num_local_experts=4, sliding_window=16)),
    ("head_dim", dict(head_dim=16)),
    ("rope_parameters.rope_type", dict(rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=2.0))),
]


def scraped(address):
    """The figures of `/metrics` by name, as Prometheus's parser reads them."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    figures = {}
    for family in families:
        assert family.type in ("counter", "gauge") and family.documentation, family
        assert family.name.startswith("archipelago_") and len(family.samples) == 1, family
        sample = family.samples[0]
        assert math.isfinite(sample.value) and sample.name not in figures, sample
        figures[sample.name] = sample.value
    print(f"    /metrics: {len(families)} metrics")
    return figures


def warns(spelling, words):
    """Whether the tokenizer warns of `words`."""
    heard = io.StringIO()
    handler = logging.StreamHandler(heard)
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    spelling(words)
    logger.removeHandler(handler)
    return "longer than the specified maximum sequence length" in heard.getvalue()


def save(folder, spelling, shape, dtype, settings):
    made = model(3, **{**BASE, "vocab_size": len(spelling), **shape})
    made.to(dtype).save_pretrained(folder, **settings)
    spelling.save_pretrained(folder)


def loaded(folder):
    made = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return made.eval(), AutoTokenizer.from_pretrained(folder)


def attempt(room, words, name, shape, dtype, size, settings):
    print(f"{name}: {dtype}, {shape}")
    folder, run, file = room / name, room / f"{name}-run", room / "text.txt"
    save(folder, tokenizer(words, size), shape, dtype, settings)
    made, spelling = loaded(folder)
    tokens = spelling(held_out(words, SHARE), add_special_tokens=False)["input_ids"]
    with serving(run, folder, file, "--lr", "0.003") as first:
        address = first["address"]
        near("first held-out loss, transformers'", first_loss(address), loss(made, tokens, CONTEXT), 1e-3)
        assert ("num_local_experts" in shape) == (made.config.model_type == "mixtral")
        last = trained(address, room / f"{name}.id", 0.3)
        figures = scraped(address)
        assert figures["archipelago_merged_tokens_total"] == last["tokensMerged"], figures
        assert figures["archipelago_rounds_merged_total"] == last["rounds"], figures
        near("held-out loss in /metrics", figures["archipelago_held_out_loss_nats"], last["valLossLast"], 1e-6)
    for dtype_name, stored, tolerance in [("f32", torch.float32, 1e-3), ("bf16", torch.bfloat16, 2e-2)]:
        out = room / f"{name}-{dtype_name}"
        export = ["export", "--dir", run, "--out", out, "--dtype", dtype_name, "--licence", "mit"]
        subprocess.run([PROGRAMS / "syncer-server", *export], check=True, stdout=subprocess.DEVNULL)
        assert AutoModelForCausalLM.from_pretrained(out).dtype == stored, "the type that the folder names"
        again, again_spelling = loaded(out)
        # Only the first long text is warned of.
        assert again_spelling.model_max_length == CONTEXT and warns(again_spelling, words[:4000])
        assert again_spelling.eos_token == END, again_spelling.eos_token
        assert again.generation_config.eos_token_id == 0
        assert again_spelling(words[:2000], add_special_tokens=False)["input_ids"] == tokens_of(spelling, words[:2000])
        near(f"exported {dtype_name}", last["valLossLast"], loss(again, tokens, CONTEXT), tolerance)
        card = (out / "README.md").read_text()
        assert "license: mit" in card and str(last["tokensMerged"]) in card, card
        with torch.no_grad():
            again.generate(torch.tensor([tokens[:4]]), max_new_tokens=8, do_sample=False)
    with serving(room / f"{name}-next", room / f"{name}-f32", file, "--lr", "0.003") as first:
        near("a run from the export begins at", first_loss(first["address"]), last["valLossLast"], 1e-3)


def tokens_of(spelling, words):
    return spelling(words, add_special_tokens=False)["input_ids"]


def refused(room, words, key, shape):
    folder = room / key
    save(folder, tokenizer(words, 300), shape, torch.float32, {})
    command = [PROGRAMS / "syncer-server", "validate", "--init", folder, "--data", room / "text.txt", "--dir", room / "none"]
    ended = subprocess.run(command, capture_output=True, text=True)
    print(f"refused: {ended.stderr.strip()}")
    assert ended.returncode == 19 and f"config.json has {key} = " in ended.stderr, ended


def main():
    words = text(4000)
    with tempfile.TemporaryDirectory() as room:
        room = Path(room)
        (room / "text.txt").write_text(words)
        for shape in SHAPES:
            attempt(room, words, *shape)
        for shape in REFUSED:
            refused(room, words, *shape)
    print("all of it holds")


main()
