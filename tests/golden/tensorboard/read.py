"""Has TensorBoard read `events.txt`, which a test of the syncer compares with what it writes.

    pip install tensorboard && python tests/golden/tensorboard/read.py
"""

import pathlib
import tempfile

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

here = pathlib.Path(__file__).parent
with tempfile.TemporaryDirectory() as folder:
    file = pathlib.Path(folder) / "events.out.tfevents.0.golden"
    file.write_bytes(bytes.fromhex((here / "events.txt").read_text()))
    events = EventAccumulator(folder).Reload()

tags = events.Tags()
curves = ["bytes/down", "bytes/up", "learners", "loss/held_out", "loss/training", "participation", "tokens_per_second"]
assert sorted(tags["scalars"]) == curves, tags
points = {tag: [(e.wall_time, e.step, e.value) for e in events.Scalars(tag)] for tag in curves}
began = 1_700_000_000
assert points["learners"] == [(began + 0.5, 0, 0.0), (began + 1.5, 300, 1.0), (began + 2.5, 600, 2.0)], points
assert points["loss/training"] == [(began + 1.5, 300, 4.25), (began + 2.5, 600, 4.25)], points
assert points["loss/held_out"] == [(began + 2.75, 600, 3.5)], points
assert points["bytes/up"][0][2] == 2**20, points
assert tags["tensors"] == ["sample"], tags
sample = events.Tensors("sample")[0].tensor_proto.string_val[0].decode()
assert sample == "    Once *upon*\n    a time é", sample
print("TensorBoard reads it:", sum(map(len, points.values())), "points and a text")
