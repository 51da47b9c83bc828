"""Shared parts of the tests: a run of a table of bigrams, and waiting for a condition."""

import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import archipelago_train
import bigrams

EXAMPLES = Path(__file__).parent.parent / "examples"
WAIT_S = 90.0
# Prompt of an answer text; no completion contains a byte of it.
PROMPT = b"ABBA?"


class RunCase(unittest.TestCase):
    """A test case with its own folder."""

    def setUp(self) -> None:
        """Creates the folder."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def serve(self, **options: Any) -> archipelago_train.Server:
        """Starts a syncer that stops at the end of the test."""
        run = archipelago_train.serve(self.folder / "run", **options)
        self.addCleanup(run.stop)
        return run

    def serve_bigrams(self, **options: Any) -> archipelago_train.Server:
        """Starts a syncer for a table of bigrams."""
        file = self.folder / "bigrams.safetensors"
        archipelago_train.write_params(file, bigrams.model())
        return self.serve(params=file, preset="tiny", lr=20, **options)

    def learner(self, run: archipelago_train.Server, params: Any, **options: Any) -> archipelago_train.Learner:
        """Creates a learner that is released at the end of the test."""
        learner = archipelago_train.Learner(run.url, params, identity=self.folder / "key", **options)
        self.addCleanup(learner.close)
        return learner

    def lend(self, run: archipelago_train.Server, name: str = "native") -> None:
        """Starts a native learner that is killed at the end of the test."""
        program = Path(os.environ["ARCHIPELAGO_BIN"]) / "native-learner"
        words = ["join", run.url, "--engine", "cpu", "--threads", "1", "--identity", str(self.folder / "native.key")]
        learner = subprocess.Popen(
            [program, *words, "--name", name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.addCleanup(learner.wait)
        self.addCleanup(learner.kill)

    def run_program(self, program: str) -> str:
        """Runs a program in the test's folder, with its keys and temporary files there too, and returns its output."""
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=self.folder,
            env=os.environ | {"XDG_STATE_HOME": str(self.folder / "state"), "TMPDIR": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        return done.stdout

    def assert_a_sentence(self, error: BaseException, part: str) -> None:
        """Asserts that an error says this in one line, without a trace of its cause."""
        said = str(error)
        self.assertIn(part, said)
        self.assertNotIn("\n", said)
        self.assertLess(len(said), 500)


def write_answers(folder: Path) -> Path:
    """Writes a text of given prompts and completions to learn; returns its file."""
    file = folder / "answers.jsonl"
    line = json.dumps({"prompt": PROMPT.decode(), "completion": "dance, they say"})
    file.write_text(f"{line}\n" * 400)
    return file


def programs() -> list[str]:
    """Returns the Python programs of the README, in order."""
    pieces = (EXAMPLES.parent / "README.md").read_text().split("```python\n")[1:]
    return [piece.split("```\n")[0] for piece in pieces]


def until(what: str, happened: Callable[[], Any]) -> Any:
    """Polls until happened returns something true, and returns that."""
    end_s = time.monotonic() + WAIT_S
    while time.monotonic() < end_s:
        if found := happened():
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {WAIT_S} s: {what}")
