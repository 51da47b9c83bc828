"""A table of bigrams in NumPy: for each byte, the scores of the next byte.

Usage:
    python bigrams.py                      a run of its own, to check the installation
    python bigrams.py ws://HOST:7700       joins a run that is being served
    python bigrams.py --write FILE         writes the initial parameters of such a run
"""

import sys
import tempfile

import archipelago_train
import numpy as np

VOCAB = 256


def model() -> dict[str, np.ndarray]:
    """Returns scores [VOCAB, VOCAB]: row a scores the bytes that may follow a."""
    return {"bigrams": np.zeros((VOCAB, VOCAB), np.float32)}


def train(params: dict[str, np.ndarray], tokens: np.ndarray, labels: np.ndarray, rate: float) -> float:
    """Takes one gradient step on windows of tokens; returns the mean loss before it, in nats per token learnt."""
    table = params["bigrams"]
    first, then = tokens[:, :-1][labels >= 0], labels[labels >= 0]
    scores = table[first]
    scores = scores - scores.max(axis=1, keepdims=True)
    chances = np.exp(scores)
    chances /= chances.sum(axis=1, keepdims=True)
    # A batch may have no token to learn.
    count = max(then.size, 1)
    loss = -np.log(chances[np.arange(then.size), then]).sum() / count
    chances[np.arange(then.size), then] -= 1
    grad = np.zeros_like(table)
    np.add.at(grad, first, chances)
    table -= rate * grad / count
    return float(loss)


def measure(params: dict[str, np.ndarray], tokens: np.ndarray, labels: np.ndarray) -> float:
    """Returns the mean loss of params on windows of tokens, in nats per token learnt."""
    first, then = tokens[:, :-1][labels >= 0], labels[labels >= 0]
    scores = params["bigrams"][first]
    scores = scores - scores.max(axis=1, keepdims=True)
    losses = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(then.size), then]
    return float(losses.sum() / max(then.size, 1))


def take_part(url: str, identity: str | None = None) -> None:
    """Trains with other learners until the run is complete."""
    params = model()
    with archipelago_train.Learner(url, params, identity=identity, evaluate=measure) as learner:
        for steps, tokens in enumerate(learner.batches(), 1):
            loss = train(params, tokens, learner.labels, learner.learning_rate)
            learner.step(loss)
            if steps % 100 == 0:
                merged = learner.report.updates_merged
                print(f"{steps} steps, loss {loss:.3f}, {merged} updates merged", flush=True)


def alone() -> None:
    """Trains in a whole run on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        archipelago_train.write_params(f"{folder}/bigrams.safetensors", model())
        run = archipelago_train.serve(
            f"{folder}/run", params=f"{folder}/bigrams.safetensors", preset="tiny", lr=20, stop_at_tokens=500_000
        )
        with run:
            print(f"watch it at {run.page}")
            take_part(run.url)
        print(f"{archipelago_train.replay(run.dir)['merges']} merges, computed again")
        print("trained:", archipelago_train.export(run.dir, f"{folder}/out"))


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            alone()
        case ["--write", file]:
            archipelago_train.write_params(file, model())
        case [url]:
            take_part(url)
        case _:
            print(__doc__, file=sys.stderr)
            sys.exit(2)
