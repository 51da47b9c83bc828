"""Archipelago's programs, started from Python: a syncer, the model of a run, its merges again, and the simulator.

They are programs of their own, which `cargo build --release -p syncer-server -p archipelago-sim` makes. They are looked
for in the folder that the variable ARCHIPELAGO_BIN names, if it is set, and else on PATH.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import urllib.request
from types import TracebackType
from typing import Any, Self

from ._errors import ProgramError, ProgramNotFoundError

_PACKAGES = {"syncer-server": "syncer-server", "simulate": "archipelago-sim"}
_STOP_S = 30.0

Path = str | os.PathLike[str]


class Server:
    """A syncer that `serve` started. As a context manager it stops at the end.

    Attributes:
        url: The address for learners.
        page: The address of the run's page.
        dir: The folder of the run.
    """

    url: str
    page: str
    dir: str

    def __init__(self, command: list[str], dir: str) -> None:
        self.dir = dir
        # A pipe that nobody reads would fill up and halt the syncer.
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 it lives as long as the process
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        assert self._process.stdout is not None
        told = self._process.stdout.readline()
        if not told:
            raise _failed(self._process.wait(), self._said())
        listening = json.loads(told)
        self.page, self.url = listening["url"], f"ws://{listening['address']}"

    def status(self) -> dict[str, Any]:
        """How the run stands, as /v1/status tells it.

        Raises:
            OSError: The syncer does not answer.
        """
        with urllib.request.urlopen(f"{self.page}v1/status", timeout=10) as answer:
            status: dict[str, Any] = json.load(answer)
        return status

    def wait(self, timeout_s: float | None = None) -> None:
        """Waits until the syncer ends, as it does after a complete run that was served with `exit_when_finished`.

        Raises:
            TimeoutError: It has not ended within `timeout_s`.
            ProgramError: It ended with an error.
        """
        self._finish(timeout_s)

    def stop(self) -> None:
        """Asks it to save the run and to end, and waits for that. Once is enough.

        Raises:
            ProgramError: It ended with an error.
        """
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        self._finish(_STOP_S)

    def _finish(self, timeout_s: float | None) -> None:
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the syncer of {self.dir} has not ended within {timeout_s} s") from None
        said = self._said()
        if code != 0:
            raise _failed(code, said)

    def _said(self) -> str:
        """All that it said, once it has ended."""
        if self._process.stdout is not None:
            self._process.stdout.close()
        if self._log.closed:
            return ""
        with self._log:
            self._log.seek(0)
            return self._log.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def serve(
    dir: Path,
    *,
    params: Path | None = None,
    init: Path | None = None,
    preset: str | None = None,
    data: Path | None = None,
    lr: float | None = None,
    batch: int | None = None,
    context: int | None = None,
    learners_start: int | None = None,
    architecture: str | None = None,
    evaluator: str | None = None,
    stop_at_tokens: int | None = None,
    exit_when_finished: bool = False,
    listen: str = "127.0.0.1:0",
    flags: list[str] | tuple[str, ...] = (),
) -> Server:
    """Starts a run, or goes on with the one in `dir`, and returns once it answers.

    Args:
        dir: The folder of the run.
        params: The file that `write_params` wrote, for a model of your own.
        init: A Hugging Face folder of a Llama to begin with.
        preset: The built-in model: tiny, small, medium or base. Beside `params` it says the window, batch and rates.
        data: A UTF-8 text file, or a folder of them; by default sentences made up by rules.
        lr: The highest inner learning rate; the largest update that is taken grows with it.
        batch: Windows in one step of one learner.
        context: Length of a window, in tokens.
        learners_start: Live learners before the first round.
        architecture: What the model of `params` is, for the learners that know it by this name.
        evaluator: The learner that is trusted to measure the held-out loss of `params`, by its name or its key's
            fingerprint: one with `evaluate`.
        stop_at_tokens: Finish the run at this many merged tokens.
        exit_when_finished: End once the run is complete.
        listen: The address to listen on; port 0 takes a free one.
        flags: Other flags, as `syncer-server serve --help` lists them.

    Raises:
        ProgramNotFoundError: `syncer-server` is not installed.
        ProgramError: It ended at once; the sentence is its own.
    """
    words = _flags(
        dir=dir,
        params=params,
        init=init,
        preset=preset,
        data=data,
        lr=lr,
        batch=batch,
        context=context,
        learners_start=learners_start,
        architecture=architecture,
        evaluator=evaluator,
        stop_at_tokens=stop_at_tokens,
        exit_when_finished=exit_when_finished,
        listen=listen,
    )
    command = [_program("syncer-server"), "serve", "--json", "--quiet", *words, *flags]
    return Server(command, os.fspath(dir))


def export(dir: Path, out: Path, *, dtype: str = "f32", overwrite: bool = False) -> dict[str, Any]:
    """Writes the newest snapshot of the run in `dir` to the folder `out`.

    The built-in decoder becomes a Hugging Face folder, and a model of your own a file model.safetensors.

    Args:
        dir: The folder of the run.
        out: The folder to write, made if it is not there.
        dtype: f32 or bf16.
        overwrite: Replace files of an export that is there.

    Returns:
        What was written, as the program tells it.

    Raises:
        ProgramNotFoundError: `syncer-server` is not installed.
        ProgramError: It could not; the sentence is its own.
    """
    words = _flags(dir=dir, out=out, dtype=dtype, overwrite=overwrite)
    return _last_line(_run("syncer-server", ["export", "--json", *words]))


def replay(dir: Path, *, losses: bool = False, out: Path | None = None, until: int | None = None) -> dict[str, Any]:
    """Computes every merge of the run in `dir` again, from its tape, and compares the bits.

    Args:
        dir: The folder of the run.
        losses: Find the merge that raised the held-out loss most; for the built-in decoder.
        out: A folder to write the model of that moment to.
        until: Stop after this decision.

    Returns:
        What was found, as the program tells it: `merges` among others.

    Raises:
        ProgramNotFoundError: `syncer-server` is not installed.
        ProgramError: The bits differ, or the run cannot be read; the sentence is its own.
    """
    words = _flags(dir=dir, losses=losses, out=out, until=until)
    return _last_line(_run("syncer-server", ["replay", "--json", *words]))


def simulate(subject: str, *flags: str) -> str:
    """Plays whole runs in virtual time, as the program `simulate` does.

    Args:
        subject: What to simulate, as `simulate --help` lists it: goodput or bandwidth, for example.
        flags: The flags of that, such as "--json".

    Returns:
        What the program prints.

    Raises:
        ProgramNotFoundError: `simulate` is not installed.
        ProgramError: It could not; the sentence is its own.
    """
    return _run("simulate", [subject, *flags])


def _program(name: str) -> str:
    folder = os.environ.get("ARCHIPELAGO_BIN")
    found = shutil.which(name, path=folder)
    if found is None:
        place = f"in {folder}, the folder that ARCHIPELAGO_BIN names" if folder else "on PATH"
        raise ProgramNotFoundError(
            f"there is no {name} {place}: build it with `cargo build --release -p {_PACKAGES[name]} --bins` and name "
            "its folder with ARCHIPELAGO_BIN"
        )
    return found


def _flags(**options: Any) -> list[str]:
    words: list[str] = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words.append(os.fspath(value) if isinstance(value, os.PathLike) else str(value))
    return words


def _run(name: str, words: list[str]) -> str:
    done = subprocess.run([_program(name), *words], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise _failed(done.returncode, done.stderr)
    return done.stdout


def _last_line(said: str) -> dict[str, Any]:
    lines = said.strip().splitlines()
    told: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    return told


def _failed(code: int, said: str) -> ProgramError:
    lines = said.strip().splitlines()
    return ProgramError(lines[-1] if lines else f"it ended with code {code} and said nothing", code)
