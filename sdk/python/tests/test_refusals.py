"""Errors are reported in one sentence, and the run goes on."""

from collections.abc import Callable, Iterator
from typing import Any

import archipelago_train
import bigrams
import numpy as np

from .support import RunCase, until


class Refusals(RunCase):
    """Invalid input."""

    def test_tensors_that_cannot_be_trained_in_place(self) -> None:
        """A tensor that cannot be read or written fails before any contact with a run."""
        table = np.zeros((4, 4), np.float32)
        still = table.copy()
        still.flags.writeable = False
        for tensor, error, part in (
            (table.astype(np.int64), archipelago_train.DtypeError, "tensor w is int64: make it float32"),
            (table.astype(np.complex64), archipelago_train.DtypeError, "tensor w is complex64"),
            (table[:, ::2], archipelago_train.LayoutError, "tensor w is not contiguous"),
            (still, archipelago_train.LayoutError, "tensor w cannot be written to"),
            ([0.0], TypeError, "tensor w is a builtins.list: give a NumPy array"),
        ):
            with self.assertRaises(error) as raised:
                archipelago_train.Learner("ws://127.0.0.1:1", {"w": tensor})
            self.assert_a_sentence(raised.exception, part)

    def test_parameters_without_names(self) -> None:
        """Parameters without names get an error that says how to name them."""

        class Module(list[Any]):
            def named_parameters(self) -> list[Any]:
                return []

        table = np.zeros((4, 4), np.float32)
        for params, part in (
            (Module(), "Module: give them by name, as model.named_parameters() does"),
            (3, "the parameters are a builtins.int: give them by name"),
            ([table], "a builtins.list whose items are not pairs of a name and a tensor: give them by name"),
            (table, "a numpy.ndarray whose items are not pairs"),
            ({0: table}, "a builtins.dict whose items are not pairs"),
        ):
            for call in (
                lambda params=params: archipelago_train.Learner("ws://127.0.0.1:1", params),
                lambda params=params: archipelago_train.write_params(self.folder / "file", params),
            ):
                with self.assertRaises(TypeError) as raised:
                    call()
                self.assert_a_sentence(raised.exception, part)

    def test_arguments_that_make_no_sense(self) -> None:
        """An invalid address, batch, name or key gets its own message."""
        params = bigrams.model()
        url, key = "ws://127.0.0.1:9", self.folder / "key"
        calls: list[tuple[Callable[[], object], type[Exception], str]] = [
            (
                lambda: archipelago_train.Learner("ftp://a:1", params, identity=key),
                ValueError,
                "does not lead to a syncer",
            ),
            (lambda: archipelago_train.Learner(url, params, identity=key, batch=0), ValueError, "a batch of"),
            (lambda: archipelago_train.Learner(url, params, identity=key / "x"), OSError, "cannot use"),
            (
                lambda: archipelago_train.Learner(url, params, identity=key, contact_s=0.5),
                archipelago_train.UnreachableError,
                "did not admit this learner",
            ),
            (lambda: archipelago_train.write_params(key, params, mean=["column"]), ValueError, "`mean` names column"),
        ]
        for call, error, part in calls:
            with self.assertRaises(error) as raised:
                call()
            self.assert_a_sentence(raised.exception, part)

    def test_a_layout_that_is_not_the_runs(self) -> None:
        """Names, shapes and merge rules of a custom run are compared; a matching learner trains on."""
        run = self.serve_bigrams()
        params = bigrams.model()
        learner = self.learner(run, params)
        loop = learner.batches()
        learner.step(bigrams.train(params, next(loop), learner.labels, 20.0))
        for wrong, part in (
            ({"trigrams": params["bigrams"]}, "the run has the tensor bigrams, which you did not give, and it has no"),
            ({"bigrams": np.zeros((256, 255), np.float32)}, "tensor bigrams is [256, 255], but [256, 256] in the run"),
            ({}, "the run also has the tensor bigrams"),
        ):
            with self.assertRaises(archipelago_train.LayoutError) as raised:
                archipelago_train.Learner(run.url, wrong, identity=self.folder / "other")
            self.assert_a_sentence(raised.exception, part)
        self.goes_on(run, learner, params, loop)

    def test_wrapped_names(self) -> None:
        """Prefixes of `torch.compile` and DDP are accepted in the names of the run's file and of the learner."""
        file = self.folder / "wrapped.safetensors"
        archipelago_train.write_params(file, {"_orig_mod.bigrams": bigrams.model()["bigrams"]})
        run = self.serve(params=file, preset="tiny", lr=20)
        params = bigrams.model()
        learner = self.learner(run, {"module.bigrams": params["bigrams"]})
        loop = learner.batches()
        learner.step(bigrams.train(params, next(loop), learner.labels, 20.0))
        self.goes_on(run, learner, params, loop)

    def test_a_decoder_with_a_tensor_too_few(self) -> None:
        """In a run of the built-in decoder each difference is named."""
        run = self.serve(preset="tiny")
        for wrong, part in (
            ({"model.norm.weight": np.ones(64, np.float32)}, "the run also has the tensors model.embed_tokens.weight"),
            ({"model.norm.weight": np.ones(63, np.float32)}, "pass every parameter of the model"),
        ):
            with self.assertRaises(archipelago_train.LayoutError) as raised:
                archipelago_train.Learner(run.url, wrong, identity=self.folder / "other")
            self.assert_a_sentence(raised.exception, part)

    def test_a_loss_that_is_no_number(self) -> None:
        """Nothing of the step is sent, the parameters are the run's again, and the same learner goes on."""
        run = self.serve_bigrams()
        params = bigrams.model()
        learner = self.learner(run, params)
        loop = learner.batches()
        learner.step(bigrams.train(params, next(loop), learner.labels, 20.0))
        next(loop)
        params["bigrams"][:] = np.nan
        with self.assertRaises(archipelago_train.NotFiniteError) as raised:
            learner.step(float("nan"))
        self.assert_a_sentence(raised.exception, "the loss, NaN, is not finite; nothing of it was sent")
        self.goes_on(run, learner, params, loop)

    def test_a_parameter_that_is_no_number(self) -> None:
        """The value is found before it is sent, and the message names its tensor."""
        run = self.serve_bigrams()
        params = bigrams.model()
        learner = self.learner(run, params)
        loop = learner.batches()
        with self.assertRaises(archipelago_train.NotFiniteError) as raised:
            for tokens in loop:
                loss = bigrams.train(params, tokens, learner.labels, 20.0)
                params["bigrams"][7] = np.inf
                learner.step(loss if np.isfinite(loss) else 5.0)
        self.assert_a_sentence(raised.exception, "a value of tensor bigrams is not finite")
        # The generator ended with the error that its body raised.
        self.goes_on(run, learner, params, learner.batches())

    def test_a_batch_without_a_step(self) -> None:
        """A missing call of `step` raises an error."""
        run = self.serve_bigrams()
        learner = self.learner(run, bigrams.model())
        loop = learner.batches()
        next(loop)
        with self.assertRaises(RuntimeError) as raised:
            next(loop)
        self.assert_a_sentence(raised.exception, "call step() after each batch")

    def goes_on(
        self,
        run: archipelago_train.Server,
        learner: archipelago_train.Learner,
        params: dict[str, Any],
        loop: Iterator[Any],
    ) -> None:
        """Asserts that more updates are merged than before, and that the parameters are finite."""
        before = learner.report.updates_merged
        for tokens in loop:
            self.assertTrue(np.isfinite(params["bigrams"]).all())
            learner.step(bigrams.train(params, tokens, learner.labels, learner.learning_rate))
            if learner.report.updates_merged > before + 8:
                break
        until("the syncer says so", lambda: run.status()["fates"]["merged"] > 8)
        self.assertEqual(learner.report.updates_refused, 0)
