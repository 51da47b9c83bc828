"""Started programs: where they are found, which flags they get, and how their end is reported."""

import os
import stat
from unittest import mock

import archipelago_train

from .support import RunCase


class Programs(RunCase):
    """Programs in the folder that a variable names."""

    def program(self, name: str, script: str) -> None:
        """Writes a script as a program of this name."""
        file = self.folder / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)

    def setUp(self) -> None:
        """Points the search for programs at the test's folder."""
        super().setUp()
        patched = mock.patch.dict(os.environ, {"ARCHIPELAGO_BIN": str(self.folder)})
        patched.start()
        self.addCleanup(patched.stop)

    def test_a_program_that_is_not_there(self) -> None:
        """The message names the searched places and the build command."""
        for call in (
            lambda: archipelago_train.simulate("goodput"),
            lambda: archipelago_train.serve("run"),
            lambda: archipelago_train.export("run", "out"),
        ):
            with self.assertRaises(archipelago_train.ProgramNotFoundError) as raised:
                call()
            self.assert_a_sentence(raised.exception, f"in {self.folder}, the folder that ARCHIPELAGO_BIN names")
            self.assertIsInstance(raised.exception, FileNotFoundError)

    def test_flags_are_those_of_the_programs(self) -> None:
        """Options become flags, and the output is returned."""
        self.program("simulate", 'echo "$@"')
        self.assertEqual(archipelago_train.simulate("goodput", "--json"), "goodput --json\n")
        self.program("syncer-server", 'printf \'%s\' "{\\"said\\": \\"$*\\"}"')
        told = archipelago_train.replay(self.folder / "run", losses=True, until=7)
        self.assertEqual(told["said"], f"replay --json --dir {self.folder / 'run'} --losses --until 7")
        told = archipelago_train.export("run", "out", dtype="bf16")
        self.assertEqual(told["said"], "export --json --dir run --out out --dtype bf16")

    def test_a_program_that_fails(self) -> None:
        """The error has the program's last sentence and its exit code."""
        self.program("syncer-server", "echo one >&2; echo 'error: the port is in use' >&2; exit 10")
        for call in (lambda: archipelago_train.serve("run"), lambda: archipelago_train.replay("run")):
            with self.assertRaises(archipelago_train.ProgramError) as raised:
                call()
            self.assert_a_sentence(raised.exception, "error: the port is in use")
            self.assertEqual(raised.exception.code, 10)
