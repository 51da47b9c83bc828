//! Tests that bound the disk space of a tape over time.

use std::fs;
use std::path::Path;

use archipelago_core::diloco::{
    FragmentId, LearnerId, MergeEntry, MergeRule, OuterSpec, Part, Serial, Version,
};

use super::*;

#[test]
fn rows_that_are_not_needed_have_a_bound() {
    let room = 2 * SEGMENT_BYTES / ROW_BYTES;
    let kept = |needed, gone, last| first_kept(needed, gone, last, 2 * SEGMENT_BYTES);
    assert_eq!(kept(90, None, 99), 0, "all of it has room");
    assert_eq!(kept(90, Some(40), 99), 41, "nobody can follow a merge without its updates");
    assert_eq!(kept(room + 450, None, room + 500), 501, "a run in which nothing is merged");
    assert_eq!(kept(room + 450, Some(530), room + 500), 531);
    assert_eq!(kept(300, Some(530), room + 500), 300, "what is needed stays, however much it is");
    assert_eq!(first_kept(90, None, 99, 0), 0, "the merges of the newest segment can be followed");
}

const RUN: RunId = RunId(7);
/// Number of updates in a merge, and size of each in bytes.
const UPDATES: usize = 3;
const BODY_BYTES: usize = 2_000;
/// Number of merges between two snapshots, and number of rows per merge.
const MERGES: u64 = 12;
const ROWS: u64 = 4;
const KEEP_BYTES: u64 = 256 << 10;
/// Maximum size of SQLite's write-ahead log, in bytes.
const LOG_BYTES: u64 = 4 << 20;

fn merge(round: Round) -> Entry {
    let part = |learner| Part {
        learner: LearnerId(learner),
        serial: Serial(round.0),
        base: Version(round.0),
        steps: 30,
        tokens: 100_000,
        weight: 123.456_789,
        checksum: u64::MAX - round.0,
        after_ms: Some(60_000),
        reach_steps: None,
        is_proven: false,
    };
    Entry::Merged(MergeEntry {
        round,
        fragment: FragmentId(0),
        base: Version(round.0),
        version: Version(round.0 + 1),
        rule: MergeRule::Radial,
        outer: OuterSpec::default(),
        radii: vec![0.123_456_789; 8],
        parts: (1..=UPDATES as u32).map(part).collect(),
        absent: 0.0,
        experts: Vec::new(),
        checksum: u64::MAX,
        digest: u64::MAX,
        norm: 0.987_654_321,
    })
}

fn bytes_below(dir: &Path) -> u64 {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    files.map(|path| fs::metadata(path).unwrap().len()).sum()
}

/// Waits until row `seq` is on disk.
fn await_row(writer: &Writer, seq: u64) {
    while writer.state().borrow().safe < seq {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Goal: over a week with a start each day and a snapshot each hour, disk use never exceeds the bound in `TAPE.md`.
/// Each start begins a new segment, so here a segment holds the merges of one day.
#[test]
fn a_week_stays_within_the_formula() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let merge_bytes = (UPDATES * (BODY_BYTES + 4)) as u64;
    let (between_bytes, segment_bytes) = (MERGES * merge_bytes, 24 * MERGES * merge_bytes);
    let bodies_max = KEEP_BYTES + 2 * between_bytes + segment_bytes;
    let rows_max = KEEP_BYTES + 2 * MERGES * ROWS * ROW_BYTES + LOG_BYTES;
    let (mut seq, mut before, mut written) = (0, 0, 0);
    for day in 0..7 {
        let writer = Writer::start(&store, RUN, day + 1, day == 0, KEEP_BYTES).unwrap();
        for _hour in 0..24 {
            let snapshot = seq;
            for _ in 0..MERGES {
                let round = Round(seq + 1);
                writer.bodies(round, (0..UPDATES).map(|_| Arc::new(vec![7; BODY_BYTES])).collect());
                for n in 0..ROWS {
                    seq += 1;
                    let leases = vec![];
                    let entry = if n == 0 {
                        merge(round)
                    } else {
                        Entry::Reported { learner: LearnerId(1), tokens: seq, leases }
                    };
                    writer.row(seq, seq, entry);
                }
                written += merge_bytes;
            }
            writer.forget(before);
            before = snapshot;
            // The writer deletes after each batch, and before it writes the next one.
            seq += 1;
            writer.row(seq, seq, Entry::Held { held: false });
            await_row(&writer, seq);
            let bodies = bytes_below(&dir.path().join("bodies"));
            assert!(bodies <= bodies_max, "day {day}: {bodies} bytes of updates, more than {bodies_max}");
            let rows = bytes_below(dir.path());
            assert!(rows <= rows_max, "day {day}: {rows} bytes of rows, more than {rows_max}");
        }
    }
    assert!(written > 3 * bodies_max, "{written} bytes were written, which is no more than may be kept");
    let rows = Rows::open_read_only(&store.tape_path(), RUN).unwrap();
    assert_eq!(rows.last(), seq);
    assert!(rows.first().unwrap() > Some(seq / 2), "rows are never forgotten");
}
