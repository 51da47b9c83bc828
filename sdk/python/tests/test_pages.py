"""What people copy: the programs of the README and the cells of the notebook, run as they stand."""

import contextlib
import io
import json

from .support import EXAMPLES, RunCase, programs


class Pages(RunCase):
    """Each in a folder of its own."""

    def test_the_first_program_of_the_readme(self) -> None:
        """The program needs NumPy alone, trains and leaves a model, and a second start does the same."""
        for count in (1, 2):
            said = self.run_program(programs()[0])
            loss, merged = said.split("\n")[0].removeprefix("loss ").removesuffix(" updates merged").split(", ")
            self.assertLess(float(loss), 4.0, said)
            self.assertGreater(int(merged), 0, said)
            self.assertEqual(len(list(self.folder.glob("*/trained/model.safetensors"))), count, said)

    def test_the_notebook(self) -> None:
        """Its cells run one after the other."""
        notebook = json.loads((EXAMPLES / "notebook.ipynb").read_text())
        cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
        said = io.StringIO()
        names: dict[str, object] = {}
        with contextlib.redirect_stdout(said):
            for cell in cells:
                exec(cell, names)
        self.assertEqual(said.getvalue().count("█\n"), 8, said.getvalue())
        self.assertTrue(all(not cell.get("outputs") for cell in notebook["cells"]), "it is kept without outputs")
