"""JAX computes gradients on NumPy arrays, which the learner changes in place.

JAX arrays are immutable, so they cannot be a learner's parameters. On the CPU JAX reads a NumPy array
without copying it, and NumPy reads a JAX gradient in the same way. MLX does the same with `mx.array(array)` and
`np.array(gradient, copy=False)`.

Usage:
    pip install jax
    python jax_views.py                    a run of its own
    python jax_views.py ws://HOST:7700     joins a run that is being served
"""

import sys
import tempfile

import archipelago_train
import jax
import jax.numpy as jnp
import numpy as np


def model() -> dict[str, np.ndarray]:
    """Returns a network with one hidden layer, from a byte to the next."""
    chance = np.random.default_rng(1)
    return {
        "embed": chance.normal(0, 0.1, (256, 32)).astype(np.float32),
        "hidden": chance.normal(0, 0.2, (32, 64)).astype(np.float32),
        "out": chance.normal(0, 0.1, (64, 256)).astype(np.float32),
    }


@jax.jit
@jax.value_and_grad
def step(params: dict[str, jax.Array], tokens: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns the mean loss on windows of tokens, in nats per token learnt, and its gradient."""
    read = jnp.tanh(params["embed"][tokens[:, :-1]] @ params["hidden"])
    chances = jax.nn.log_softmax(read @ params["out"])
    # Tokens that are not learnt have a label below 0.
    gains = jnp.take_along_axis(chances, jnp.maximum(labels, 0)[:, :, None], axis=-1)[:, :, 0]
    return -jnp.where(labels >= 0, gains, 0.0).sum() / jnp.maximum((labels >= 0).sum(), 1)


def take_part(url: str) -> None:
    """Trains with other learners until the run is complete, by gradient descent with momentum."""
    params = model()
    moments = {name: np.zeros_like(array) for name, array in params.items()}
    with archipelago_train.Learner(url, params) as learner:
        for steps, tokens in enumerate(learner.batches(), 1):
            loss, grads = step(params, tokens, learner.labels)
            for name, array in params.items():
                moments[name] = 0.9 * moments[name] + np.asarray(grads[name])
                array -= learner.learning_rate * moments[name]
            learner.step(loss)
            if steps % 100 == 0:
                print(f"{steps} steps, loss {loss:.3f}, {learner.report.updates_merged} updates merged", flush=True)


def main() -> None:
    """Joins the given run, or starts one."""
    if len(sys.argv) > 1:
        return take_part(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/model.safetensors"
        archipelago_train.write_params(file, model(), mean=["embed"])
        with archipelago_train.serve(f"{folder}/run", params=file, preset="tiny", lr=1, stop_at_tokens=500_000) as run:
            take_part(run.url)


if __name__ == "__main__":
    main()
