"""A learner of several processes, started by `torchrun`: compares its ranks after each change.

Usage: ranks.py URL KEY ddp|fsdp2|tensor|accelerate STEPS
"""

import hashlib
import sys

import archipelago_train
import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

MEAN = ["0.weight"]


def model() -> torch.nn.Sequential:
    """A model with a matrix whose rows 4 ranks cannot share equally."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Embedding(256, 30), torch.nn.Linear(30, 66), torch.nn.GELU(), torch.nn.Linear(66, 256)
    )


def whole(param: torch.Tensor) -> torch.Tensor:
    """Returns all values of a parameter."""
    param = param.detach()
    return param.full_tensor() if isinstance(param, DTensor) else param


def main() -> None:
    """Trains, and fails if two ranks differ."""
    url, key, kind, most = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks, rank = dist.get_world_size(), dist.get_rank()
    mesh = dist.init_device_mesh("cpu", (ranks,))
    module = model()
    forward: torch.nn.Module = module
    accelerator = Accelerator(cpu=True) if kind == "accelerate" else None
    if accelerator is not None:
        forward = accelerator.prepare(module)
    elif kind == "ddp":
        forward = DistributedDataParallel(module)
    elif kind == "fsdp2":
        fully_shard(module[1], mesh=mesh)
        fully_shard(module, mesh=mesh)
    else:
        parallelize_module(module, mesh, {"1": ColwiseParallel(), "3": RowwiseParallel()})
    optimiser = torch.optim.SGD(module.parameters(), lr=0.5)
    part = (0, 1) if kind == "tensor" else (rank, ranks)
    if accelerator is not None:
        learner = archipelago_train.prepare(accelerator, forward, url, identity=key, batch=8)
    else:
        learner = archipelago_train.Learner(
            url, module.named_parameters(), identity=key, batch=8, group=dist.group.WORLD, data_part=part
        )
    names = {name for name, _ in module.named_parameters()}
    assert learner.changed == names, learner.changed
    changes, first, last = 0, 0.0, 0.0
    with learner:
        for steps, tokens in enumerate(learner.batches(), 1):
            assert tokens.shape[0] == 8 // part[1], tokens.shape
            loss = torch.nn.functional.cross_entropy(forward(tokens[:, :-1]).flatten(0, 1), learner.labels.flatten())
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            last = float(loss.detach())
            first = first or last
            before = {name: whole(param).clone() for name, param in module.named_parameters()}
            learner.step(loss)
            after = {name: whole(param) for name, param in module.named_parameters()}
            changed = {name for name in names if not torch.equal(before[name], after[name])}
            assert changed <= learner.changed, (changed, learner.changed)
            changes += bool(learner.changed)
            digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in after.values())).hexdigest()
            digests: list[str | None] = [None] * ranks
            dist.all_gather_object(digests, digest)
            assert len(set(digests)) == 1, f"{steps}: {digests}"
            if steps >= most and changes > 20:
                break
    if rank == 0:
        report = learner.report
        print(f"{changes} changes, {report.updates_merged} merged, loss {first:.2f} to {last:.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
