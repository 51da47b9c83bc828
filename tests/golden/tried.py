"""The programs that `init_try.py` and `lora_try.py` try: started, asked and stopped."""
import contextlib
import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

PROGRAMS = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2] / "target/debug")
# The share of the text that is held out, and the tokens of a window.
SHARE, CONTEXT = 0.2, 48
WAIT_S = 240


@contextlib.contextmanager
def serving(dir, init, words, *settings):
    """A syncer on a free port; gives what it says first."""
    command = [
        PROGRAMS / "syncer-server", "serve", "--init", init, "--data", words, "--dir", dir, "--json", "--quiet",
        "--held-out", str(SHARE), "--context", str(CONTEXT), "--batch", "4", "--sync-every", "4",
        "--total-tokens", "2000000", "--eval-every", "1s", "--listen", "127.0.0.1:0", *settings,
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        first = process.stdout.readline()
        assert first, "the syncer does not start"
        yield json.loads(first)
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


def status(address):
    with urllib.request.urlopen(f"http://{address}/v1/status", timeout=20) as answer:
        return json.load(answer)


def until(address, what, holds):
    ends = time.monotonic() + WAIT_S
    while time.monotonic() < ends:
        found = status(address)
        if holds(found):
            return found
        time.sleep(0.2)
    raise AssertionError(f"{what} took longer than {WAIT_S} s")


def first_loss(address):
    """The held-out loss before anything was merged."""
    return until(address, "the first loss", lambda found: found["valLossFirst"] is not None)["valLossFirst"]


def trained(address, identity, less, *settings):
    """Trains with one learner until the held-out loss is less by so much; the status once all is merged and measured."""
    learner = subprocess.Popen(
        [PROGRAMS / "native-learner", "join", f"ws://{address}", "--engine", "cpu", "--identity", identity, *settings],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    try:
        until(address, "training", lambda found: found["valLossLast"] < found["valLossFirst"] - less)
    finally:
        learner.terminate()
        learner.wait(60)
    rounds, ends = -1, time.monotonic() + WAIT_S
    while rounds != (rounds := status(address)["rounds"]):
        assert time.monotonic() < ends, "the last rounds do not end"
        time.sleep(3)
    return status(address)


def near(what, found, wanted, tolerance):
    print(f"    {what}: {found:.6f}, {wanted:.6f}")
    assert abs(found - wanted) <= tolerance, what
