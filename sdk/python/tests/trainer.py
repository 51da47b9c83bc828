"""A script with transformers' `Trainer`, or with TRL's `SFTTrainer`, as a learner of a run of the preset tiny.

Usage: trainer.py URL FOLDER transformers|trl
"""

import sys
from pathlib import Path
from typing import Any

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


def model() -> LlamaForCausalLM:
    """Returns a model of the run's shape."""
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
    return LlamaForCausalLM(config)


def of_transformers(options: dict[str, Any]) -> Trainer:
    """Returns a trainer on windows of bytes."""
    settings = TrainingArguments(per_device_train_batch_size=4, gradient_accumulation_steps=2, **options)
    return Trainer(model(), settings, train_dataset=Windows(), callbacks=[Printed()])


def of_trl(options: dict[str, Any]) -> Trainer:
    """Returns a trainer on texts, whose tokenizer has a token for each byte, as the run has."""
    from datasets import Dataset as Table
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    # Bytes that are no printable letter have letters above them, in order.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}
    of_bytes = Tokenizer(models.BPE(letters, []))
    of_bytes.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    of_bytes.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=of_bytes)
    tokenizer.pad_token = tokenizer.eos_token = chr(256)
    text = TEXT.decode()
    table = Table.from_list([{"text": text[start : start + 60]} for start in range(0, len(text) - 60, 50)])
    settings = SFTConfig(per_device_train_batch_size=8, max_length=CONTEXT, bf16=False, **options)
    return SFTTrainer(model(), settings, train_dataset=table, processing_class=tokenizer, callbacks=[Printed()])


def main() -> None:
    """Trains until the run is complete."""
    url, folder, kind = sys.argv[1:4]
    torch.set_num_threads(1)
    options = {
        "output_dir": f"{folder}/out",
        "learning_rate": 0.003,
        "max_steps": 20_000,
        "logging_steps": 20,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    trainer = of_trl(options) if kind == "trl" else of_transformers(options)
    ArchipelagoCallback(url, identity=f"{folder}/key").attach(trainer)
    trainer.train()


if __name__ == "__main__":
    main()
