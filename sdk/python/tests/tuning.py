"""Compares held-out losses of fine-tuning by four learners and by one PyTorch process, with all weights and adapters.

One learner trains a model on one text. Four learners, which exchange four bits a value, then fine-tune it on another
text. PyTorch with `transformers`, or `peft` for adapters, does the same from the same folder on as many tokens. Both
sides try the same rates; the best of each is chosen on one part of the text and reported on another.

    pip install -r tests/requirements-torch.txt peft
    python -m tests.tuning --programs ../../target/release --begin FILE --then FILE
"""

import argparse
import itertools
import json
import math
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaForCausalLM

LEARNERS = 4
# Windows in one step of PyTorch, and of all learners together, so that each learner takes as many steps as PyTorch.
BATCH = 8
RANK = 8
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# Learning rates that both sides try.
RATES = {"all weights": [5e-4, 1e-3, 2e-3, 4e-3], "adapters": [2e-3, 4e-3, 8e-3, 1.6e-2]}
# As in the presets.
WARMUP, LR_MIN_RATIO, CLIP_NORM = 0.05, 0.1, 1.0
ADAMW = {"betas": (0.9, 0.99), "eps": 1e-8}
WEIGHT_DECAY = 0.1
WAIT_S = 7_200.0


class Texts:
    """A text as bytes in three parts: for training, for choosing a rate, and for reporting."""

    def __init__(self, file: Path, folder: Path) -> None:
        """Splits the text, and writes the training part into the folder."""
        text = file.read_bytes()
        cuts = [0, len(text) * 8 // 10, len(text) * 9 // 10, len(text)]
        self.train, self.choose, self.tell = (text[a:b] for a, b in itertools.pairwise(cuts))
        self.file = folder / f"{file.stem}.txt"
        self.file.write_bytes(self.train)


class Lab:
    """Programs, and a folder for their output."""

    def __init__(self, programs: Path, folder: Path, settings: list[str]) -> None:
        """Starts nothing yet; every syncer gets these settings in addition to its own."""
        self.programs, self.folder, self.settings, self.runs = programs, folder, settings, 0

    def train(self, learners: int, text: Texts, tokens: int, *flags: str, merged: bool = False) -> Path:
        """Trains with this many learners on this many tokens; returns the exported folder."""
        self.runs += 1
        run, out = self.folder / f"run-{self.runs}", self.folder / f"model-{self.runs}"
        serve: list[str | Path] = [
            self.programs / "syncer-server",
            "serve",
            "--json",
            "--listen",
            "127.0.0.1:0",
            "--dir",
            run,
        ]
        serve += ["--data", text.file, "--total-tokens", str(tokens), "--stop-at-tokens", str(tokens)]
        serve += ["--learners-start", str(learners), "--no-eval", *self.settings, *flags]
        syncer = subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert syncer.stdout
        address = json.loads(syncer.stdout.readline())["address"]
        joined = []
        try:
            for at in range(learners):
                join: list[str | Path] = [
                    self.programs / "native-learner",
                    "join",
                    f"ws://{address}",
                    "--engine",
                    "cpu",
                ]
                join += ["--threads", "1", "--name", f"learner-{at}", "--identity", run / f"{at}.key"]
                joined.append(subprocess.Popen(join, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            until_s = time.monotonic() + WAIT_S
            while not finished(address):
                assert time.monotonic() < until_s, "the run does not come to its end"
                time.sleep(0.5)
            for learner in joined:
                learner.wait(60)
        finally:
            for learner in joined:
                learner.kill()
            syncer.terminate()
            syncer.wait(60)
        export: list[str | Path] = [self.programs / "syncer-server", "export", run, "--out", out]
        subprocess.run([*export, *(["--merged"] if merged else [])], check=True, stdout=subprocess.DEVNULL)
        return out


def finished(address: str) -> bool:
    """Whether the run at this address is complete."""
    with urllib.request.urlopen(f"http://{address}/v1/status", timeout=10) as answer:
        status: dict[str, Any] = json.load(answer)
    return bool(status["finished"])


def windows(text: bytes, context: int, seed: int) -> Iterator[torch.Tensor]:
    """Yields batches of windows in random order, one pass through the text after another."""
    tokens = torch.tensor(list(text), dtype=torch.int64)
    chance = torch.Generator().manual_seed(seed)
    while True:
        first = int(torch.randint(context, (1,), generator=chance))
        starts = torch.arange(first, len(tokens) - context, context)
        starts = starts[torch.randperm(len(starts), generator=chance)]
        for at in range(0, len(starts) - BATCH + 1, BATCH):
            yield torch.stack([tokens[start : start + context + 1] for start in starts[at : at + BATCH].tolist()])


def loss_of(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Returns the mean loss of the next token, in nats."""
    logits = model(input_ids=tokens[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def held_out(model: Any, text: bytes, context: int) -> float:
    """Returns the mean loss over a whole text, in adjacent windows."""
    tokens = torch.tensor(list(text), dtype=torch.int64)
    starts = range(0, len(tokens) - context, context)
    rows = torch.stack([tokens[start : start + context + 1] for start in starts])
    with torch.no_grad():
        losses = [float(loss_of(model, part)) * len(part) for part in rows.split(32)]
    return sum(losses) / len(rows)


def rate(share: float) -> float:
    """Returns the learning rate after this share of the run, as a share of the highest rate."""
    if share < WARMUP:
        return 0.01 + 0.99 * share / WARMUP
    phase = (share - WARMUP) / (1 - WARMUP)
    return LR_MIN_RATIO + (1 - LR_MIN_RATIO) * 0.5 * (1 + math.cos(math.pi * phase))


def pytorch(folder: Path, kind: str, lr: float, text: Texts, tokens: int, seed: int) -> Any:
    """Fine-tunes the model in the folder with PyTorch in one process."""
    torch.manual_seed(seed)
    model: Any = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    context = model.config.max_position_embeddings
    if kind == "adapters":
        model = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=TARGETS))
    trained = [param for param in model.parameters() if param.requires_grad]
    groups = [
        {"params": [param for param in trained if param.dim() > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [param for param in trained if param.dim() < 2], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(groups, lr=lr, **ADAMW)
    steps = tokens // (BATCH * context)
    for step, batch in zip(range(steps), windows(text.train, context, seed), strict=False):
        for group in optimiser.param_groups:
            group["lr"] = lr * rate(step / steps)
        loss_of(model, batch).backward()
        torch.nn.utils.clip_grad_norm_(trained, CLIP_NORM)
        optimiser.step()
        optimiser.zero_grad()
    return model


def main() -> None:
    """Prints a line for each run, and a row of each kind at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=Path, required=True, help="where syncer-server and native-learner are")
    begin = parser.add_mutually_exclusive_group(required=True)
    begin.add_argument("--begin", type=Path, help="the text that the model learns first")
    begin.add_argument("--start", type=Path, help="the exported model that has learnt it, to begin with the same again")
    parser.add_argument("--keep-start", type=Path, help="where that model is kept for --start")
    parser.add_argument("--then", type=Path, required=True, help="the text that it is fine-tuned on")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--kinds", nargs="+", choices=RATES, default=list(RATES), help="what is fine-tuned")
    parser.add_argument("--begin-tokens", type=int, default=4_000_000)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--sides", nargs="+", choices=["archipelago", "pytorch"], default=["archipelago", "pytorch"])
    parser.add_argument("--serve", default="", help='settings of syncers, as "--outer-lr 0.8 --sync-every 12"')
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(args.programs, Path(folder), args.serve.split())
        text = Texts(args.then, lab.folder)
        start = args.start
        if start is None:
            start = lab.train(1, Texts(args.begin, lab.folder), args.begin_tokens, "--preset", args.preset)
        if args.keep_start:
            shutil.copytree(start, args.keep_start)
        model = LlamaForCausalLM.from_pretrained(start, dtype=torch.float32)
        context = model.config.max_position_embeddings
        print(f"before: {held_out(model, text.tell, context):.4f}", flush=True)
        for kind in args.kinds:
            rates, best = RATES[kind], {}
            for side in args.sides:
                found = []
                for lr in rates:
                    losses = [tuned(lab, start, side, kind, lr, text, args.tokens, s) for s in range(args.seeds)]
                    chosen_by, told = (sum(part) / len(part) for part in zip(*losses, strict=True))
                    print(f"{kind}, {side}, rate {lr}: {chosen_by:.4f} · {told:.4f}", flush=True)
                    found.append((chosen_by, told, lr))
                best[side] = min(found)
            if len(best) < 2:
                continue
            ours, theirs = best["archipelago"], best["pytorch"]
            print(
                f"| {kind} | {ours[1]:.4f} at {ours[2]} | {theirs[1]:.4f} at {theirs[2]} "
                f"| {100 * (ours[1] / theirs[1] - 1):+.2f} % |",
                flush=True,
            )


def tuned(
    lab: Lab, start: Path, side: str, kind: str, lr: float, text: Texts, tokens: int, seed: int
) -> tuple[float, float]:
    """Returns the losses of one run on the choosing part and on the reporting part."""
    if side == "pytorch":
        model = pytorch(start, kind, lr, text, tokens, seed)
    else:
        adapters = ["--lora-rank", str(RANK)] if kind == "adapters" else []
        flags = [
            "--init",
            str(start),
            "--batch",
            str(BATCH // LEARNERS),
            "--lr",
            str(lr),
            "--seed",
            str(seed),
            *adapters,
        ]
        folder = lab.train(LEARNERS, text, tokens, *flags, merged=kind == "adapters")
        model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    context = model.config.max_position_embeddings
    return held_out(model, text.choose, context), held_out(model, text.tell, context)


if __name__ == "__main__":
    main()
