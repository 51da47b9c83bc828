"""Tests of the package, with the standard library's unittest: `cargo xtask test --only python` runs them."""

import logging
import sys
from pathlib import Path

# The tests train the examples' models.
sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

# Expected log messages would clutter the output.
logging.getLogger("archipelago_train").setLevel(logging.CRITICAL)
