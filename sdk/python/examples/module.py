"""An ordinary recurrent network in PyTorch, turned into a learner.

Usage:
    python module.py --write FILE                 writes the initial parameters of its run
    syncer-server serve --params FILE --preset tiny --lr 0.005 --dir runs/module
    python module.py ws://HOST:7700 [--compile]   joins the run
"""

import argparse

import archipelago_train
import torch


class Reader(torch.nn.Module):
    """Reads bytes, [batch, length], and scores the next ones, [batch, length, 256]."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(256, 32)
        self.read = torch.nn.GRU(32, 96, batch_first=True)
        self.head = torch.nn.Linear(96, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns the scores of each next byte."""
        read, _ = self.read(self.embed(tokens))
        return self.head(read)


def main() -> None:
    """Writes the file, or trains until the run is complete."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url", nargs="?")
    parser.add_argument("--write", metavar="FILE")
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Reader().to(device)
    mean = ["embed.weight"]
    if args.write:
        archipelago_train.write_params(args.write, model.named_parameters(), mean=mean)
        return
    if not args.url:
        parser.error("give the address of a run, or --write FILE")
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.005)
    forward = torch.compile(model) if args.compile else model

    with archipelago_train.Learner(args.url, model.named_parameters()) as learner:
        for steps, tokens in enumerate(learner.batches(), 1):
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                logits = forward(tokens[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), learner.labels.flatten())
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            learner.step(loss)
            if steps % 100 == 0:
                print(f"{steps} steps, loss {loss:.3f}, {learner.report.updates_merged} updates merged", flush=True)


if __name__ == "__main__":
    main()
