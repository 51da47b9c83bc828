"""Writes mixtral_fixture.json: what PyTorch and Hugging Face's Mixtral make of weights that follow a formula.

    pip install torch transformers
    python mixtral_fixture.py

As llama_fixture.py, with experts. One layer and one window, since transformers takes the load-balancing loss over all
layers and windows at once, and we take the mean over each of them: with one of each both are the same.
"""
import json
from pathlib import Path

import torch
from transformers import MixtralConfig, MixtralForCausalLM

from llama_fixture import SHAPE as LLAMA, token, weight

SHAPE = dict(LLAMA, layers=1, experts=dict(count=5, per_token=2, aux_loss=0.5))
INNER = dict(lr=3e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip_norm=1.0)


def named(model, of):
    """The parameters under the names that their files have, with what `of` gives of each."""
    for name, parameter in model.named_parameters():
        value = of(parameter)
        stem, experts = name.rpartition("mlp.")[0] + "block_sparse_moe", SHAPE["experts"]["count"]
        if name.endswith("experts.gate_up_proj"):
            for e in range(experts):
                for part, half in zip(["w1", "w3"], value[e].chunk(2)):
                    yield f"{stem}.experts.{e}.{part}.weight", half
        elif name.endswith("experts.down_proj"):
            yield from ((f"{stem}.experts.{e}.w2.weight", value[e]) for e in range(experts))
        else:
            yield name.replace("mlp.gate", "block_sparse_moe.gate"), value


def build():
    config = MixtralConfig(
        vocab_size=SHAPE["vocab"], hidden_size=SHAPE["d_model"], intermediate_size=SHAPE["d_ff"],
        num_hidden_layers=SHAPE["layers"], num_attention_heads=SHAPE["heads"],
        num_key_value_heads=SHAPE["kv_heads"], max_position_embeddings=SHAPE["context"],
        rms_norm_eps=SHAPE["norm_eps"], tie_word_embeddings=True,
        rope_parameters=dict(rope_type="default", rope_theta=SHAPE["rope_theta"]),
        num_local_experts=SHAPE["experts"]["count"], num_experts_per_tok=SHAPE["experts"]["per_token"],
        router_aux_loss_coef=SHAPE["experts"]["aux_loss"], attn_implementation="eager",
    )
    # Products of groups of rows are of 32 bits at most.
    config._experts_implementation = "eager"
    model, start = MixtralForCausalLM(config).double(), 0
    for _, values in named(model, lambda parameter: parameter.data):
        formula = torch.tensor([weight(i) for i in range(start, start + values.numel())], dtype=torch.float64)
        formula = formula + 1.0 if values.dim() == 1 else formula
        values.copy_(formula.float().double().view_as(values))
        start += values.numel()
    return model


def main():
    model = build()
    tokens = torch.tensor([[token(i) for i in range(SHAPE["context"] + 1)]])
    out = model(input_ids=tokens[:, :-1], output_router_logits=True)
    flat = out.logits.reshape(-1, SHAPE["vocab"])
    loss = torch.nn.functional.cross_entropy(flat, tokens[:, 1:].reshape(-1))
    (loss + SHAPE["experts"]["aux_loss"] * out.aux_loss).backward()
    gradients = [
        dict(name=name, shape=list(grad.shape), norm=grad.norm().item(),
             entries=[[i, grad.reshape(-1)[i].item()] for i in range(0, grad.numel(), grad.numel() // 5 + 1)])
        for name, grad in named(model, lambda parameter: parameter.grad)
    ]
    logits = [[i, flat.detach().reshape(-1)[i].item()] for i in range(0, flat.numel(), 97)]
    fixture = dict(model=SHAPE, inner=INNER, batch=1, logits=logits, gradients=gradients, losses=[loss.item()])
    text = ",\n".join(f'"{key}": {json.dumps(value)}' for key, value in fixture.items())
    Path(__file__).with_name("mixtral_fixture.json").write_text("{\n" + text + "\n}\n")


if __name__ == "__main__":
    main()
