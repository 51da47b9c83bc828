"""A script with transformers' `Trainer`, as a learner of a run of the preset tiny.

Usage: trainer.py URL FOLDER
"""

import sys
from pathlib import Path

import torch
from archipelago_train.integrations.transformers import ArchipelagoCallback
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

TEXT = (Path(__file__).parents[1] / "README.md").read_bytes()
CONTEXT = 64


class Windows(Dataset[dict[str, torch.Tensor]]):
    """Windows of the README."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        start = index * 131 % (len(TEXT) - CONTEXT)
        ids = torch.tensor(list(TEXT[start : start + CONTEXT]))
        return {"input_ids": ids, "labels": ids}


class Printed(TrainerCallback):
    """A logger of the trainer."""

    def on_log(self, args, state, control, logs=None, **kwargs):  # type: ignore[no-untyped-def]
        """Prints what is logged."""
        if state.is_world_process_zero:
            print(logs, flush=True)


def main() -> None:
    """Trains until the run is complete."""
    url, folder = sys.argv[1:3]
    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=176,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
    )
    settings = TrainingArguments(
        output_dir=f"{folder}/out",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=0.003,
        max_steps=20_000,
        logging_steps=20,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(LlamaForCausalLM(config), settings, train_dataset=Windows(), callbacks=[Printed()])
    ArchipelagoCallback(url, identity=f"{folder}/key").attach(trainer)
    trainer.train()


if __name__ == "__main__":
    main()
