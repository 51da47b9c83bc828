//! Integrity check of SQLite's write-ahead log, before SQLite opens it.
//!
//! SQLite treats everything after a damaged page of the log as unfinished, and drops it silently. But each transaction
//! is on disk before the next one begins. So an intact transaction after a damaged page proves that this page had been
//! on disk. Decisions that learners have received are then missing.
//!
//! The log has a header of 32 bytes and then frames. Each frame has a header of 24 bytes and one page. The checksum of
//! a frame covers all frames before it, so a frame that follows another can be recognised even after a damaged one. See
//! [SQLite's page on the format](https://www.sqlite.org/fileformat2.html#walformat).

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// First word of the log. If its lowest bit is set, checksums use big-endian words.
const MAGIC: u32 = 0x377f_0682;
/// Size of the log's header, in bytes.
const HEADER_BYTES: usize = 32;
/// Size of a frame's header, in bytes.
const FRAME_BYTES: usize = 24;
/// Default page size of SQLite, in bytes.
const PAGE_BYTES: usize = 4_096;

/// Returns the path of the write-ahead log of the SQLite file `rows`.
pub(super) fn path(rows: &Path) -> PathBuf {
    let mut name = rows.file_name().unwrap_or_default().to_owned();
    name.push("-wal");
    rows.with_file_name(name)
}

/// Returns the offset of the first damaged frame, or of a damaged header, in the log of the SQLite file `rows`. Only
/// damage that later frames prove is found.
///
/// # Errors
/// The system's error.
pub(super) fn damage(rows: &Path) -> io::Result<Option<u64>> {
    let look = || match fs::read(path(rows)) {
        Ok(log) => Ok(damaged_at(&log).map(|at| at as u64)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    };
    // A writer may restart the log during a read, so damage is reported only if two reads find it.
    let found = look()?;
    Ok(if found.is_some() { look()?.filter(|at| Some(*at) == found) } else { None })
}

fn damaged_at(log: &[u8]) -> Option<usize> {
    let header: &[u8; HEADER_BYTES] = log.first_chunk()?;
    if !is_header(header) {
        let salts = *log.get(HEADER_BYTES + 8..)?.first_chunk()?;
        let log = Log {
            frames: &log[HEADER_BYTES..],
            page: PAGE_BYTES,
            salts,
            is_big: u16::from_ne_bytes([0, 1]) == 1,
        };
        // If SQLite was restarting the log, the frames are those of the previous log.
        return (belongs(header, salts) && log.has_next_transaction(0)).then_some(0);
    }
    let page = word(&header[8..]) as usize;
    let salts = *header[16..].first_chunk()?;
    let mut sum = sums(&header[24..]);
    let log = Log { frames: &log[HEADER_BYTES..], page, salts, is_big: word(header) & 1 == 1 };
    let mut whole = 0;
    while let Some(frame) = log.frame(whole).filter(|frame| log.follows(sum, frame)) {
        (sum, whole) = (frame.sums(), whole + 1);
    }
    // A page of the disk overlaps at most two frames, so one or two frames may be damaged.
    (log.has_next_transaction(whole + 1) || log.has_next_transaction(whole + 2))
        .then(|| HEADER_BYTES + whole * log.frame_len())
}

/// Frames of a write-ahead log.
struct Log<'a> {
    frames: &'a [u8],
    /// Page size, in bytes.
    page: usize,
    /// Salts of the log. Frames with other salts are older, and already copied to the SQLite file.
    salts: [u8; 8],
    is_big: bool,
}

#[derive(Clone, Copy)]
struct Frame<'a> {
    header: &'a [u8; FRAME_BYTES],
    page: &'a [u8],
}

impl Frame<'_> {
    /// Returns true if the frame ends a transaction.
    fn is_last(&self) -> bool {
        word(&self.header[4..]) != 0
    }

    fn sums(&self) -> [u32; 2] {
        sums(&self.header[16..])
    }
}

impl Log<'_> {
    fn frame_len(&self) -> usize {
        FRAME_BYTES + self.page
    }

    /// Returns frame `n` if it exists and has the salts of this log.
    fn frame(&self, n: usize) -> Option<Frame<'_>> {
        let bytes = self.frames.get(n.checked_mul(self.frame_len())?..)?.get(..self.frame_len())?;
        let (header, page) = bytes.split_first_chunk()?;
        (header[8..16] == self.salts).then_some(Frame { header, page })
    }

    /// Returns true if `frame` directly follows a frame with the checksum `sum`.
    fn follows(&self, sum: [u32; 2], frame: &Frame<'_>) -> bool {
        let sum = add(self.is_big, add(self.is_big, sum, &frame.header[..8]), frame.page);
        sum == frame.sums()
    }

    /// Returns true if the frames from `first` on are intact, complete a transaction, and begin another one.
    fn has_next_transaction(&self, first: usize) -> bool {
        let Some(mut before) = self.frame(first) else { return false };
        let mut has_ended = before.is_last();
        for n in first + 1.. {
            let Some(frame) = self.frame(n).filter(|frame| self.follows(before.sums(), frame)) else {
                return false;
            };
            if has_ended {
                return true;
            }
            (has_ended, before) = (frame.is_last(), frame);
        }
        false
    }
}

