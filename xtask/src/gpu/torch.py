"""Tokens a second of one preset in PyTorch: eager and compiled in f32, compiled with TF32 and with bf16. Prints one
JSON object.

    python torch.py VOCAB D_MODEL LAYERS HEADS D_FF CONTEXT BATCH SECONDS
"""

import json
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

VOCAB, WIDTH, LAYERS, HEADS, FF, CONTEXT, BATCH = map(int, sys.argv[1:8])
SECONDS = float(sys.argv[8])
HEAD = WIDTH // HEADS
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def rotate(x, cos, sin):
    """Rotary positions of x [B, H, T, D]: values i and i + D/2 turn together."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


class Layer(nn.Module):
    """Attention and SwiGLU behind RMSNorm."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.ones(WIDTH))
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate_up = nn.Linear(WIDTH, 2 * FF, bias=False)
        self.down = nn.Linear(FF, WIDTH, bias=False)

    def forward(self, x, cos, sin):
        qkv = self.qkv(F.rms_norm(x, (WIDTH,), self.norm1, 1e-5))
        q, k, v = (part.view(BATCH, CONTEXT, HEADS, HEAD).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(BATCH, CONTEXT, WIDTH))
        gate, up = self.gate_up(F.rms_norm(x, (WIDTH,), self.norm2, 1e-5)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    """A Llama-shaped decoder with a tied head; gives the mean loss."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.Parameter(torch.ones(WIDTH))
        frequencies = 10_000.0 ** (-torch.arange(0, HEAD, 2) / HEAD)
        angles = torch.outer(torch.arange(CONTEXT), frequencies).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens):
        x = self.embed(tokens[:, :-1])
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = F.linear(F.rms_norm(x, (WIDTH,), self.norm, 1e-5), self.embed.weight)
        return F.cross_entropy(logits.view(-1, VOCAB), tokens[:, 1:].reshape(-1))


def tokens_per_s(compiled, tf32=False, bf16=False):
    """Median of windows, after steps that are not counted."""
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    model = Model().to(DEVICE)
    loss = torch.compile(model) if compiled else model
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
    tokens = torch.randint(VOCAB, (BATCH, CONTEXT + 1), device=DEVICE)
    wait = torch.cuda.synchronize if DEVICE == "cuda" else lambda: None

    def steps(count):
        for _ in range(count):
            optimiser.zero_grad(set_to_none=True)
            with torch.autocast(DEVICE, torch.bfloat16, enabled=bf16):
                mean = loss(tokens)
            mean.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
        wait()

    steps(3)
    windows, begun = [], time.perf_counter()
    while len(windows) < 3 or time.perf_counter() - begun < SECONDS:
        start = time.perf_counter()
        steps(5)
        windows.append(5 * BATCH * CONTEXT / (time.perf_counter() - start))
    return sorted(windows)[len(windows) // 2]


device = torch.cuda.get_device_name() if DEVICE == "cuda" else f"cpu, {torch.get_num_threads()} threads"
figures = {"torch": torch.__version__, "device": device}
forms = {
    "eager": {"compiled": False},
    "compiled": {"compiled": True},
    "tf32": {"compiled": True, "tf32": True},
    "bf16": {"compiled": True, "bf16": True},
}
for name, form in forms.items():
    try:
        figures[name] = tokens_per_s(**form)
    except Exception as error:  # a missing compiler must not cost the other figure
        figures[name], figures[f"{name}_error"] = None, f"{type(error).__name__}: {error}"[:200]
print(json.dumps(figures))
