"""The command `archipelago-train`."""

from __future__ import annotations

import argparse
import logging
import os
import sys

from ._errors import ArchipelagoError
from ._trackers import TRACKERS
from ._watch import watch


def main(words: list[str] | None = None) -> int:
    """Runs the command. Returns the exit code: 0, 1 after an error, 2 for wrong flags, or 130 after Ctrl+C."""
    parser = argparse.ArgumentParser(prog="archipelago-train")
    commands = parser.add_subparsers(dest="command", required=True)
    followed = commands.add_parser(
        "watch",
        help="write a run's curves to an experiment tracker while it trains",
        description="Writes the curves of a run to an experiment tracker until the run is complete. A new start "
        "continues where the last one stopped.",
    )
    followed.add_argument("url", metavar="URL", help="the syncer's address, or a link to the run's page")
    followed.add_argument("--to", required=True, choices=TRACKERS, help="the tracker; jsonl is a file")
    followed.add_argument(
        "--project",
        default="archipelago",
        help="the tracker's project, or the folder for tensorboard and jsonl (default: archipelago)",
    )
    followed.add_argument("--name", help="the tracker's name for the run (default: run- and the run's id)")
    followed.add_argument(
        "--token", help="the owner's token, for proxies and full servers (default: $ARCHIPELAGO_TOKEN)"
    )
    followed.add_argument("--once", action="store_true", help="write what there is, and end")
    followed.add_argument(
        "--learners", type=int, default=16, metavar="N", help="learners whose rates are written (default: 16)"
    )
    followed.add_argument(
        "--give-up-s",
        type=float,
        default=3600.0,
        metavar="SECONDS",
        help="longest time without an answer after the first contact (default: 3600)",
    )
    given = parser.parse_args(words)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        rows = watch(
            given.url,
            to=given.to,
            project=given.project,
            name=given.name,
            token=given.token or os.environ.get("ARCHIPELAGO_TOKEN") or None,
            once=given.once,
            learners=given.learners,
            give_up_s=given.give_up_s,
        )
    except KeyboardInterrupt:
        return 130
    except (ArchipelagoError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{rows} rows written to {given.to}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
