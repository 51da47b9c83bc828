"""Trains adapters on folders that transformers made, takes them home, and has PEFT load them.

    pip install torch transformers tokenizers peft
    cargo build -p syncer-server -p native-learner
    python tests/golden/lora_try.py [FOLDER OF PROGRAMS, target/debug unless given]

It fails unless, for each form of the weights that stay as they are: the first held-out loss is what transformers finds on
the same tokens; the loss falls; PEFT loads the adapters onto the folder that the run began with, under the names of its
own, and finds the loss that the run measured last; and so does transformers with the merged export.
"""
import subprocess
import tempfile
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from init_fixture import held_out, loss, model, text, tokenizer
from tried import CONTEXT, PROGRAMS, SHARE, first_loss, near, serving, trained

SHAPE = dict(
    hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=CONTEXT, tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=1e4),
)
# The form of the frozen weights, the matrices with adapters, and how near the losses come on weights rounded so.
KINDS = [("f16", "q,k,v,o,gate,up,down", 2e-3), ("int8", "q,v,down", 3e-2)]


def run_of_adapters(room, form, targets, base, tokens, tolerance):
    """The folder of a run that trained adapters until the loss fell, and the last loss."""
    run = room / f"{form}-run"
    lora = ["--lr", "0.01", "--lora-rank", "4", "--lora-targets", targets, "--frozen", form]
    with serving(run, base, room / "text.txt", *lora) as first:
        address = first["address"]
        near("first held-out loss", first_loss(address), loss(loaded(base), tokens, CONTEXT), tolerance)
        last = trained(address, room / f"{form}.id", 0.5, "--cache-dir", room / "cache")
    return run, last["valLossLast"]


def loaded(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def attempt(room, base, tokens, form, targets, tolerance):
    print(f"{form}: {targets}")
    run, last = run_of_adapters(room, form, targets, base, tokens, tolerance)
    adapters, merged = room / f"{form}-adapters", room / f"{form}-merged"
    for out, more in [(adapters, []), (merged, ["--merged"])]:
        command = [PROGRAMS / "syncer-server", "export", "--dir", run, "--out", out, *more]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    # What PEFT itself would write.
    modules = [f"{name}_proj" for name in targets.split(",")]
    own = get_peft_model(loaded(base), LoraConfig(r=4, lora_alpha=8, target_modules=modules, task_type="CAUSAL_LM"))
    wanted = {name: tensor.shape for name, tensor in get_peft_model_state_dict(own).items()}
    ours = load_file(adapters / "adapter_model.safetensors")
    assert {name: tensor.shape for name, tensor in ours.items()} == wanted
    with_adapters = PeftModel.from_pretrained(loaded(base), adapters).eval()
    near("PEFT on the folder", loss(with_adapters, tokens, CONTEXT), last, tolerance)
    near("merged by PEFT", loss(with_adapters.merge_and_unload(), tokens, CONTEXT), last, tolerance)
    near("merged by us", loss(loaded(merged), tokens, CONTEXT), last, 1e-3)


def main():
    words = text(4000)
    with tempfile.TemporaryDirectory() as room:
        room = Path(room)
        (room / "text.txt").write_text(words)
        spelling = tokenizer(words, 300)
        base = room / "base"
        model(3, vocab_size=len(spelling), **SHAPE).save_pretrained(base)
        spelling.save_pretrained(base)
        tokens = spelling(held_out(words, SHARE), add_special_tokens=False)["input_ids"]
        for kind in KINDS:
            attempt(room, base, tokens, *kind)
    print("all of it holds")


main()
