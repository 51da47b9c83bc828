"""Follows a run and writes its curves to an experiment tracker while it trains."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from ._errors import ArchipelagoError, NotASyncerError, UnreachableError
from ._syncer import LostError, Syncer, finite
from ._trackers import EVALUATION, POINT, TRACKERS, Cursor, Function, Guarded, Place, Row, Tracker

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_log = logging.getLogger("archipelago_train")

# Waits between attempts to reconnect, in seconds.
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0
# Differences between times of the run that are only rounding, in seconds.
_CLOCK_S = 0.1
# Longest wait for the last measurement of the held-out loss, which follows the end of the run, in seconds.
_LAST_LOSS_S = 10.0
# Names of metrics, some of them as in `syncer-server export --tensorboard`, and the keys in the syncer's answers.
_POINT_METRICS = {
    "loss/training": "trainLoss",
    "tokens_per_second": "tokensPerS",
    "participation": "participation",
    "learners": "live",
    "bytes/up": "bytesUp",
    "bytes/down": "bytesDown",
    "rounds": "rounds",
    "tokens_merged": "tokensMerged",
    "time_s": "timeS",
}
_EVALUATION_METRICS = {
    "loss/held_out": "loss",
    "evaluation/rounds": "rounds",
    "evaluation/tokens_merged": "tokensMerged",
    "evaluation/time_s": "timeS",
}
_LEARNER_METRICS = {"tokens_per_second": "tokensPerS", "tokens_merged": "tokensMerged", "loss": "loss"}


def watch(
    url: str,
    *,
    to: str | Callable[[dict[str, float], int], object],
    project: str = "archipelago",
    name: str | None = None,
    token: str | None = None,
    once: bool = False,
    learners: int = 16,
    give_up_s: float = 3600.0,
) -> int:
    """Writes the curves of a run to an experiment tracker, from the run's start until it is complete.

    A new call continues where the last one stopped, with no point doubled and none missing, also after a kill. The
    README says what each tracker can do for that.

    Args:
        url: The syncer's address, such as ws://HOST:7700, or a link to the run's page.
        to: The tracker: trackio, wandb, tensorboard, mlflow, or jsonl for a file. Or a function, which gets the metrics
            of each row and its step, the number of merged tokens.
        project: The tracker's project. For tensorboard and jsonl, a folder.
        name: The tracker's name for the run; by default "run-" and the run's id.
        token: The owner's token. It reserves a place among many watchers, and serves proxies that want one.
        once: Whether to write what there is and to return, rather than to follow the run.
        learners: Number of learners whose rates are written: those with most merged tokens.
        give_up_s: Longest time without an answer after the first contact, in seconds.

    Returns:
        The number of rows written.

    Raises:
        UnreachableError: Nothing answers at the address, or not within `give_up_s`.
        NotASyncerError: What answers there is not a run of a syncer.
        RefusedError: The token is wrong, or one is needed.
        TrackerNotInstalledError: The tracker's package cannot be imported.
        TrackerError: The tracker's package failed.
        ArchipelagoError: The name in the tracker belongs to another run, or another watcher writes there.
        ValueError: The address or the tracker's name is invalid.
        OSError: A file cannot be written.
    """
    if not callable(to) and to not in TRACKERS:
        raise ValueError(f"there is no tracker {to}: use one of {', '.join(TRACKERS)}")
    syncer = Syncer(url, token)
    status = syncer.greet()
    if callable(to):
        return _Watch(syncer, Function(to), Cursor(), status["run"], learners, None).go(once, give_up_s)
    place = Place(project, name or f"run-{status['run']}", status["run"])
    state = _State(to, place)
    try:
        tracker = Guarded(to, place)
        try:
            told = tracker.last()
            cursor = state.cursor if told is None else told
            watcher = _Watch(syncer, tracker, cursor, status["run"], learners, state if told is None else None)
            return watcher.go(once, give_up_s)
        finally:
            tracker.close()
    finally:
        state.close()


class _State:
    """File with the run that a tracker's name describes, and the cursor for trackers that cannot be read.

    Its lock keeps a second watcher from writing the same rows.
    """

    def __init__(self, to: str, place: Place) -> None:
        home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
        project = os.path.abspath(place.project) if to in ("tensorboard", "jsonl") else place.project
        digest = hashlib.sha256(json.dumps([to, project, place.name]).encode()).hexdigest()[:16]
        self._path = Path(home, "archipelago", "watch", f"{digest}.json")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._run = place.run
        self._lock = _locked(self._path.with_suffix(".lock"), place.name)
        self.cursor = Cursor()
        try:
            told = json.loads(self._path.read_text())
            run, positions = told["run"], told["positions"].items()
            self.cursor = Cursor({key: (time_s, tokens) for key, (time_s, tokens) in positions})
        except FileNotFoundError:
            self.save(self.cursor)
            return
        except (AttributeError, KeyError, TypeError, ValueError):
            self.close()
            raise ArchipelagoError(f"the watcher's file {self._path} is damaged: delete it, and start again") from None
        if run != place.run:
            self.close()
            raise ArchipelagoError(
                f"{place.name} in the project {place.project} has the curves of the run {run}, and this is the run "
                f"{place.run}: choose another --name"
            )

    def save(self, cursor: Cursor) -> None:
        """Replaces the file."""
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps({"run": self._run, "positions": cursor.positions}))
        os.replace(new, self._path)

    def close(self) -> None:
        """Releases the lock."""
        self._lock.close()


def _locked(path: Path, name: str) -> IO[str]:
    lock = open(path, "w")  # noqa: SIM115 it is held as long as the watcher runs
    try:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise ArchipelagoError(f"another watcher writes to {name}: end it first, or choose another --name") from None
    return lock


class _Watch:
    """The connection between a run and a tracker."""

    def __init__(
        self, syncer: Syncer, tracker: Tracker, cursor: Cursor, run: str, learners: int, state: _State | None
    ) -> None:
        self._syncer = syncer
        self._tracker = tracker
        self._cursor = cursor
        self._run = run
        self._learners = learners
        self._state = state
        self._rows = 0
        # Of the current connection: the newest status, the times up to which its history was read, by metric, and
        # whether that lacks the newest point.
        self._status: dict[str, Any] = {}
        self._read_s: dict[str, float] = {}
        self._is_cut = False
        # Time on the monotonic clock at which the wait for the last measurement ends.
        self._ends_s: float | None = None
        self._heard_s = time.monotonic()

    def go(self, once: bool, give_up_s: float) -> int:
        """Writes until the run is complete. Returns the number of rows."""
        waits = _waits()
        while True:
            before_s = self._heard_s
            try:
                if self._follow(once):
                    return self._rows
                why = "the stream ended"
            except (LostError, NotASyncerError) as lost:
                # A proxy may answer while the syncer is down.
                why = str(lost)
                if self._is_finished:
                    return self._rows
            silent_s = time.monotonic() - self._heard_s
            if silent_s >= give_up_s:
                raise UnreachableError(
                    f"{self._syncer.page} has not answered for {silent_s:.0f} s ({why}): start the watcher again once "
                    "the syncer runs"
                )
            if self._heard_s > before_s:
                waits = _waits()
            wait_s = min(next(waits), give_up_s - silent_s)
            _log.warning("lost %s (%s); connecting again in %.1f s", self._syncer.page, why, wait_s)
            time.sleep(wait_s)

    def _follow(self, once: bool) -> bool:
        """Writes what one connection tells. Returns true at the end of the run, or of what there is for `once`."""
        self._status, self._read_s = {}, {POINT[0]: -1.0, EVALUATION[0]: -1.0}
        for event, told in self._syncer.events():
            self._heard_s = time.monotonic()
            if event == "status":
                is_first = not self._status
                self._note_status(told)
                # The history is read after the stream was opened, so that no row is in neither.
                if is_first:
                    self._catch_up()
                if once:
                    return True
                if self._is_finished and self._is_measured():
                    break
            elif event == "lagged":
                self._catch_up()
            elif event == "point" and _time_s(told) > self._read_s[POINT[0]]:
                if self._is_cut:
                    self._catch_up(before_s=_time_s(told))
                self._write([self._row(told, _POINT_METRICS, self._rates())])
            elif event == "evaluation" and _time_s(told) > self._read_s[EVALUATION[0]]:
                self._write([self._row(told, _EVALUATION_METRICS)])
        if not self._is_finished:
            return False
        try:
            self._catch_up()
        except LostError as lost:
            _log.info("the syncer of the complete run is gone (%s)", lost)
        return True

    def _is_measured(self) -> bool:
        """Returns whether the last parameters of the complete run are measured, for which it waits a few seconds."""
        self._ends_s = self._ends_s or time.monotonic() + _LAST_LOSS_S
        measured = self._cursor.positions.get(EVALUATION[0])
        is_awaited = self._status.get("valLossLast") is not None
        is_measured = measured is not None and measured[1] >= self._status.get("tokensMerged", 0)
        return not is_awaited or is_measured or time.monotonic() >= self._ends_s

    def _note_status(self, status: Any) -> None:
        """Keeps a status, which must be one of the same run."""
        if not isinstance(status, dict) or not isinstance(status.get("run"), str):
            raise LostError("an event cannot be read")
        if status["run"] != self._run:
            raise ArchipelagoError(
                f"{self._syncer.page} now serves the run {status['run']} instead of {self._run}: start another watcher"
            )
        self._status = status
        # A killed syncer begins again with the clock of its last record, up to ten seconds before the newest row.
        run_s, uptime_s = finite(status.get("runS")) or 0.0, finite(status.get("uptimeS")) or 0.0
        newest_s = max((time_s for time_s, _ in self._cursor.positions.values()), default=0.0)
        if newest_s > run_s + _CLOCK_S and not self._is_finished:
            self._cursor.turn_back(run_s - uptime_s + _CLOCK_S)

    @property
    def _is_finished(self) -> bool:
        return self._status.get("finished") is True

    def _catch_up(self, before_s: float = math.inf) -> None:
        """Writes the rows of the history that the tracker does not have, up to a time of the run."""
        series = self._syncer.get("v1/series")
        try:
            keys = list(_POINT_METRICS.values())
            points = [dict(zip(keys, row, strict=True)) for row in zip(*(series[key] for key in keys), strict=True)]
            evaluations = series["evaluations"]
            # The newest point is still being averaged if a point spans several seconds.
            self._is_cut = before_s == math.inf and series["spanS"] > 1 and not self._is_finished
            if self._is_cut:
                points.pop()
            rows = [(_time_s(point), self._row(point, _POINT_METRICS)) for point in points]
            rows += [(_time_s(one), self._row(one, _EVALUATION_METRICS)) for one in evaluations]
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            raise LostError("the history cannot be read") from None
        rows.sort(key=lambda row: row[0])
        new = []
        cursor = Cursor(dict(self._cursor.positions))
        for time_s, row in rows:
            for key in self._read_s:
                if key in row.metrics and time_s < before_s:
                    self._read_s[key] = time_s
            if time_s < before_s and cursor.is_new(row.metrics):
                cursor.note(row.metrics)
                new.append(row)
        self._write(new)

    def _row(self, told: Any, names: dict[str, str], more: dict[str, float] | None = None) -> Row:
        """Returns the row of a point or of an evaluation. A loss that is not finite is left out."""
        metrics = {name: number for name, key in names.items() if (number := finite(told.get(key))) is not None}
        ago_s = max((finite(self._status.get("runS")) or 0.0) - _time_s(told), 0.0)
        return Row(metrics | (more or {}), int(finite(told.get("tokensMerged")) or 0), time.time() - ago_s)

    def _rates(self) -> dict[str, float]:
        """Returns the newest rates of the learners with most merged tokens."""
        known = [one for one in self._status.get("learners", ()) if one.get("state") != "away"]
        known.sort(key=lambda one: finite(one.get("tokensMerged")) or 0.0, reverse=True)
        rates: dict[str, float] = {}
        for one in known[: self._learners]:
            # Learners choose their names, which need not be unique.
            place = f"learners/{re.sub(r'[^A-Za-z0-9_. -]', '_', str(one.get('name')))[:40]}-{one.get('learner')}"
            for name, key in _LEARNER_METRICS.items():
                if (number := finite(one.get(key))) is not None:
                    rates[f"{place}/{name}"] = number
        return rates

    def _write(self, rows: list[Row]) -> None:
        if rows:
            self._tracker.write(rows)
        for row in rows:
            self._cursor.note(row.metrics)
        if rows and self._state is not None:
            self._state.save(self._cursor)
        self._rows += len(rows)


def _time_s(told: Any) -> float:
    """Returns the time of a point or of an evaluation."""
    time_s = finite(told.get("timeS")) if isinstance(told, dict) else None
    if time_s is None:
        raise LostError("an event cannot be read")
    return time_s


def _waits() -> Iterator[float]:
    """Yields ever longer waits, in seconds."""
    for power in itertools.count():
        yield min(_FIRST_WAIT_S * 2 ** min(power, 16), _LONGEST_WAIT_S)
