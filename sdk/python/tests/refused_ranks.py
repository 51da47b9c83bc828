"""Groups that cannot be a learner: each rank prints the error in a line.

Usage: refused_ranks.py URL KEY layout|part|unreachable|alone|evaluate
"""

import sys
from typing import Any

import archipelago_train
import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor


def main() -> None:
    """Makes a learner that is refused."""
    url, key, kind = sys.argv[1:4]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    params: dict[str, torch.Tensor] = {"tensor": torch.zeros(3)}
    options: dict[str, Any] = {"identity": key, "group": dist.group.WORLD}
    match kind:
        case "layout":
            params = {"other": torch.zeros(3)} if rank else params
        case "part":
            options["data_part"] = (2, 2)
        case "unreachable":
            url = "ws://127.0.0.1:9"
            options["contact_s"] = 1.0
        case "alone":
            mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
            params = {"a": distribute_tensor(torch.zeros(4, 3), mesh, [Shard(0)])}
            options["group"] = None
        case "evaluate":
            options["evaluate"] = lambda params, windows, labels: 0.0
    try:
        archipelago_train.Learner(url, params, **options)
    except (archipelago_train.ArchipelagoError, ValueError) as error:
        # In one write, since the ranks share the output.
        sys.stdout.write(f"{error}\n")
        sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
