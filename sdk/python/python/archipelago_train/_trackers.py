"""Experiment trackers that `watch` writes to. Each is imported only if it is chosen."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import itertools
import json
import os
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ._errors import ArchipelagoError, TrackerError, TrackerNotInstalledError

# Metrics whose values are the position of a row in the run: its time and its merged tokens.
POINT = ("time_s", "tokens_merged")
EVALUATION = ("evaluation/time_s", "evaluation/tokens_merged")


@dataclass(frozen=True)
class Row:
    """One entry of a tracker.

    Attributes:
        metrics: Numbers by name.
        step: Merged tokens of the run.
        unix_s: Time of the entry, in seconds since 1970.
    """

    metrics: dict[str, float]
    step: int
    unix_s: float


@dataclass
class Cursor:
    """Positions of the newest point and of the newest evaluation that a tracker has, each as time and merged tokens."""

    positions: dict[str, tuple[float, float]] = field(default_factory=dict)

    def note(self, metrics: dict[str, Any]) -> None:
        """Moves the cursor to a row that the tracker has."""
        for time_s, tokens in (POINT, EVALUATION):
            if metrics.get(time_s) is not None:
                self.positions[time_s] = (float(metrics[time_s]), float(metrics[tokens]))

    def is_new(self, metrics: dict[str, float]) -> bool:
        """Returns whether a row comes after the newest one.

        A killed syncer continues with a clock that is behind, but it keeps its merged tokens.
        """
        for time_s, tokens in (POINT, EVALUATION):
            if time_s in metrics and time_s in self.positions:
                last_s, last_tokens = self.positions[time_s]
                return metrics[time_s] > last_s or metrics[tokens] > last_tokens
        return True

    def turn_back(self, time_s: float) -> None:
        """Moves the cursor back to a time of the run from which on all rows are new."""
        self.positions = {key: (min(last_s, time_s), tokens) for key, (last_s, tokens) in self.positions.items()}


@dataclass(frozen=True)
class Place:
    """Where a tracker puts the rows: its project and its name there, and the id of the run that they describe."""

    project: str
    name: str
    run: str


class Tracker(Protocol):
    """A tracker to write to."""

    def last(self) -> Cursor | None:
        """Returns the cursor that the tracker's own data gives, or None if the tracker cannot tell."""

    def write(self, rows: list[Row]) -> None:
        """Writes rows, so that after a kill each of them is either there as a whole or not at all."""

    def close(self) -> None:
        """Ends the tracker's run."""


class Function:
    """A function of the program that watches."""

    def __init__(self, function: Callable[[dict[str, float], int], object]) -> None:
        self._function = function

    def last(self) -> Cursor | None:
        """Returns the start of the run."""
        return Cursor()

    def write(self, rows: list[Row]) -> None:
        """Calls the function with each row."""
        for row in rows:
            self._function(row.metrics, row.step)

    def close(self) -> None:
        """Does nothing."""


