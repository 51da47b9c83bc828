"""PyTorch learners with native ones and browsers. `cargo xtask test --only pytorch` runs them."""

import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import archipelago_train
import torch
from transformers import MixtralConfig, MixtralForCausalLM

from .support import EXAMPLES, PROMPT, RunCase, programs, until, write_answers

# The run in which learners of several kinds train, and the run to compare it with.
TOKENS = 1_000_000
# The built pages, unset if browser tests are switched off, and the program that opens one in a browser.
PAGES = os.environ.get("ARCHIPELAGO_PAGES")
LEND = Path(__file__).parents[3] / "web-demo/tests/lend.mjs"


class Torch(RunCase):
    """Modules on the CPU."""

    def setUp(self) -> None:
        """Limits each learner to one thread: they share the machine."""
        super().setUp()
        torch.set_num_threads(1)
        os.environ["OMP_NUM_THREADS"] = "1"

    def test_the_second_program_of_the_readme(self) -> None:
        """The program trains any module."""
        said = self.run_program(programs()[1])
        loss, waited = said.removeprefix("loss ").removesuffix(" % of the time waited\n").split(", ")
        self.assertLess(float(loss), 4.0, said)
        print(f"sync_ratio of a small module: {waited} %")

    def test_tensors_of_any_width(self) -> None:
        """bfloat16, float64 and a moved view: each is filled with the run's values and trained in place."""
        values = torch.arange(24, dtype=torch.float32).view(4, 3, 2) / 16
        file = self.folder / "a.safetensors"
        archipelago_train.write_params(file, {"conv": values, "bias": torch.ones(5)})
        run = self.serve(params=file, preset="tiny", lr=1)
        narrow = torch.nn.Parameter(torch.zeros(4, 3, 2, dtype=torch.bfloat16))
        wide = torch.nn.Parameter(torch.zeros(5, dtype=torch.float64))
        learner = self.learner(run, {"conv": narrow, "bias": wide})
        self.assertTrue(torch.equal(narrow.float(), values))
        self.assertTrue(torch.equal(wide, torch.ones(5, dtype=torch.float64)))
        # Does the same as `module.to(…)`.
        narrow.data = narrow.data.clone()
        for tokens in learner.batches():
            self.assertEqual(tokens.dtype, torch.int64)
            with torch.no_grad():
                narrow.add_(0.25)
            learner.step(torch.ones(()))
            if learner.report.updates_merged > 16:
                break
        learner.close()
        self.assertGreater((narrow.float() - values).mean(), 0.2)
        with self.assertRaises(archipelago_train.LayoutError) as raised:
            archipelago_train.Learner(run.url, {"conv": values.permute(2, 1, 0), "bias": wide})
        self.assert_a_sentence(raised.exception, "tensor conv is not contiguous")
        with self.assertRaises(archipelago_train.DtypeError) as refused:
            archipelago_train.Learner(run.url, {"conv": torch.zeros(3, dtype=torch.int8)})
        self.assert_a_sentence(refused.exception, "tensor conv is torch.int8")

    def test_what_is_given_is_read_and_not_learnt(self) -> None:
        """Labels fit `cross_entropy`; a batch without tokens to learn is a step without a loss."""
        model = torch.nn.Sequential(torch.nn.Embedding(256, 16), torch.nn.Linear(16, 256))
        file = self.folder / "a.safetensors"
        archipelago_train.write_params(file, model.named_parameters(), mean=["0.weight"])
        data = write_answers(self.folder)
        # The prompt is long enough that most windows have no token to learn.
        line = json.dumps({"prompt": PROMPT.decode() * 400, "completion": "they"})
        data.write_text(data.read_text() + f"{line}\n" * 20)
        run = self.serve(params=file, data=data, preset="tiny", lr=0.02, flags=["--batch", "1"])
        learner = self.learner(run, model.named_parameters())
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        empty, full = 0, 0
        for tokens in learner.batches():
            labels = learner.labels
            self.assertEqual((labels.dtype, labels.device), (torch.int64, tokens.device))
            given = torch.isin(tokens[:, 1:], torch.tensor(list(PROMPT)))
            self.assertTrue(torch.equal(labels, tokens[:, 1:].masked_fill(given, -100)))
            loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), labels.flatten())
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            self.assertEqual(bool(torch.isfinite(loss)), not given.all())
            empty, full = empty + bool(given.all()), full + (not given.all())
            learner.step(loss)
            if empty > 4 and full > 4:
                break
        self.assertTrue(all(bool(param.isfinite().all()) for param in model.parameters()))

    def test_compiled_and_in_mixed_precision(self) -> None:
        """A compiled module under autocast trains with parameters that the learner changes meanwhile."""
        model = torch.nn.Sequential(torch.nn.Embedding(256, 16), torch.nn.Linear(16, 256))
        file = self.folder / "a.safetensors"
        archipelago_train.write_params(file, model.named_parameters(), mean=["0.weight"])
        run = self.serve(params=file, preset="tiny", lr=0.02)
        learner = self.learner(run, model.named_parameters())
        # Needs no C compiler; the graph is captured all the same.
        forward = torch.compile(model, backend="aot_eager")
        optimiser = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
        losses = []
        for tokens in learner.batches():
            with torch.autocast("cpu", torch.bfloat16):
                logits = forward(tokens[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), learner.labels.flatten())
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            losses.append(float(loss.detach()))
            learner.step(loss)
            if learner.report.updates_merged > 32:
                break
        self.assertLess(losses[-1], losses[0] - 1.0)

    def test_llama_converges_as_one_with_native_learners(self) -> None:
        """LlamaForCausalLM, a native learner and a browser reach the loss of as many native learners.

        After a kill and a restart, the first learner is merged again.
        """
        kinds = ["torch", *(["browser"] if PAGES else []), "native"]
        mixed = self.trained("mixed", *kinds)
        native = self.trained("native", *["native"] * len(kinds))
        print(f"held-out loss after {TOKENS} tokens: mixed {mixed:.3f}, native {native:.3f}")
        self.assertLess(abs(mixed - native), 0.15)

    def test_a_mixtral_of_transformers(self) -> None:
        """The fused tensors are filled with the run's experts, and their training is merged."""
        config = MixtralConfig(
            vocab_size=256,
            hidden_size=64,
            intermediate_size=176,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            num_local_experts=4,
            num_experts_per_tok=2,
            max_position_embeddings=64,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
            tie_word_embeddings=True,
        )
        model = MixtralForCausalLM(config)
        run = self.serve(preset="tiny", lr=0.003, stop_at_tokens=60_000, flags=["--experts", "4"])
        learner = self.learner(run, model.named_parameters())
        archipelago_train.export(run.dir, self.folder / "begun")
        # Updates and changes are rounded.
        self.assert_the_same(
            model, MixtralForCausalLM.from_pretrained(self.folder / "begun", dtype=torch.float32), 1e-3
        )
        optimiser = torch.optim.AdamW(model.parameters(), lr=0.003)
        losses = []
        for tokens in learner.batches():
            logits = model(input_ids=tokens[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), learner.labels.flatten())
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            losses.append(float(loss.detach()))
            learner.step(loss)
        self.assertLess(sum(losses[-8:]) / 8, losses[0] - 1.0)
        self.assertEqual(run.status()["fates"]["refused"], {})
        run.stop()
        archipelago_train.export(run.dir, self.folder / "trained")
        trained = MixtralForCausalLM.from_pretrained(self.folder / "trained", dtype=torch.float32)
        # The last steps are not merged yet; with experts in other places all values would differ.
        self.assert_the_same(model, trained, 0.3)

    def assert_the_same(self, model: torch.nn.Module, other: torch.nn.Module, apart: float) -> None:
        """Asserts that the parameters of two models differ by no more than this share of their length."""
        theirs = dict(other.named_parameters())
        for name, own in model.named_parameters():
            found = float((own - theirs[name]).detach().norm() / own.detach().norm())
            self.assertLessEqual(found, apart, name)

    def trained(self, name: str, *kinds: str) -> float:
        """Trains a run with learners of these kinds; returns its held-out loss."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        run = archipelago_train.serve(
            folder / "run",
            preset="tiny",
            stop_at_tokens=TOKENS,
            flags=["--eval-every", "1s", *(["--pages", PAGES] if PAGES else [])],
        )
        with run:
            learners = []
            for at, kind in enumerate(kinds):
                learners.append(self.start(kind, run, folder / f"{at}.key", f"{kind}-{at}"))
                if kind == "torch":
                    self.killed_and_merged_again(run, learners, folder)
                elif kind == "browser":
                    until("the browser is merged", partial(self.merged, run, f"{kind}-{at}"))
            until_s = time.monotonic() + 600
            while not run.status()["finished"] and time.monotonic() < until_s:
                time.sleep(1)
            status: dict[str, Any] = run.status()
            said = [learner.communicate(timeout=60)[0] for learner in learners]
        self.assertTrue(status["finished"], status)
        self.assertEqual(status["fates"]["refused"], {})
        merged = {learner["name"]: learner["tokensMerged"] for learner in status["learners"]}
        print(f"{name}: tokens merged of each {merged}")
        self.assertEqual(len(merged), len(kinds))
        self.assertGreater(min(merged.values()), 0)
        for kind, text in zip(kinds, said, strict=True):
            if kind == "torch":
                # Timings are printed and not tested: other programs may use this machine.
                print(f"{name}: {text.strip().splitlines()[-1]}")
        return float(status["valLossLast"])

    def killed_and_merged_again(
        self, run: archipelago_train.Server, learners: "list[subprocess.Popen[str]]", folder: Path
    ) -> None:
        """Kills the first learner once it is merged, and restarts it under the same key."""
        until("it is merged", lambda: self.merged(run, "torch-0"))
        learners[0].kill()
        learners[0].communicate()
        before = self.merged(run, "torch-0")
        learners[0] = self.start("torch", run, folder / "0.key", "torch-0")
        until("it is merged again", lambda: self.merged(run, "torch-0") > before)

    def merged(self, run: archipelago_train.Server, name: str) -> float:
        """Returns the merged tokens of a learner."""
        learners = run.status()["learners"]
        return sum(float(learner["tokensMerged"]) for learner in learners if learner["name"] == name)

    def start(self, kind: str, run: archipelago_train.Server, key: Path, name: str) -> "subprocess.Popen[str]":
        """Starts a learner as a process."""
        program = Path(os.environ["ARCHIPELAGO_BIN"]) / "native-learner"
        kept = ["--identity", str(key), "--name", name]
        words = {
            "native": [str(program), "join", run.url, "--engine", "cpu", "--threads", "1", *kept],
            "torch": [sys.executable, str(EXAMPLES / "llama.py"), run.url, *kept],
            "browser": ["node", str(LEND), run.page, name],
        }[kind]
        learner = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.addCleanup(learner.kill)
        return learner
