"""Writes the Parquet files of this folder and expected.jsonl, their rows.

    python make.py

It needs pyarrow. Each file of CASES has the same rows in another form. The other files have columns that are refused, or no rows.
"""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).parent
MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string()), ("weight", pa.int64()), ("tags", pa.list_(pa.string()))])
SCHEMA = pa.schema([
    ("id", pa.int32()),
    ("text", pa.string()),
    ("messages", pa.list_(MESSAGE)),
    ("label", pa.bool_()),
    ("context", pa.struct([("score", pa.float64()), ("source", pa.string())])),
])  # fmt: skip
CASES = {
    "snappy": {"compression": "snappy"},
    "zstd": {"compression": "zstd", "data_page_version": "2.0"},
    "gzip": {"compression": "gzip", "row_group_size": 7},
    "lz4": {"compression": "lz4", "use_compliant_nested_type": False},
    "plain": {"compression": "none", "use_dictionary": False, "data_page_size": 64},
    "delta": {
        "compression": "none", "use_dictionary": False, "data_page_version": "2.0",
        "column_encoding": {"text": "DELTA_BYTE_ARRAY", "messages.list.element.role": "DELTA_LENGTH_BYTE_ARRAY",
                            "messages.list.element.weight": "DELTA_BINARY_PACKED"},
    },
}  # fmt: skip


def message(at, turn):
    return {
        "role": ["user", "assistant"][turn % 2],
        "content": f"Lamp {at}, turn {turn}: “é” 🥊\n\"\\",
        "weight": [None, 0, 1][(at + turn) % 3],
        "tags": [None, [], ["a"], ["a", None, "b"]][at % 4],
    }


def row(at):
    return {
        "id": at,
        "text": None if at % 5 == 4 else f"the lamp of harbour {at} is lit " * (at % 3),
        "messages": None if at % 6 == 5 else [message(at, turn) for turn in range(at % 4)],
        "label": [True, False, None][at % 3],
        "context": None if at % 4 == 3 else {"score": at / 4, "source": None if at % 2 else "log"},
    }


def main():
    table = pa.Table.from_pylist([row(at) for at in range(20)], SCHEMA)
    for name, options in CASES.items():
        pq.write_table(table, HERE / f"{name}.parquet", write_statistics=False, store_schema=False, **options)
    with open(HERE / "expected.jsonl", "w") as file:
        for line in table.to_pylist():
            file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
    plain = {"write_statistics": False, "store_schema": False}
    pq.write_table(table.slice(0, 0), HERE / "empty.parquet", **plain)
    pq.write_table(pa.table({"id": [1, 2], "body": ["one", "two"], "lists": [["a"], ["b"]]}), HERE / "other.parquet", **plain)
    # One row with a long list of one text, and a page that is far larger than the file.
    bomb = pa.array([["a" * 90] * 40_000], pa.list_(pa.string()))
    pq.write_table(pa.table({"text": bomb}), HERE / "bomb.parquet", compression="zstd", **plain)
    pq.write_table(pa.table({"text": ["a" * 4_000_000]}), HERE / "page.parquet", compression="zstd", use_dictionary=False, **plain)
    pq.write_table(pa.table({"text": ["one", "two"]}), HERE / "brotli.parquet", compression="brotli", **plain)
    pq.write_table(pa.table({"text": pa.array([b"\xff", b"b"], pa.binary())}), HERE / "binary.parquet", **plain)


if __name__ == "__main__":
    main()
