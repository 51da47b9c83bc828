"""Writes llama_fixture.json: what PyTorch and Hugging Face's Llama make of weights that follow a formula.

    pip install torch transformers
    python llama_fixture.py

The test `llama_fixture` builds the same weights and tokens, and compares losses, logits and gradients.
In float64, apart from norms and rotary angles, which transformers always computes in float32.
"""
import json
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SHAPE = dict(vocab=61, d_model=48, layers=2, heads=4, kv_heads=2, d_ff=40, context=24, rope_theta=500.0, norm_eps=1e-5)
BATCH, STEPS = 3, 10
INNER = dict(lr=3e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip_norm=1.0)


def weight(index):
    """Value `index` of the flat vector, from −0.25 to 0.25: Knuth's multiplicative hash."""
    return ((index * 2654435761 % 2**32 >> 8) / 2**24 - 0.5) * 0.5


def token(index):
    return (index * 40503 + index * index * 7) % 65537 % SHAPE["vocab"]


def build():
    config = LlamaConfig(
        vocab_size=SHAPE["vocab"], hidden_size=SHAPE["d_model"], intermediate_size=SHAPE["d_ff"],
        num_hidden_layers=SHAPE["layers"], num_attention_heads=SHAPE["heads"],
        num_key_value_heads=SHAPE["kv_heads"], max_position_embeddings=SHAPE["context"],
        rms_norm_eps=SHAPE["norm_eps"], tie_word_embeddings=True,
        rope_parameters=dict(rope_type="default", rope_theta=SHAPE["rope_theta"]),
        attention_bias=False, mlp_bias=False, attn_implementation="eager",
    )
    model = LlamaForCausalLM(config).double()
    start = 0
    for parameter in model.parameters():
        values = torch.tensor([weight(i) for i in range(start, start + parameter.numel())], dtype=torch.float64)
        # Norms are near 1; all values are rounded to float32, which is what the test can hold.
        values = values + 1.0 if parameter.dim() == 1 else values
        parameter.data = values.float().double().view_as(parameter)
        start += parameter.numel()
    return model


def batch(step):
    size = BATCH * (SHAPE["context"] + 1)
    return torch.tensor([token(step * size + i) for i in range(size)]).view(BATCH, -1)


def loss_of(model, tokens):
    logits = model(input_ids=tokens[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, SHAPE["vocab"]), tokens[:, 1:].reshape(-1)), logits


def main():
    model = build()
    loss, logits = loss_of(model, batch(0))
    loss.backward()
    gradients = [
        dict(name=name, shape=list(p.shape), norm=p.grad.norm().item(),
             entries=[[i, p.grad.view(-1)[i].item()] for i in range(0, p.numel(), p.numel() // 5 + 1)])
        for name, p in model.named_parameters()
    ]
    first = [[i, logits.detach().reshape(-1)[i].item()] for i in range(0, logits.numel(), 397)]

    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    optimiser = torch.optim.AdamW(
        [dict(params=decayed, weight_decay=INNER["weight_decay"]), dict(params=others, weight_decay=0.0)],
        lr=INNER["lr"], betas=(INNER["beta1"], INNER["beta2"]), eps=INNER["eps"],
    )
    losses, norms = [], []
    for step in range(STEPS):
        optimiser.zero_grad()
        loss, _ = loss_of(model, batch(step % 2))
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), INNER["clip_norm"]).item())
        optimiser.step()
        losses.append(loss.item())
    fixture = dict(model=SHAPE, inner=INNER, batch=BATCH, logits=first, gradients=gradients, losses=losses, grad_norms=norms)
    text = ",\n".join(f'"{key}": {json.dumps(value)}' for key, value in fixture.items())
    Path(__file__).with_name("llama_fixture.json").write_text("{\n" + text + "\n}\n")


if __name__ == "__main__":
    main()