class JsonLines:
    """A file with one JSON object per line, `PROJECT/NAME.jsonl`."""

    def __init__(self, place: Place) -> None:
        path = Path(place.project, f"{place.name}.jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 it lives as long as the tracker

    def last(self) -> Cursor | None:
        """Reads the file, and cuts off a line that a kill left incomplete."""
        self._file.seek(0)
        text = self._file.read()
        whole = text.rfind(b"\n") + 1
        self._file.truncate(whole)
        cursor = Cursor()
        for line in text[:whole].splitlines():
            cursor.note(json.loads(line))
        return cursor

    def write(self, rows: list[Row]) -> None:
        """Appends lines."""
        lines = [json.dumps({"step": row.step, "unix_s": row.unix_s, **row.metrics}) for row in rows]
        rest = "".join(line + "\n" for line in lines).encode()
        while rest:
            rest = rest[self._file.write(rest) :]

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class TensorBoard:
    """Event files in the folder `PROJECT/NAME`. Each row is one record, so a kill cannot tear it."""

    def __init__(self, place: Place) -> None:
        writer = _import("tensorboard.summary.writer.event_file_writer", "tensorboard")
        self._events = importlib.import_module("tensorboard.compat.proto.event_pb2")
        self._summaries = importlib.import_module("tensorboard.compat.proto.summary_pb2")
        self._tensors = importlib.import_module("tensorboard.compat.proto.tensor_pb2")
        self._types = importlib.import_module("tensorboard.compat.proto.types_pb2")
        self._folder = Path(place.project, place.name)
        self._earlier = sorted(self._folder.glob("events.out.tfevents.*"), key=lambda file: file.stat().st_mtime_ns)
        self._writer = writer.EventFileWriter(str(self._folder))

    def last(self) -> Cursor | None:
        """Reads the event files of earlier starts."""
        loader = importlib.import_module("tensorboard.backend.event_processing.event_file_loader")
        cursor = Cursor()
        for file in self._earlier:
            for record in loader.RawEventFileLoader(str(file)).Load():
                values = self._events.Event.FromString(record).summary.value
                cursor.note({value.tag: value.tensor.double_val[0] for value in values if value.tensor.double_val})
        return cursor

    def write(self, rows: list[Row]) -> None:
        """Adds records, with numbers of 64 bits: tokens and bytes need more digits than 32 bits have."""
        for row in rows:
            summary = self._summaries.Summary(value=[self._value(*item) for item in row.metrics.items()])
            self._writer.add_event(self._events.Event(wall_time=row.unix_s, step=row.step, summary=summary))
        self._writer.flush()

    def close(self) -> None:
        """Closes the file."""
        self._writer.close()

    def _value(self, tag: str, number: float) -> Any:
        summaries = self._summaries
        plugin = summaries.SummaryMetadata.PluginData(plugin_name="scalars")
        metadata = summaries.SummaryMetadata(plugin_data=plugin, data_class=summaries.DATA_CLASS_SCALAR)
        tensor = self._tensors.TensorProto(dtype=self._types.DT_DOUBLE, double_val=[number])
        return summaries.Summary.Value(tag=tag, tensor=tensor, metadata=metadata)


class Trackio:
    """A run of Trackio, local or in a Space that `TRACKIO_SPACE_ID` names."""

    def __init__(self, place: Place) -> None:
        trackio = _import("trackio")
        self._place = place
        with contextlib.redirect_stdout(sys.stderr):
            self._run = trackio.init(
                place.project,
                name=place.name,
                resume="allow",
                config={"archipelago_run": place.run},
                embed=False,
                auto_log_cpu=False,
                auto_log_gpu=False,
            )

    def last(self) -> Cursor | None:
        """Reads the rows that Trackio has on this machine. Those of a Space cannot be read."""
        if os.environ.get("TRACKIO_SPACE_ID") or os.environ.get("TRACKIO_SERVER_URL"):
            return None
        storage = importlib.import_module("trackio.sqlite_storage").SQLiteStorage
        cursor = Cursor()
        for metrics in storage.get_logs(self._place.project, self._place.name, run_id=self._run.id):
            cursor.note(metrics)
        return cursor

    def write(self, rows: list[Row]) -> None:
        """Queues rows; a thread of Trackio stores them within a second."""
        for row in rows:
            self._run.log(dict(row.metrics), step=row.step)

    def close(self) -> None:
        """Waits until the rows are stored."""
        with contextlib.redirect_stdout(sys.stderr):
            self._run.finish()


class WandB:
    """A run of Weights & Biases, or of its offline mode with `WANDB_MODE=offline`."""

    def __init__(self, place: Place) -> None:
        wandb = _import("wandb")
        digest = hashlib.sha256(place.name.encode()).hexdigest()[:8]
        self._run = wandb.init(
            project=place.project,
            name=place.name,
            id=f"{place.run}-{digest}",
            resume="allow",
            config={"archipelago_run": place.run},
            settings=wandb.Settings(console="off", x_disable_stats=True),
        )
        # An evaluation describes earlier parameters than the points around it, and steps of W&B must not decrease.
        self._run.define_metric("*", step_metric="tokens_merged")
        self._run.define_metric("loss/held_out", step_metric="evaluation/tokens_merged")

    def last(self) -> Cursor | None:
        """Reads the summary that W&B has of the run, or in offline mode the files of earlier starts."""
        cursor = Cursor()
        if self._run.offline:
            records = importlib.import_module("wandb.proto.wandb_internal_pb2")
            files = sorted(Path(self._run.settings.wandb_dir).glob(f"offline-run-*/run-{self._run.id}.wandb"))
            for text in itertools.chain.from_iterable(_records(file.read_bytes()) for file in files):
                items = records.Record.FromString(text).history.item
                cursor.note({(one.key or "/".join(one.nested_key)): json.loads(one.value_json) for one in items})
        else:
            summary = self._run.summary
            cursor.note({name: summary.get(name) for name in (*POINT, *EVALUATION)})
        return cursor

    def write(self, rows: list[Row]) -> None:
        """Passes rows to W&B's own process, which stores them soon."""
        for row in rows:
            self._run.log(row.metrics)

    def close(self) -> None:
        """Waits until the rows are stored."""
        self._run.finish()


class MLflow:
    """A run of MLflow, on the server or in the store that `MLFLOW_TRACKING_URI` names."""

    def __init__(self, place: Place) -> None:
        mlflow = _import("mlflow")
        self._metric = importlib.import_module("mlflow.entities").Metric
        self._client = mlflow.MlflowClient()
        experiment = self._client.get_experiment_by_name(place.project)
        id = self._client.create_experiment(place.project) if experiment is None else experiment.experiment_id
        wanted = f"tags.`archipelago.run` = '{place.run}'"
        found = [run for run in self._client.search_runs([id], wanted) if run.info.run_name == place.name]
        run = found[0] if found else self._client.create_run(id, None, {"archipelago.run": place.run}, place.name)
        self._id = run.info.run_id

    def last(self) -> Cursor | None:
        """Asks for the newest values of the metrics with the time. Their step is the number of merged tokens."""
        cursor = Cursor()
        for time_s, tokens in (POINT, EVALUATION):
            history = self._client.get_metric_history(self._id, time_s)
            if history:
                last = max(history, key=lambda metric: (metric.timestamp, metric.step))
                cursor.note({time_s: last.value, tokens: last.step})
        return cursor

    def write(self, rows: list[Row]) -> None:
        """Logs each row as one batch. The metric with the time is its last, so that a torn row is written again."""
        for row in rows:
            names = sorted(row.metrics, key=lambda name: name in (POINT[0], EVALUATION[0]))
            unix_ms = round(row.unix_s * 1e3)
            metrics = [self._metric(name, row.metrics[name], unix_ms, row.step) for name in names]
            self._client.log_batch(self._id, metrics=metrics)

    def close(self) -> None:
        """Marks the run as ended."""
        self._client.set_terminated(self._id)


TRACKERS: dict[str, Callable[[Place], Tracker]] = {
    "trackio": Trackio,
    "wandb": WandB,
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "jsonl": JsonLines,
}


def _records(text: bytes) -> Iterator[bytes]:
    """Yields the whole records of a file of W&B, which is a log of LevelDB: blocks of 32 KiB with pieces of records."""
    block, header, begins, goes_on = 32_768, 7, 2, 3
    at, record = header, b""
    while at + header <= len(text):
        left = block - at % block
        if left < header:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", text, at)
        at += header + size
        if kind == 0 or at > len(text):
            return
        record += text[at - size : at]
        if kind not in (begins, goes_on):
            yield record
            record = b""


class Guarded:
    """A tracker by its name, whose exceptions become `TrackerError`."""

    def __init__(self, to: str, place: Place) -> None:
        self._to = to
        with self._guard():
            self._tracker = TRACKERS[to](place)

    def last(self) -> Cursor | None:
        """Returns the tracker's cursor."""
        with self._guard():
            return self._tracker.last()

    def write(self, rows: list[Row]) -> None:
        """Writes rows."""
        with self._guard():
            self._tracker.write(rows)

    def close(self) -> None:
        """Ends the tracker's run."""
        with self._guard():
            self._tracker.close()

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except ArchipelagoError:
            raise
        except Exception as error:
            said = str(error).strip().split("\n")[0] or type(error).__name__
            raise TrackerError(f"{self._to} failed: {said}") from error


def _import(module: str, package: str | None = None) -> Any:
    package = package or module
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise TrackerNotInstalledError(f"{package} cannot be imported ({error}): run `pip install {package}`") from None
