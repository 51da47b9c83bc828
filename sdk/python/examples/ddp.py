"""Several processes as one learner, each with a copy of the model (DistributedDataParallel).

Usage:
    pip install torch
    torchrun --nproc-per-node 2 ddp.py ws://HOST:7700        a run of the model in module.py, on CPUs or GPUs
"""

import argparse
import os

import archipelago_train
import torch
import torch.distributed as dist
from module import Reader
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Trains until the run is complete."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--identity", help="the file of the learner's key")
    args = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    # The initial values do not matter: the run replaces them, on all ranks alike.
    model = Reader().to(device)
    parallel = DistributedDataParallel(model)
    optimiser = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99))
    params = dict(model.named_parameters())
    with archipelago_train.Learner(args.url, params, identity=args.identity, group=dist.group.WORLD) as learner:
        for steps, tokens in enumerate(learner.batches(), 1):
            for group in optimiser.param_groups:
                group["lr"] = learner.learning_rate
            logits = parallel(tokens[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), learner.labels.flatten())
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            learner.step(loss)
            if steps % 50 == 0 and dist.get_rank() == 0:
                now = learner.report
                print(f"{steps} steps, loss {loss:.3f}, {now.updates_merged} updates merged", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
