"""Code that people copy: the programs of the README and the cells of the notebook, run unchanged."""

import contextlib
import io
import json

from .support import EXAMPLES, RunCase, programs


class Pages(RunCase):
    """Each program and notebook in its own folder."""

    def test_the_first_program_of_the_readme(self) -> None:
        """The program needs only NumPy, trains and exports a model, and a second start does the same."""
        for count in (1, 2):
            said = self.run_program(programs()[0])
            loss, merged = said.split("\n")[0].removeprefix("loss ").removesuffix(" updates merged").split(", ")
            self.assertLess(float(loss), 4.0, said)
            self.assertGreater(int(merged), 0, said)
            self.assertEqual(len(list(self.folder.glob("*/trained/model.safetensors"))), count, said)

    def test_the_notebook(self) -> None:
        """The cells run in order."""
        notebook = json.loads((EXAMPLES / "notebook.ipynb").read_text())
        cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
        said = io.StringIO()
        names: dict[str, object] = {}
        with contextlib.redirect_stdout(said):
            for cell in cells:
                exec(cell, names)
        self.assertEqual(said.getvalue().count("█\n"), 8, said.getvalue())
        self.assertTrue(all(not cell.get("outputs") for cell in notebook["cells"]), "it is kept without outputs")
