"""Adapters of PEFT in a run that trains adapters (`serve --lora-rank`).

from archipelago_train.integrations.peft import lora_config

model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained("my-model"), lora_config("ws://HOST:7700"))
learner = archipelago_train.Learner("ws://HOST:7700", model.named_parameters())
"""

from __future__ import annotations

from peft import LoraConfig

from .._errors import LayoutError
from .._syncer import Syncer


def lora_config(url: str) -> LoraConfig:
    """Returns the configuration of the run's adapters, for `peft.get_peft_model`.

    Args:
        url: The syncer's address, such as ws://HOST:7700, or a link to the run's page.

    Raises:
        LayoutError: The run trains no adapters.
        UnreachableError: Nothing answers.
        NotASyncerError: What answers is not a run of a syncer.
        ValueError: The address is malformed.
    """
    syncer = Syncer(url)
    adapters = syncer.greet().get("adapters")
    if adapters is None:
        raise LayoutError(f"the run at {syncer.page} trains all weights: give the parameters of the model itself")
    targets = [f"{name}_proj" for name in adapters["targets"].split(",")]
    return LoraConfig(task_type="CAUSAL_LM", r=adapters["rank"], lora_alpha=adapters["alpha"], target_modules=targets)
