"""LlamaForCausalLM of transformers, unchanged, in one run with native learners and browsers.

Usage:
    pip install torch transformers
    python llama.py ws://HOST:7700              a run of the preset tiny
    python llama.py ws://HOST:7700 FOLDER       a run that began with `serve --init FOLDER`
"""

import argparse

import archipelago_train
import torch
from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM

# The preset tiny over bytes.
TINY = LlamaConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=176,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    max_position_embeddings=64,
    rms_norm_eps=1e-5,
    rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
    tie_word_embeddings=True,
)


def main() -> None:
    """Trains until the run is complete."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("folder", nargs="?", help="the Hugging Face folder that the run began with")
    parser.add_argument("--identity", help="the file of the learner's key")
    parser.add_argument("--name", help="what people call it")
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = AutoConfig.from_pretrained(args.folder) if args.folder else TINY
    # The initial values do not matter: the run replaces them.
    model = LlamaForCausalLM(config).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99), weight_decay=0.1)
    forward = torch.compile(model) if device == "cuda" else model

    params = dict(model.named_parameters())
    try:
        joined = archipelago_train.Learner(args.url, params, name=args.name, identity=args.identity)
    except archipelago_train.CompleteError as complete:
        parser.exit(0, f"{complete}\n")
    with joined as learner:
        for steps, tokens in enumerate(learner.batches(), 1):
            for group in optimiser.param_groups:
                group["lr"] = learner.learning_rate
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                logits = forward(input_ids=tokens[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), learner.labels.flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            optimiser.zero_grad()
            learner.step(loss)
            if steps % 50 == 0:
                now = learner.report
                print(
                    f"{steps} steps, loss {loss:.3f}, {now.updates_merged} updates merged, "
                    f"{100 * now.sync_ratio:.2f} % of the time waited",
                    flush=True,
                )


if __name__ == "__main__":
    main()
