"""Watchers of real runs and of scripted ones, with trackers that need no package."""

import contextlib
import http.server
import importlib.metadata
import io
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import archipelago_train
import bigrams
from archipelago_train import _watch
from archipelago_train.__main__ import main
from archipelago_train._syncer import LostError, page_of
from archipelago_train._trackers import Cursor, Place, Row

from .support import RunCase, until


class Watched(RunCase):
    """A test case with a run of the built-in decoder and a native learner."""

    def setUp(self) -> None:
        """Puts the watchers' state into the test's folder."""
        super().setUp()
        state = mock.patch.dict(os.environ, {"XDG_STATE_HOME": str(self.folder / "state")})
        state.start()
        self.addCleanup(state.stop)

    def serve_decoder(self, listen: str = "127.0.0.1:0") -> archipelago_train.Server:
        """Starts or continues the run; at the end of the test, its syncer is killed."""
        run = archipelago_train.serve(
            self.folder / "run", preset="tiny", lr=0.003, listen=listen, flags=["--eval-every", "1s"]
        )
        self.addCleanup(self.kill, run)
        return run

    def kill(self, run: archipelago_train.Server) -> None:
        """Kills a syncer."""
        run._process.kill()
        with contextlib.suppress(archipelago_train.ProgramError):
            run.wait()

    def finish(self, run: archipelago_train.Server) -> None:
        """Ends the run by its owner's order."""
        program = Path(os.environ["ARCHIPELAGO_BIN"]) / "syncer-server"
        subprocess.run([program, "finish", "--dir", run.dir], check=True, capture_output=True, timeout=60)

    def watcher(self, run: archipelago_train.Server, to: str, *words: str, **variables: str) -> "subprocess.Popen[str]":
        """Starts a watcher as a process, with the test's folder as its working folder."""
        watcher = subprocess.Popen(
            [sys.executable, "-m", "archipelago_train", "watch", run.url, "--to", to, "--name", "mine", *words],
            cwd=self.folder,
            env=os.environ | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(watcher.communicate)
        self.addCleanup(watcher.kill)
        return watcher

    def ended(self, watcher: "subprocess.Popen[str]") -> str:
        """Waits for the end of a watcher, which must be a success. Returns its messages."""
        _, said = watcher.communicate(timeout=120)
        self.assertEqual(watcher.returncode, 0, said)
        return said

    def series(self, run: archipelago_train.Server) -> tuple[list[tuple[float, int]], list[tuple[float, int]]]:
        """Returns time and merged tokens of all points and of all evaluations that the syncer has."""
        with urllib.request.urlopen(f"{run.page}v1/series", timeout=10) as answer:
            told = json.load(answer)
        evaluations = [(one["timeS"], one["tokensMerged"]) for one in told["evaluations"]]
        return list(zip(told["timeS"], told["tokensMerged"], strict=True)), evaluations

    def assert_complete(self, run: archipelago_train.Server, rows: list[dict[str, Any]]) -> None:
        """Asserts that rows are those of the run: none is doubled and none is missing."""
        for at, names in zip(self.series(run), _names(), strict=True):
            found = [(row[names[0]], row[names[1]]) for row in rows if row.get(names[0]) is not None]
            self.assertEqual(len(found), len(set(found)), found)
            self.assertEqual([one for one in at if one not in found], [], found)
            self.assertGreater(len(at), 0)

    def lines(self) -> list[dict[str, Any]]:
        """Returns the rows that the tracker of lines has."""
        with contextlib.suppress(FileNotFoundError):
            text = (self.folder / "archipelago/mine.jsonl").read_text()
            return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return []


def _names() -> list[tuple[str, str]]:
    return [("time_s", "tokens_merged"), ("evaluation/time_s", "evaluation/tokens_merged")]


class InARun(Watched):
    """Watchers of a real syncer."""

    def test_kills_of_the_watcher_and_of_the_syncer_lose_and_double_nothing(self) -> None:
        """And the watcher ends with the run."""
        run = self.serve_decoder()
        self.lend(run, "lab 3/é")
        first = self.watcher(run, "jsonl")
        until("it has merges", lambda: self.lines() and self.lines()[-1]["step"] > 0)
        first.send_signal(signal.SIGKILL)
        first.communicate()
        before = self.lines()
        time.sleep(2.5)
        second = self.watcher(run, "jsonl")
        until("it caught up", lambda: len(self.lines()) > len(before) + 3)
        rows = self.lines()
        self.assertEqual(rows[: len(before)], before)
        self.assert_complete(run, [*rows, *self.missed(run, rows)])
        self.kill(run)
        time.sleep(1.0)
        run = self.serve_decoder(run.page.removeprefix("http://").rstrip("/"))
        killed = self.lines()
        until("it goes on", lambda: self.lines()[-1]["step"] > killed[-1]["step"])
        until("it has more points", lambda: len(self.lines()) > len(killed) + 8)
        self.finish(run)
        self.assertIn("connecting again", self.ended(second))
        rows = self.lines()
        self.assert_complete(run, rows)
        self.assertEqual(rows[-1].get("loss/held_out", 0.0), run.status()["valLossLast"])
        rates = [row for row in rows if row.get("learners/lab 3__-1/tokens_per_second", 0.0) > 0]
        self.assertGreater(len(rates), 3)
        # Another start finds nothing to add.
        self.assertIn("0 rows written", self.ended(self.watcher(run, "jsonl")))

    def missed(self, run: archipelago_train.Server, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yields rows that the syncer has made since the newest of these."""
        for at, (time_s, tokens) in zip(self.series(run), _names(), strict=True):
            last_s = max((row[time_s] for row in rows if time_s in row), default=0.0)
            yield from ({time_s: one[0], tokens: one[1]} for one in at if one[0] > last_s)

    def test_once_gives_flat_numbers_to_a_function(self) -> None:
        """Each row is the history's, with merged tokens as its step. A wrong token is refused."""
        run = self.serve_decoder()
        self.lend(run, "lab 3/é")
        until("it has points with a loss", lambda: run.status()["trainLoss"] and len(self.series(run)[0]) > 5)
        rows: list[tuple[dict[str, float], int]] = []
        token = Path(run.dir, "admin.token").read_text().strip()
        count = archipelago_train.watch(run.url, to=lambda *row: rows.append(row), once=True, token=token)
        self.assertEqual(count, len(rows))
        for metrics, step in rows:
            self.assertEqual(metrics.get("tokens_merged", metrics.get("evaluation/tokens_merged")), step)
            self.assertTrue(all(math.isfinite(value) for value in metrics.values()), metrics)
        self.assertTrue(any("loss/training" in metrics for metrics, _ in rows))
        self.assertTrue(any("loss/held_out" in metrics for metrics, _ in rows))
        with self.assertRaises(archipelago_train.RefusedError) as raised:
            archipelago_train.watch(run.url, to=print, once=True, token="guess")
        self.assert_a_sentence(raised.exception, "refused the token (HTTP 401): give that of the run's owner")

    def test_a_report_is_flat_numbers(self) -> None:
        """For programs that log by themselves."""
        run = self.serve_bigrams()
        learner = self.learner(run, bigrams.model())
        report = learner.report.as_dict()
        self.assertEqual({type(value) for value in report.values()}, {int, float})
        self.assertIn("tokens_merged", report)
        self.assertNotIn("doing", report)


class Scripted:
    """A syncer that says what a test wants."""

    page = "http://syncer/"

    def __init__(self, *events: tuple[str, Any]) -> None:
        self.series: dict[str, Any] = {"spanS": 1, "evaluations": []}
        self.at(1)
        self._events = events

    def at(self, span_s: int, *points: tuple[float, int]) -> None:
        """Sets the history."""
        self.series["spanS"] = span_s
        for key in _watch._POINT_METRICS.values():
            self.series[key] = [1.0 for _ in points]
        self.series["timeS"] = [time_s for time_s, _ in points]
        self.series["tokensMerged"] = [tokens for _, tokens in points]

    def events(self) -> Iterator[tuple[str, Any]]:
        """Yields the events; a function among them is called."""
        for name, told in self._events:
            if callable(told):
                told(self)
            else:
                yield name, told

    def get(self, path: str) -> Any:
        """Returns the history."""
        return self.series


class Kept:
    """A tracker in memory."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def last(self) -> Cursor | None:
        """Returns nothing."""
        return None

    def write(self, rows: list[Row]) -> None:
        """Keeps the times."""
        self.at += [row.metrics.get("time_s", -row.metrics.get("evaluation/time_s", 0.0)) for row in rows]

    def close(self) -> None:
        """Does nothing."""


def status(run_s: float, uptime_s: float, **more: Any) -> tuple[str, Any]:
    """Returns the event of a status."""
    return "status", {"run": "7", "runS": run_s, "uptimeS": uptime_s, **more}


def point(time_s: float, tokens: int) -> tuple[str, Any]:
    """Returns the event of a point."""
    return "point", {"timeS": time_s, "tokensMerged": tokens}


def history(span_s: int, *points: tuple[float, int]) -> tuple[str, Any]:
    """Returns an event that changes the history and is not sent."""
    return "", lambda syncer: syncer.at(span_s, *points)


class WithAScript(RunCase):
    """Watchers of a syncer whose answers the test chooses."""

    def watched(self, *scripts: list[tuple[str, Any]], cursor: Cursor | None = None) -> list[float]:
        """Returns the times of the rows that one watcher writes over several connections; evaluations are negative."""
        kept = Kept()
        watcher = _watch._Watch(Scripted(), kept, cursor or Cursor(), "7", 16, None)  # type: ignore[arg-type]
        for script in scripts:
            watcher._syncer = Scripted(*script)  # type: ignore[assignment]
            watcher._follow(once=False)
        return kept.at

    def test_a_point_in_both_history_and_stream_is_written_once(self) -> None:
        """The stream is opened first, so the newest points are often in both."""
        script = [history(1, (1, 0), (2, 0)), status(2, 2), point(2, 0), point(3, 0), point(4, 5)]
        self.assertEqual(self.watched(script), [1, 2, 3, 4])

    def test_an_unfinished_point_is_not_written(self) -> None:
        """If points span several seconds, the newest of the history is not complete; it comes once it is."""
        script = [history(4, (1, 0), (5, 3), (8, 4)), status(8, 8), history(4, (1, 0), (5, 3), (9, 5)), point(9, 5)]
        self.assertEqual(self.watched(script), [1, 5, 9])
        # The point was complete, and the next one is there first.
        script = [history(4, (1, 0), (5, 3)), status(5, 5), history(4, (1, 0), (5, 3), (9, 5)), point(9, 5)]
        self.assertEqual(self.watched(script), [1, 5, 9])

    def test_missed_events_are_taken_from_the_history(self) -> None:
        """After `lagged`."""
        script = [status(1, 1), point(1, 0), history(1, (1, 0), (2, 0), (3, 4)), ("lagged", 2), point(4, 5)]
        self.assertEqual(self.watched(script), [1, 2, 3, 4])

    def test_a_clock_that_was_turned_back(self) -> None:
        """A killed syncer repeats some seconds of its clock; all its points are new, also those without a merge."""
        first = [status(19, 19), point(19, 7), point(20, 8)]
        second = [history(1, (10, 4), (11, 8), (12, 9)), status(12.5, 2.5), point(13, 9), point(14, 9)]
        self.assertEqual(self.watched(first, second), [19, 20, 11, 12, 13, 14])

    def test_a_clock_that_was_turned_back_before_the_watcher_started(self) -> None:
        """The merged tokens show which points are new."""
        cursor = Cursor({"time_s": (20.0, 8.0)})
        script = [history(1, (10, 4), (11, 8), (12, 9), (23, 9)), status(23.5, 13.5), point(24, 9)]
        self.assertEqual(self.watched(script, cursor=cursor), [12, 23, 24])

    def test_the_last_measurement_is_awaited(self) -> None:
        """It follows the end of the run; a run that measures nothing ends at once."""
        done = status(5, 5, finished=True, valLossLast=1.0, tokensMerged=9)
        last = ("evaluation", {"timeS": 6, "tokensMerged": 9, "loss": None})
        self.assertEqual(self.watched([done, point(5, 9), last, done, point(7, 9)]), [5, -6])
        self.assertEqual(self.watched([status(5, 5, finished=True), point(5, 9)]), [])

    def test_a_connection_lost_after_the_end(self) -> None:
        """It is the end: the syncer of a complete run may exit at once."""

        def lose(_: Scripted) -> None:
            raise LostError("reset")

        script = [status(5, 5, finished=True, valLossLast=1.0, tokensMerged=9), ("", lose)]
        watcher = _watch._Watch(Scripted(*script), Kept(), Cursor(), "7", 16, None)  # type: ignore[arg-type]
        self.assertEqual(watcher.go(once=False, give_up_s=0.0), 0)

    def test_answers_that_make_no_sense(self) -> None:
        """They are a lost connection."""
        broken = ("", lambda syncer: syncer.series.clear())
        for script in (
            [("status", None)],
            [status(1, 1), ("point", {"timeS": "x"})],
            [broken, status(1, 1)],
        ):
            with self.assertRaises(LostError):
                self.watched(script)
        with self.assertRaises(archipelago_train.ArchipelagoError) as raised:
            self.watched([("status", {"run": "8"})])
        self.assert_a_sentence(raised.exception, "now serves the run 8 instead of 7")


class Refusals(Watched):
    """What cannot be watched."""

    def answering(self, answer: Callable[[str], tuple[int, dict[str, str], str]]) -> str:
        """Starts an HTTP server with these answers to paths; returns its address."""

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                code, headers, body = answer(self.path)
                self.send_response(code)
                for header in headers.items():
                    self.send_header(*header)
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *words: Any) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return f"http://127.0.0.1:{server.server_address[1]}"

    def refused(self, url: str, error: type[Exception], part: str, **options: Any) -> None:
        """Asserts that a watcher of this address fails in one sentence, as a function and as a command."""
        options = {"give_up_s": 5.0, **options}
        with self.assertRaises(error) as raised:
            archipelago_train.watch(url, **{"to": "jsonl", "project": str(self.folder / "curves"), **options})
        self.assertIs(type(raised.exception), error)
        self.assert_a_sentence(raised.exception, part)
        said = io.StringIO()
        words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        with contextlib.redirect_stderr(said), mock.patch("logging.basicConfig"):
            code = main(["watch", url, "--project", str(self.folder / "curves"), "--to", "jsonl", *words])
        self.assertEqual((code, said.getvalue()), (1, f"error: {raised.exception}\n"))

    def test_addresses(self) -> None:
        """All forms of a syncer's address are accepted, and others get their own message."""
        for url, page in (
            ("ws://a:1", "http://a:1/"),
            ("wss://a.b/v1/ws", "https://a.b/"),
            ("a:1", "http://a:1/"),
            ("http://a/runs/b/dashboard?x=1#invite=c", "http://a/runs/b/"),
            ("ws://[::1]:7/", "http://[::1]:7/"),
        ):
            self.assertEqual(page_of(url), page)
        for url, part in (
            ("ftp://a:1", "ftp:// does not lead to a syncer: use ws://"),
            ("a", "names no port: write host:port"),
            ("ws://", "is not an address: give host:port"),
            ("http://a:b/", "is not an address"),
            ("http://token@a/", "is not an address"),
        ):
            self.refused(url, ValueError, part)

    def test_nobody_or_somebody_else_answers(self) -> None:
        """Each cause has its own message."""
        self.refused("127.0.0.1:1", archipelago_train.UnreachableError, "check the address, and that the syncer runs")
        other = archipelago_train.NotASyncerError
        page = self.answering(lambda _: (200, {}, "<html>"))
        self.refused(page, other, "is not a run of a syncer: it answers /v1/status with something else")
        page = self.answering(lambda _: (404, {}, "<html>"))
        self.refused(page, other, "is not a run of a syncer (HTTP 404): check the address")
        page = self.answering(lambda _: (302, {"location": "https://a/"}, ""))
        self.refused(page, other, "redirects to https://a/: give that address")
        runs = json.dumps({"runs": [{"name": "one"}, {"name": "two"}]})
        page = self.answering(lambda path: (200, {}, runs) if path == "/v1/runs" else (404, {}, ""))
        self.refused(page, other, "/runs/NAME/, where NAME is one of one, two")
        page = self.answering(lambda _: (403, {}, ""))
        self.refused(page, archipelago_train.RefusedError, "wants a token (HTTP 403)")
        page = self.answering(lambda _: (503, {}, "the run is opening\nwait"))
        self.refused(page, archipelago_train.UnreachableError, "(HTTP 503: the run is opening)")

    def test_a_syncer_that_stays_away(self) -> None:
        """The watcher gives up after the chosen time."""
        status = json.dumps({"run": "7", "runS": 1.0, "uptimeS": 1.0})
        page = self.answering(lambda path: (200, {}, status) if path == "/v1/status" else (502, {}, "bad gateway"))
        with self.assertLogs("archipelago_train") as logged:
            self.refused(page, archipelago_train.UnreachableError, "has not answered for 1 s", give_up_s=1.0)
        self.assertIn("(HTTP 502: bad gateway); connecting again in 0.5 s", logged.output[0])

    def test_a_tracker_that_is_not_installed(self) -> None:
        """The message has the command that installs it. A tracker that fails has its own reason."""
        status = json.dumps({"run": "7", "runS": 1.0, "uptimeS": 1.0})
        page = self.answering(lambda _: (200, {}, status))
        for to, module in (
            ("trackio", "trackio"),
            ("wandb", "wandb"),
            ("mlflow", "mlflow"),
            ("tensorboard", "tensorboard.summary.writer.event_file_writer"),
        ):
            with mock.patch.dict(sys.modules, {module: None}):
                self.refused(page, archipelago_train.TrackerNotInstalledError, f"run `pip install {to}`", to=to)
        with mock.patch.dict(sys.modules, {"wandb": mock.Mock(init=mock.Mock(side_effect=KeyError("no\nkey")))}):
            self.refused(page, archipelago_train.TrackerError, "wandb failed: ", to="wandb")
        with self.assertRaises(ValueError) as raised:
            archipelago_train.watch(page, to="paper")
        self.assert_a_sentence(raised.exception, "there is no tracker paper: use one of trackio, wandb")

    def test_a_name_in_the_tracker_belongs_to_one_run_and_one_watcher(self) -> None:
        """Otherwise points would be doubled or left out."""
        for number in (1, 2):
            status = json.dumps({"run": str(number), "runS": 1.0, "uptimeS": 1.0})
            events = f"event: status\ndata: {status}\n\n"
            series = json.dumps({"spanS": 1, "evaluations": []} | {key: [] for key in _watch._POINT_METRICS.values()})
            answers = {"/v1/status": status, "/v1/events": events, "/v1/series": series}
            page = self.answering(lambda path, answers=answers: (200, {}, answers[path]))  # type: ignore[misc]
            if number == 1:
                archipelago_train.watch(page, to="jsonl", project=str(self.folder / "curves"), name="a", once=True)
        self.refused(page, archipelago_train.ArchipelagoError, "has the curves of the run 1", name="a")
        place = Place(str(self.folder / "curves"), "b", "2")
        state = _watch._State("jsonl", place)
        self.addCleanup(state.close)
        self.refused(page, archipelago_train.ArchipelagoError, "another watcher writes to b", name="b")

    def test_a_damaged_state_file_is_named(self) -> None:
        """A sentence says which file to delete."""
        place = Place(str(self.folder / "curves"), "c", "2")
        state = _watch._State("jsonl", place)
        state.close()
        for content in ("", "{", "[]", "{}", '{"run": "2"}', '{"run": "2", "positions": {"time_s": 1}}'):
            state._path.write_text(content)
            with self.assertRaises(archipelago_train.ArchipelagoError) as raised:
                _watch._State("jsonl", place)
            self.assert_a_sentence(raised.exception, f"{state._path} is damaged: delete it")

    def test_a_torn_line_is_written_again(self) -> None:
        """A kill while a line is written leaves part of it."""
        status = json.dumps({"run": "7", "runS": 3.0, "uptimeS": 3.0})
        series = {"spanS": 1, "evaluations": []} | {key: [1, 2, 3] for key in _watch._POINT_METRICS.values()}
        answers = {
            "/v1/status": status,
            "/v1/events": f"event: status\ndata: {status}\n\n",
            "/v1/series": json.dumps(series),
        }
        page = self.answering(lambda path: (200, {}, answers[path]))
        options: dict[str, Any] = {"to": "jsonl", "project": str(self.folder / "archipelago"), "name": "mine"}
        self.assertEqual(archipelago_train.watch(page, once=True, **options), 3)
        file = self.folder / "archipelago/mine.jsonl"
        file.write_bytes(file.read_bytes()[:-5])
        self.assertEqual(archipelago_train.watch(page, once=True, **options), 1)
        self.assertEqual([row["time_s"] for row in self.lines()], [1, 2, 3])

    def test_the_command_is_installed(self) -> None:
        """Under its name."""
        (script,) = importlib.metadata.entry_points(group="console_scripts", name="archipelago-train")
        self.assertIs(script.load(), main)
