"""Tests of the package, with the standard library's unittest: `cargo xtask test --only python` runs them."""

import logging
import sys
from pathlib import Path

# They train what the examples train.
sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

# What they provoke need not be read.
logging.getLogger("archipelago").setLevel(logging.CRITICAL)
