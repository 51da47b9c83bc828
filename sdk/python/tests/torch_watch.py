"""Watchers that write to the real trackers, each offline. `cargo xtask test --only pytorch` runs them."""

import importlib
import os
import signal
import sqlite3
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import mlflow
from archipelago_train._trackers import _records
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto.wandb_internal_pb2 import Record

from .support import until
from .test_watch import Watched


class Trackers(Watched):
    """Watchers of one run, one for each tracker."""

    def setUp(self) -> None:
        """Keeps the trackers offline, and their data in the test's folder."""
        super().setUp()
        self.store = f"sqlite:///{self.folder}/mlflow.db"
        self.variables = {
            "HF_HUB_OFFLINE": "1",
            "TRACKIO_DIR": str(self.folder / "trackio"),
            "WANDB_MODE": "offline",
            "WANDB_SILENT": "true",
            "WANDB_ERROR_REPORTING": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_TRACKING_URI": self.store,
        }
        # Makes the database, which two processes cannot do at the same time.
        self.client = mlflow.MlflowClient(self.store)
        self.client.search_experiments()

    def test_kills_lose_and_double_nothing(self) -> None:
        """Each tracker has all rows of the run once, read by its own reader."""
        run = self.serve_decoder()
        self.lend(run)
        readers: dict[str, Callable[[], list[dict[str, Any]]]] = {
            "trackio": self.of_trackio,
            "tensorboard": self.of_tensorboard,
            "wandb": self.of_wandb,
            "mlflow": self.of_mlflow,
        }
        watchers = {to: self.watcher(run, to, **self.variables) for to in readers}
        for to, read in readers.items():
            until(f"{to} has rows", partial(has_more, read, 3))
        for watcher in watchers.values():
            watcher.send_signal(signal.SIGKILL)
            watcher.communicate()
        time.sleep(1.5)
        watchers = {to: self.watcher(run, to, **self.variables) for to in readers}
        counts = {to: len(read()) for to, read in readers.items()}
        for to, read in readers.items():
            until(f"{to} has more rows", partial(has_more, read, counts[to] + 3))
        self.finish(run)
        for watcher in watchers.values():
            self.ended(watcher)
        for to, read in readers.items():
            with self.subTest(tracker=to):
                rows = read()
                self.assert_complete(run, rows)
                self.assertTrue(any("learners/lab 3__-1/tokens_per_second" in row for row in rows))
                self.assertTrue(any("loss/held_out" in row for row in rows))

    def of_trackio(self) -> list[dict[str, Any]]:
        """Returns the rows in Trackio's database."""
        file = self.folder / "trackio/archipelago.db"
        if not file.exists():
            return []
        os.environ["TRACKIO_DIR"] = self.variables["TRACKIO_DIR"]
        storage = importlib.import_module("trackio.sqlite_storage").SQLiteStorage
        try:
            rows: list[dict[str, Any]] = storage.get_logs("archipelago", "mine")
        except sqlite3.Error:
            return []
        return rows

    def of_tensorboard(self) -> list[dict[str, Any]]:
        """Returns the rows in the event files, by their time. TensorBoard keeps each metric apart."""
        events = EventAccumulator(str(self.folder / "archipelago/mine"), size_guidance={"tensors": 0}).Reload()
        rows: dict[tuple[str, float, int], dict[str, Any]] = {}
        for tag in events.Tags()["tensors"]:
            kind = "evaluation" if tag.startswith("evaluation/") or tag == "loss/held_out" else "point"
            seen: set[tuple[str, float, int]] = set()
            for event in events.Tensors(tag):
                key = (kind, event.wall_time, event.step)
                self.assertNotIn(key, seen)
                seen.add(key)
                rows.setdefault(key, {})[tag] = event.tensor_proto.double_val[0]
        return list(rows.values())

    def of_mlflow(self) -> list[dict[str, Any]]:
        """Returns the rows of the one run of MLflow, by their time. MLflow keeps each metric apart."""
        client = self.client
        experiment = client.get_experiment_by_name("archipelago")
        if experiment is None:
            return []
        rows: dict[tuple[str, int, int], dict[str, Any]] = {}
        for run in client.search_runs([experiment.experiment_id]):
            for tag in run.data.metrics:
                kind = "evaluation" if tag.startswith("evaluation/") or tag == "loss/held_out" else "point"
                for metric in client.get_metric_history(run.info.run_id, tag):
                    rows.setdefault((kind, metric.timestamp, metric.step), {})[tag] = metric.value
        return list(rows.values())

    def of_wandb(self) -> list[dict[str, Any]]:
        """Returns the rows in the files of all starts, which have the same id of a run."""
        rows = []
        for file in sorted((self.folder / "wandb").glob("offline-run-*/*.wandb")):
            for text in _records(file.read_bytes()):
                record = Record.FromString(text)
                if record.WhichOneof("record_type") == "history":
                    items = record.history.item
                    rows.append({one.key or "/".join(one.nested_key): float(one.value_json) for one in items})
        self.assertLessEqual(len({file.name for file in (self.folder / "wandb").glob("offline-run-*/*.wandb")}), 1)
        return rows


def has_more(read: Callable[[], list[dict[str, Any]]], count: int) -> bool:
    """Returns whether a tracker has more rows than this."""
    return len(read()) > count
