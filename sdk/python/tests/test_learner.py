"""A NumPy learner in real runs."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import archipelago_train
import bigrams
import numpy as np

from .support import EXAMPLES, PROMPT, RunCase, until, write_answers


class InARun(RunCase):
    """A learner in a run with a real syncer."""

    def test_a_table_of_bigrams_is_trained(self) -> None:
        """The loop of the README trains until the run is complete, without waiting, and the model can be exported."""
        run = self.serve_bigrams(stop_at_tokens=400_000)
        params = bigrams.model()
        losses = []
        with archipelago_train.Learner(run.url, params, identity=self.folder / "key", name="lab-3") as learner:
            self.assertNotEqual(learner.report.doing, "connecting")
            for tokens in learner.batches():
                self.assertEqual((tokens.dtype, tokens.shape), (np.dtype(np.int64), (8, 65)))
                losses.append(bigrams.train(params, tokens, learner.labels, learner.learning_rate))
                learner.step(losses[-1])
            report = learner.report
        self.assertLess(np.mean(losses[-20:]), losses[0] - 1.5)
        self.assertGreater(report.updates_merged, 8)
        self.assertEqual(report.updates_refused, 0)
        self.assertTrue(learner.is_over)
        status = run.status()
        self.assertTrue(status["finished"])
        self.assertEqual(status["learners"][0]["name"], "lab-3")
        self.assertIn("numpy", status["learners"][0]["device"])
        # A learner that comes now gets an error, and keeps its parameters.
        late = {"bigrams": np.ones((256, 256), np.float32)}
        with self.assertRaises(archipelago_train.CompleteError) as raised:
            archipelago_train.Learner(run.url, late, identity=self.folder / "late")
        self.assert_a_sentence(raised.exception, "take its model home with archipelago_train.export")
        self.assertTrue((late["bigrams"] == 1).all())
        run.stop()

        self.assertGreater(archipelago_train.replay(run.dir)["merges"], 0)
        told = archipelago_train.export(run.dir, self.folder / "out")
        self.assertEqual(told["params"], 65_536)
        self.assertGreater((self.folder / "out/model.safetensors").stat().st_size, 4 * 65_536)

    def test_whoever_was_killed_is_merged_again(self) -> None:
        """A process that is killed and restarted is the same learner, and its updates are merged again."""
        run = self.serve_bigrams()
        key = self.folder / "key"
        script = f"import bigrams, sys; bigrams.take_part(sys.argv[1], {str(key)!r})"

        def start() -> subprocess.Popen[bytes]:
            learner = subprocess.Popen([sys.executable, "-c", script, run.url], cwd=EXAMPLES, stdout=subprocess.DEVNULL)
            self.addCleanup(learner.wait)
            self.addCleanup(learner.kill)
            return learner

        def merged() -> int:
            return int(run.status()["fates"]["merged"])

        first = start()
        until("an update of it is merged", merged)
        first.kill()
        first.wait()
        before = merged()
        start()
        until("updates are merged again", lambda: merged() > before + 8)
        self.assertEqual(run.status()["learnersTotal"], 1)

    def test_a_program_may_have_data_of_its_own(self) -> None:
        """Without `batches` a step reports its own tokens and is merged."""
        run = self.serve_bigrams()
        params = bigrams.model()
        learner = self.learner(run, params)
        text = np.frombuffer(b"the rain in spain stays mainly in the plain. " * 11, np.uint8).astype(np.int64)
        for _ in range(20_000):
            loss = bigrams.train(params, text[None, :], text[None, 1:], learner.learning_rate)
            self.assertTrue(learner.step(loss, tokens=len(text) - 1))
            if learner.report.updates_merged > 0:
                break
        self.assertGreater(learner.report.updates_merged, 0)
        learner.close()
        self.assertFalse(learner.step(0.0), "the run goes on without it")
        status = run.status()
        self.assertGreater(status["tokensTrained"], 0)
        self.assertEqual(status["tokensTrained"] % (len(text) - 1), 0)

    def test_what_is_given_is_read_and_not_learnt(self) -> None:
        """In a text of prompts and completions tokens are unmarked, and only completions have labels."""
        data = write_answers(self.folder)
        run = self.serve_bigrams(data=data, evaluator="judge", flags=["--eval-every", "1s"])
        params = bigrams.model()
        measured: list[float] = []

        def evaluate(asked: dict[str, np.ndarray], windows: np.ndarray, labels: np.ndarray) -> float:
            self.assert_completions(windows, labels)
            measured.append(bigrams.measure(asked, windows, labels))
            return measured[-1]

        learner = self.learner(run, params, name="judge", evaluate=evaluate)
        for tokens in learner.batches():
            self.assert_completions(tokens, learner.labels)
            loss = bigrams.train(params, tokens, learner.labels, learner.learning_rate)
            learner.step(loss)
            if len(measured) > 2:
                break
        self.assertLess(measured[-1], 1.0, "a table of zeros has 5.5, and completions are easy")
        self.assertFalse(params["bigrams"][ord("A")].any(), "all that follows an A is given")
        # All tokens read count as trained, as with other learners.
        learner.close()
        trained = learner.report.tokens_trained
        self.assertEqual((trained > 0, trained % (8 * 64)), (True, 0))

    def assert_completions(self, tokens: np.ndarray, labels: np.ndarray) -> None:
        """Asserts that tokens are plain ids, and that only completions have labels."""
        self.assertEqual((tokens.dtype, labels.dtype), (np.dtype(np.int64), np.dtype(np.int64)))
        self.assertEqual(labels.shape, (tokens.shape[0], tokens.shape[1] - 1))
        targets = tokens[:, 1:]
        given = np.isin(targets, list(PROMPT))
        self.assertTrue(given.any() and not given.all())
        self.assertLess(tokens.max(), 256)
        np.testing.assert_array_equal(labels, np.where(given, -100, targets))

    def test_a_native_program_trains_the_same_table(self) -> None:
        """The SDK's example of a custom model is the same model: both are merged in one run."""
        run = self.serve_bigrams(stop_at_tokens=400_000, learners_start=2)
        native = subprocess.Popen(
            [Path(os.environ["ARCHIPELAGO_BIN"]) / "examples" / "custom_model", run.url],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(native.kill)
        bigrams.take_part(run.url, str(self.folder / "key"))
        said, _ = native.communicate(timeout=60)
        status = run.status()
        self.assertTrue(status["finished"])
        self.assertEqual(status["fates"]["refused"], {})
        merged = {learner["name"]: learner["tokensMerged"] for learner in status["learners"]}
        self.assertEqual(len(merged), 2)
        self.assertGreater(min(merged.values()), 20_000, merged)
        self.assertIn("updates merged", said)

    def test_whom_the_owner_trusts_measures_the_held_out_loss(self) -> None:
        """The series has only losses measured by the trusted learner; they fall, and no other learner is asked."""
        run = self.serve_bigrams(evaluator="judge", learners_start=2, flags=["--eval-every", "1s"])
        shapes = []

        def evaluate(params: dict[str, np.ndarray], windows: np.ndarray, labels: np.ndarray) -> float:
            shapes.append((params["bigrams"].shape, params["bigrams"].dtype, windows.shape[1]))
            return bigrams.measure(params, windows, labels)

        def never(params: dict[str, np.ndarray], windows: np.ndarray, labels: np.ndarray) -> float:
            raise AssertionError("nobody trusts this one")

        params = [bigrams.model(), bigrams.model()]
        other = archipelago_train.Learner(
            run.url, params[0], identity=self.folder / "other", name="other", evaluate=never
        )
        self.addCleanup(other.close)
        learners = [other, self.learner(run, params[1], name="judge", evaluate=evaluate)]
        loops = [learner.batches() for learner in learners]

        def steps() -> list[dict[str, float]]:
            for own, learner, loop in zip(params, learners, loops, strict=True):
                learner.step(bigrams.train(own, next(loop), learner.labels, learner.learning_rate))
            with urllib.request.urlopen(f"{run.page}v1/series", timeout=10) as answer:
                return list(json.load(answer)["evaluations"])

        until("the losses fall", lambda: (found := steps()) and found[-1]["loss"] < found[0]["loss"] - 1)
        told = steps()
        ids = {learner["name"]: learner["learner"] for learner in run.status()["learners"]}
        self.assertEqual({one["measuredBy"] for one in told}, {ids["judge"]})
        self.assertEqual(run.status()["valMeasuredBy"], ids["judge"])
        self.assertEqual(set(shapes), {((256, 256), np.dtype(np.float32), 65)})

    def test_what_goes_wrong_in_evaluate_is_raised_by_the_step(self) -> None:
        """The program gets its own exception, and may go on."""
        run = self.serve_bigrams(evaluator="judge")
        params = bigrams.model()

        def evaluate(_params: dict[str, np.ndarray], _windows: np.ndarray, _labels: np.ndarray) -> float:
            raise ZeroDivisionError("this one")

        learner = self.learner(run, params, name="judge", evaluate=evaluate)

        def train() -> None:
            for _ in range(2_000):
                for tokens in learner.batches():
                    learner.step(bigrams.train(params, tokens, learner.labels, learner.learning_rate))
                    break

        self.assertRaises(ZeroDivisionError, train)
        for _ in range(3):
            for tokens in learner.batches():
                self.assertTrue(learner.step(bigrams.train(params, tokens, learner.labels, learner.learning_rate)))
                break

    def test_two_learners_come_to_the_same_parameters(self) -> None:
        """Merged changes reach every learner, in arrays of any width, and each keeps only its own newest steps."""
        run = self.serve_bigrams()
        narrow = {"bigrams": np.zeros((256, 256), np.float64)}
        learners = [
            (archipelago_train.Learner(run.url, params, identity=self.folder / name), params)
            for name, params in (("one", bigrams.model()), ("two", narrow))
        ]
        loops = [learner.batches() for learner, _ in learners]
        for steps in range(2_000):
            for (learner, params), loop in zip(learners, loops, strict=True):
                learner.step(bigrams.train(params, next(loop), learner.labels, learner.learning_rate))
            if steps > 150 and all(learner.report.updates_merged > 0 for learner, _ in learners):
                break
        one, two = (params["bigrams"] for _, params in learners)
        apart = np.linalg.norm(one - two) / np.linalg.norm(one)
        self.assertLess(apart, 0.5)
        for learner, _ in learners:
            self.assertGreater(learner.report.updates_merged, 0)
            learner.close()