/// Returns true if the header is intact.
fn is_header(header: &[u8; HEADER_BYTES]) -> bool {
    let magic = word(header);
    magic & !1 == MAGIC && add(magic & 1 == 1, [0; 2], &header[..24]) == sums(&header[24..])
}

/// Returns true if a damaged header is that of frames with these salts.
fn belongs(header: &[u8; HEADER_BYTES], salts: [u8; 8]) -> bool {
    let mut mended = *header;
    mended[16..24].copy_from_slice(&salts);
    header[16..24] == salts || is_header(&mended)
}

/// Returns the checksum `sum` extended over `bytes`.
fn add(is_big: bool, [mut a, mut b]: [u32; 2], bytes: &[u8]) -> [u32; 2] {
    let word = |bytes: [u8; 4]| if is_big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) };
    for [p, q, r, s, t, u, v, w] in bytes.as_chunks().0 {
        a = a.wrapping_add(word([*p, *q, *r, *s])).wrapping_add(b);
        b = b.wrapping_add(word([*t, *u, *v, *w])).wrapping_add(a);
    }
    [a, b]
}

/// Returns the big-endian word at the start of `bytes`; 0 if there are fewer than four bytes.
fn word(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

fn sums(bytes: &[u8]) -> [u32; 2] {
    [word(bytes), word(&bytes[4..])]
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;

    const FRAME: usize = FRAME_BYTES + PAGE_BYTES;

    /// Returns the log of a file after `transactions` transactions. Before them, the log was restarted `begun_anew`
    /// times.
    fn log(begun_anew: u32, transactions: u32) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let rows = dir.path().join("rows.sqlite");
        let db = Connection::open(&rows).unwrap();
        db.pragma_update(None, "journal_mode", "WAL").unwrap();
        db.execute_batch("CREATE TABLE rows (text TEXT); CREATE INDEX by_text ON rows (text)").unwrap();
        let write = |count: u32| {
            for n in 0..count {
                db.execute("INSERT INTO rows VALUES (?1)", [format!("{n:0900}")]).unwrap();
            }
        };
        for _ in 0..begun_anew {
            write(40);
            db.query_row("PRAGMA wal_checkpoint(FULL)", [], |_| Ok(())).unwrap();
        }
        write(transactions);
        fs::read(path(&rows)).unwrap()
    }

    /// Returns the number of frames in the current log, and the number of frames before its last two transactions.
    fn frames(log: &[u8]) -> (usize, usize) {
        let all: Vec<&[u8]> = log[HEADER_BYTES..].chunks_exact(FRAME).collect();
        let count = all.iter().take_while(|frame| frame[8..16] == log[16..24]).count();
        let ends = (0..count).rev().filter(|&n| word(&all[n][4..]) != 0);
        (count, ends.into_iter().nth(2).unwrap() + 1)
    }

    /// Goal: a changed byte is found and located by its frame if two whole transactions follow it.
    #[test]
    fn a_changed_byte_is_found() {
        for begun_anew in [0, 1, 2] {
            let whole = log(begun_anew, 12);
            assert_eq!(damaged_at(&whole), None);
            let changed = |at: usize| {
                let mut log = whole.clone();
                log[at] ^= 0x10;
                damaged_at(&log)
            };
            for at in 0..HEADER_BYTES {
                assert_eq!(changed(at), Some(0), "byte {at} of the header");
            }
            let (_, sure) = frames(&whole);
            assert!(sure > 20, "{sure}");
            for n in 0..sure {
                let begin = HEADER_BYTES + n * FRAME;
                for at in [0, 5, 9, 14, 16, 23, 24, 1_000, FRAME - 1] {
                    assert_eq!(changed(begin + at), Some(begin), "byte {at} of frame {n}");
                }
            }
        }
    }

    /// Goal: unfinished writes, and remains of an earlier log, are not taken for damage.
    #[test]
    fn a_log_without_an_end_is_not_damaged() {
        for begun_anew in [0, 1] {
            let whole = log(begun_anew, 8);
            for len in (0..whole.len()).step_by(501) {
                assert_eq!(damaged_at(&whole[..len]), None, "{len} bytes");
            }
            let (count, _) = frames(&whole);
            for lost in 1..=2 {
                let mut log = whole.clone();
                let begin = HEADER_BYTES + (count - lost) * FRAME;
                log[begin..begin + FRAME].fill(0);
                assert_eq!(damaged_at(&log), None, "the last frame but {lost} was not written");
            }
        }
        let mut left = log(1, 8);
        let (count, _) = frames(&left);
        assert!(left.len() > HEADER_BYTES + (count + 3) * FRAME, "nothing is left of the log before");
        left[HEADER_BYTES + count * FRAME + 100] ^= 1;
        assert_eq!(damaged_at(&left), None);
        assert_eq!(damage(Path::new("not/there.sqlite")).unwrap(), None);
    }
}
