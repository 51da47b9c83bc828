"""Several processes as one learner. `cargo xtask test --only pytorch` runs it."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import archipelago_train
import torch

from . import ranks
from .support import RunCase, until

TESTS = Path(__file__).parent
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "2"]


class Group(RunCase):
    """Processes on the CPU, with gloo."""

    def start(self, processes: int, program: str, *words: str) -> "subprocess.Popen[str]":
        """Starts a program of this folder on so many processes."""
        launched = subprocess.Popen(
            [*TORCHRUN, "--nproc-per-node", str(processes), str(TESTS / program), *words],
            env=os.environ | {"OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(self.folder / "state")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.addCleanup(self.end, launched)
        return launched

    def end(self, launched: "subprocess.Popen[str]") -> None:
        """Ends the launcher, and with it all ranks."""
        if launched.poll() is None:
            os.killpg(launched.pid, signal.SIGTERM)
            launched.communicate(timeout=60)

    def said(self, launched: "subprocess.Popen[str]") -> str:
        """Waits for the end, and returns the output."""
        out, errors = launched.communicate(timeout=300)
        self.assertEqual(launched.returncode, 0, errors)
        return out

    def serve_model(self) -> archipelago_train.Server:
        """Starts a run of the model in `ranks.py`."""
        file = self.folder / "model.safetensors"
        archipelago_train.write_params(file, ranks.model().named_parameters(), mean=ranks.MEAN)
        return self.serve(params=file, preset="tiny", lr=0.5)

    def test_all_ranks_hold_the_same_parameters(self) -> None:
        """After each change, and with matrices that are cut unevenly; the loss falls."""
        run = self.serve_model()
        last = 0.0
        for kind, processes in [("ddp", 2), ("ddp", 4), ("fsdp2", 2), ("fsdp2", 4), ("tensor", 2), ("accelerate", 2)]:
            with self.subTest(kind=kind, processes=processes):
                key = str(self.folder / f"{kind}-{processes}")
                said = self.said(self.start(processes, "ranks.py", run.url, key, kind, "60"))
                found = re.fullmatch(r"(\d+) changes, (\d+) merged, loss ([\d.]+) to ([\d.]+)\n", said)
                assert found is not None, said
                self.assertGreater(int(found[2]), 8, said)
                last = float(found[4])
        self.assertLess(last, 4.0)
        self.assertEqual(run.status()["fates"]["refused"], {})

    def test_a_killed_rank_takes_the_learner_down_and_it_comes_back(self) -> None:
        """The run knows one learner, before and after."""
        run = self.serve_model()
        launched = self.start(2, "ranks.py", run.url, str(self.folder / "key"), "ddp", "1000000")

        def merged() -> float:
            return sum(float(learner["tokensMerged"]) for learner in run.status()["learners"])

        until("it is merged", merged)
        found = subprocess.run(["pgrep", "-P", str(launched.pid)], capture_output=True, text=True, check=True)
        os.kill(int(found.stdout.split()[-1]), signal.SIGKILL)
        before = merged()
        until("it is merged again", lambda: merged() > before + 10_000)
        self.assertEqual(len(run.status()["learners"]), 1)

    def test_what_does_not_fit_is_refused(self) -> None:
        """In one sentence, on each rank."""
        run = self.serve_model()
        for words, part in [
            (["layout"], "rank 1 of the group has tensor other [3] where rank 0 has tensor [3]"),
            (["part"], "data_part=(2, 2) does not fit a group of 2 ranks"),
            (["unreachable"], "did not admit this learner"),
            (["alone"], "tensor a is sharded over processes (DTensor)"),
            (["evaluate"], "a group of processes does not evaluate"),
        ]:
            with self.subTest(words=words):
                said = self.said(self.start(2, "refused_ranks.py", run.url, str(self.folder / "key"), *words))
                lines = said.splitlines()
                self.assertEqual(len(lines), 2, said)
                for line in lines:
                    self.assertIn(part, line)

    def test_a_trainer_is_a_learner(self) -> None:
        """In one process and in two: it is merged, logs its report, and ends with the run."""
        self.trainers_are_learners("transformers", 150_000)

    def test_a_trainer_of_trl_is_a_learner(self) -> None:
        """The same with `SFTTrainer`."""
        self.trainers_are_learners("trl", 80_000)

    def trainers_are_learners(self, kind: str, tokens: int) -> None:
        """Trains a run of so many tokens with a trainer of this kind in one process, and another run in two."""
        for processes in (1, 2):
            with self.subTest(processes=processes):
                folder = self.folder / f"trainer-{processes}"
                run = archipelago_train.serve(
                    folder / "run", preset="tiny", lr=0.003, stop_at_tokens=tokens, flags=["--eval-every", "1s"]
                )
                with run:
                    said = self.said(self.start(processes, "trainer.py", run.url, str(folder), kind))
                    status = run.status()
                self.assertTrue(status["finished"], said)
                self.assertEqual(status["fates"]["refused"], {})
                self.assertEqual(len(status["learners"]), 1)
                self.assertIn("'archipelago/updates_merged': ", said)
                self.assertLess(status["valLossLast"], 4.0)


if not torch.distributed.is_available():
    raise ImportError("this PyTorch has no torch.distributed")
