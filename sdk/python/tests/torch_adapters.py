"""Tests of adapters: a model of PEFT learns in a run of `serve --lora-rank`, next to a native learner."""

import json
import unittest
from typing import Any

import archipelago_train
import peft
import torch
from archipelago_train.integrations.peft import lora_config
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from .support import RunCase, until

RANK = 4
FLAGS = ["--lora-rank", str(RANK), "--lora-alpha", "12", "--lora-targets", "q,v,down", "--eval-every", "1s"]


class Adapters(RunCase):
    """A run that trains adapters on a model that was trained for a few steps."""

    def setUp(self) -> None:
        """Trains the model and exports it."""
        super().setUp()
        self.base = self.folder / "base"
        run = archipelago_train.serve(
            self.folder / "first", preset="tiny", lr=0.01, stop_at_tokens=60_000, exit_when_finished=True
        )
        with run:
            self.lend(run)
            run.wait(120)
        archipelago_train.export(self.folder / "first", self.base)

    def model(self, url: str) -> peft.PeftModel:
        """Returns the base model with the run's adapters."""
        return peft.get_peft_model(AutoModelForCausalLM.from_pretrained(self.base), lora_config(url))

    def test_a_peft_model_is_a_learner(self) -> None:
        """Its adapters lower the loss, are merged with those of a native learner, and PEFT reads the result."""
        run = self.serve(init=self.base, lr=0.01, stop_at_tokens=400_000, flags=FLAGS)
        model = self.model(run.url)
        self.assertEqual((model.peft_config["default"].r, model.peft_config["default"].lora_alpha), (RANK, 12))
        before = until("a loss", lambda: run.status()["valLossLast"])
        learner = self.learner(run, model.named_parameters(), batch=8)
        begun = {name: param.detach().clone() for name, param in model.named_parameters() if param.requires_grad}
        self.lend(run)
        optimizer = torch.optim.AdamW([param for param in model.parameters() if param.requires_grad], lr=0.01)
        for tokens in learner.batches():
            loss = model(tokens[:, :-1]).logits.flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(loss, learner.labels.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            learner.step(loss)
        status = run.status()
        self.assertTrue(status["finished"])
        self.assertEqual(status["fates"]["refused"], {})
        self.assertEqual(len(status["learners"]), 2)
        self.assertGreater(learner.report.updates_merged, 0)
        after = until("the last loss", lambda: run.status()["valLossLast"])
        self.assertLess(after, before - 0.1)

        run.stop()
        folder = self.folder / "adapters"
        archipelago_train.export(run.dir, folder)
        config = json.loads((folder / "adapter_config.json").read_text())
        self.assertEqual((config["r"], config["lora_alpha"]), (RANK, 12))
        merged: dict[str, Any] = load_file(folder / "adapter_model.safetensors")
        self.assertEqual(set(merged), {name.replace(".default.", ".") for name in begun})
        loaded = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(self.base), folder)
        text = torch.tensor([list(range(32, 96))])
        with torch.no_grad():
            ours, theirs = model(text).logits, loaded(text).logits
        # The learner also has its progress since the last merge.
        self.assertLess(float((ours - theirs).abs().mean()), 0.3 * float(ours.std()))

    def test_other_adapters_are_refused_by_name(self) -> None:
        """A sentence names the tensors, or the right shape."""
        run = self.serve(init=self.base, flags=FLAGS)
        for rank, targets, part in [(2, ["q", "v", "down"], "in the run"), (RANK, ["q"], "v_proj.lora_A")]:
            config = peft.LoraConfig(r=rank, target_modules=[f"{name}_proj" for name in targets])
            model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(self.base), config)
            with self.assertRaises(archipelago_train.LayoutError) as caught:
                self.learner(run, model.named_parameters())
            self.assert_a_sentence(caught.exception, part)

    def test_a_run_without_adapters_has_no_configuration(self) -> None:
        """A sentence says what to do."""
        run = archipelago_train.serve(self.folder / "whole", preset="tiny")
        with run, self.assertRaises(archipelago_train.LayoutError) as caught:
            lora_config(run.url)
        self.assert_a_sentence(caught.exception, "trains all weights")


if __name__ == "__main__":
    unittest.main()
