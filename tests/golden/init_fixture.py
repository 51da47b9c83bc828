"""Writes the folder `init`: a Llama that transformers made, a text, and the loss that transformers finds on it.

    pip install torch transformers tokenizers
    python init_fixture.py

The tests of `syncer-server` begin a run with the folder `init/model` and compare. `init_try.py` uses the functions
here for folders of other shapes.
"""
import json
import shutil
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM, PreTrainedTokenizerFast

END = "<|end|>"
# Of syncer-server: tokens that one measurement of the held-out loss looks at, about.
EVAL_TOKENS = 8192
NOUNS = ["boat", "island", "lamp", "keeper", "storm", "gull", "rope", "harbour", "tide", "cable", "sailor", "cloud"]
VERBS = ["sees", "follows", "leaves", "finds", "warns", "carries", "forgets", "greets"]


def text(sentences):
    """Sentences that follow a formula."""
    pick = lambda words, i: words[i * 2654435761 % 2**32 * len(words) >> 32]
    lines = [
        f"The {pick(NOUNS, 3 * i)} {pick(VERBS, 3 * i + 1)} the {pick(NOUNS, 3 * i + 2)}{'.' if i % 3 else ' at night.'}"
        for i in range(1, sentences + 1)
    ]
    return "\n".join(lines) + "\n"


def tokenizer(words, size):
    """Byte-level BPE of at most `size` tokens, trained on `words`, with a token that ends a text."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator([words], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=END, bos_token=END)


def model(seed, **shape):
    """A Llama, or with experts a Mixtral, with random weights, wide enough apart that each of them shows in the loss."""
    torch.manual_seed(seed)
    end = dict(bos_token_id=0, eos_token_id=0)
    kind = (MixtralConfig, MixtralForCausalLM) if "num_local_experts" in shape else (LlamaConfig, LlamaForCausalLM)
    config = kind[0](attn_implementation="eager", initializer_range=0.15, **end, **shape)
    made = kind[1](config)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "norm" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return made.eval()


def held_out(words, share):
    """What syncer-server keeps for measuring: the last `share` of the text, cut between two characters."""
    whole = words.encode()
    at = len(whole) - int(len(whole) * share)
    while at < len(whole) and whole[at] & 0xC0 == 0x80:
        at -= 1
    return whole[at:].decode()


def loss(made, tokens, context):
    """The mean loss, in nats per token, on the windows that syncer-server looks at."""
    window = context + 1
    available = len(tokens) // window
    count = min(-(-EVAL_TOKENS // window), available)
    stride = available // count * window
    windows = torch.tensor([tokens[i * stride : i * stride + window] for i in range(count)])
    with torch.no_grad():
        logits = torch.cat([made(input_ids=part[:, :-1]).logits for part in windows.split(16)])
    flat = logits.reshape(-1, logits.shape[-1]).float()
    return torch.nn.functional.cross_entropy(flat, windows[:, 1:].reshape(-1)).item()


def main():
    folder = Path(__file__).with_name("init")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    words, share, context = text(150), 0.3, 24
    (folder / "text.txt").write_text(words)
    spelling = tokenizer(words, 280)
    made = model(
        7, vocab_size=288, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=context, rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_parameters=dict(rope_type="default", rope_theta=500.0),
    ).bfloat16()
    # Several files, as large models have them.
    made.save_pretrained(folder / "model", max_shard_size="5KB")
    spelling.save_pretrained(folder / "model")
    tokens = spelling(held_out(words, share), add_special_tokens=False)["input_ids"]
    again = LlamaForCausalLM.from_pretrained(folder / "model", dtype=torch.float32, attn_implementation="eager")
    found = dict(context=context, held_out=share, tokens=tokens[:64], loss=loss(again.eval(), tokens, context))
    (folder / "expected.json").write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
