"""What the tests share: a run of a table of bigrams, and waiting for what is to happen."""

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

import archipelago
import bigrams

EXAMPLES = Path(__file__).parent.parent / "examples"
WAIT_S = 90.0
# What is given in a text to answer; no completion has a byte of it.
PROMPT = b"ABBA?"


class RunCase(unittest.TestCase):
    """A case with a folder of its own."""

    def setUp(self) -> None:
        """Makes the folder."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def serve(self, **options: Any) -> archipelago.Server:
        """A syncer that stops at the end of the test."""
        run = archipelago.serve(self.folder / "run", **options)
        self.addCleanup(run.stop)
        return run

    def serve_bigrams(self, **options: Any) -> archipelago.Server:
        """The same for a table of bigrams."""
        file = self.folder / "bigrams.safetensors"
        archipelago.write_params(file, bigrams.model())
        return self.serve(params=file, preset="tiny", lr=20, **options)

    def learner(self, run: archipelago.Server, params: Any, **options: Any) -> archipelago.Learner:
        """A learner that is let go at the end of the test."""
        learner = archipelago.Learner(run.url, params, identity=self.folder / "key", **options)
        self.addCleanup(learner.close)
        return learner

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
        """That an error says this in one line, and nothing of how it came about."""
        said = str(error)
        self.assertIn(part, said)
        self.assertNotIn("\n", said)
        self.assertLess(len(said), 500)


def write_answers(folder: Path) -> Path:
    """A text of prompts that are given and completions that are to be learnt; its file."""
    file = folder / "answers.jsonl"
    line = json.dumps({"prompt": PROMPT.decode(), "completion": "dance, they say"})
    file.write_text(f"{line}\n" * 400)
    return file


def programs() -> list[str]:
    """The Python programs of the README, in their order."""
    pieces = (EXAMPLES.parent / "README.md").read_text().split("```python\n")[1:]
    return [piece.split("```\n")[0] for piece in pieces]


def until(what: str, happened: Callable[[], Any]) -> Any:
    """Looks until happened gives something true; that."""
    end_s = time.monotonic() + WAIT_S
    while time.monotonic() < end_s:
        if found := happened():
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {WAIT_S} s: {what}")
