//! The run's tape on the simulated disk: one file with transactions of rows, and segments of bodies.
//!
//! A transaction consists of its length (32 bits), the checksum of its rows (64 bits), and its rows. If only the last
//! transaction is unreadable, its write was interrupted, and no message about its decisions was sent; it is cut off. If
//! a readable transaction follows an unreadable one, synced data is damaged, and the run is not continued.

use std::collections::BTreeSet;
use std::sync::Arc;

use archipelago_core::diloco::syncer::{Recovery, Rollback, senders};
use archipelago_core::diloco::tape::{Chain, Links, Place, Row, link};
use archipelago_core::diloco::{Entry, checksum};
use archipelago_core::wire::LearnerId;
use serde::{Deserialize, Serialize};

use super::Rng;
use super::disk::{File, Loss};

/// Size of a transaction's length and checksum, in bytes.
const HEAD_BYTES: usize = 12;

/// Kind of damage to synced data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Damage {
    /// A bit of the rows is flipped. The last transaction is spared, because damage to it looks like an interrupted
    /// write.
    RowBit,
    /// A page of the rows, without the last transaction, becomes zeros or a copy of the preceding page.
    RowPage,
    /// A bit of the bodies is flipped.
    BodyBit,
    /// A page of the bodies becomes zeros or a copy of the preceding page.
    BodyPage,
}

impl Damage {
    /// All kinds of damage.
    pub const ALL: [Self; 4] = [Self::RowBit, Self::RowPage, Self::BodyBit, Self::BodyPage];
}

/// Row as it is stored.
#[derive(Serialize, Deserialize)]
struct TapeRow {
    seq: u64,
    at_ms: u64,
    data: Vec<u8>,
    place: Option<(u32, u64)>,
    chain: Chain,
}

/// Files of the tape.
#[derive(Clone, Debug, Default)]
pub(super) struct TapeFiles {
    rows: File,
    /// Segments of bodies. Each process begins a new one.
    bodies: Vec<File>,
    last: u64,
    chain: Chain,
    /// Original content of damaged files, oldest first: `None` is the rows, `Some` the index of a segment.
    wounds: Vec<(Option<usize>, Vec<u8>)>,
    /// Whether the unsynced rows refer to bodies, which must be synced first.
    waits_for_bodies: bool,
}

/// End of the readable rows.
pub(super) struct TapeEnd {
    pub(super) last: u64,
    chain: Chain,
    end: usize,
}

impl TapeFiles {
    /// Returns the number of the newest row.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Appends `bodies` one after another. Returns their location.
    pub(super) fn append_bodies(&mut self, bodies: &[Arc<Vec<u8>>]) -> Place {
        let segment = self.open_bodies();
        let file = &mut self.bodies[segment];
        let place = Place { segment: segment as u32 + 1, offset: file.len() as u64 };
        file.append(&framed(bodies));
        place
    }

    /// Writes a random part of `bodies` without appending it, as a failed write may.
    pub(super) fn try_bodies(&mut self, bodies: &[Arc<Vec<u8>>], rng: &mut Rng) {
        let segment = self.open_bodies();
        let bytes = framed(bodies);
        self.bodies[segment].attempt(&bytes[..rng.below(bytes.len() as u64) as usize]);
    }

    /// Returns the index of the segment to which bodies are appended.
    fn open_bodies(&mut self) -> usize {
        if self.bodies.is_empty() {
            self.bodies.push(File::default());
        }
        self.bodies.len() - 1
    }

    /// Closes the current segment of bodies after a failed sync, because its content on the disk is unknown.
    pub(super) fn abandon_bodies(&mut self) {
        self.bodies.push(File::default());
    }

    /// Records that the next rows refer to bodies, which must be synced first.
    pub(super) fn await_bodies(&mut self) {
        self.waits_for_bodies = true;
    }

    pub(super) fn append_rows(&mut self, rows: &[Row]) {
        let (bytes, chain) = self.transaction_of(rows);
        self.rows.append(&bytes);
        (self.chain, self.last) = (chain, rows.last().map_or(self.last, |row| row.seq));
    }

    /// Writes `rows` without appending them, as a failed write may. With `part`, writes only a random part. No other
    /// write may be in progress.
    pub(super) fn try_rows(&mut self, rows: &[Row], part: Option<&mut Rng>) {
        let (bytes, _) = self.transaction_of(rows);
        let len = part.map_or(bytes.len(), |rng| rng.below(bytes.len() as u64) as usize);
        self.rows.attempt(&bytes[..len]);
        if std::mem::take(&mut self.waits_for_bodies) {
            self.sync_bodies();
        }
    }

    /// Returns `rows` as a transaction, and the hash chain's value after it.
    fn transaction_of(&self, rows: &[Row]) -> (Vec<u8>, Chain) {
        let mut chain = self.chain;
        let mut stored = Vec::with_capacity(rows.len());
        for row in rows {
            let data = rmp_serde::to_vec_named(&row.entry).expect("memory takes every byte");
            chain = link(&chain, row.seq, row.at_ms, &data, row.place);
            let place = row.place.map(|place| (place.segment, place.offset));
            stored.push(TapeRow { seq: row.seq, at_ms: row.at_ms, data, place, chain });
        }
        let payload = rmp_serde::to_vec(&stored).expect("memory takes every byte");
        let head = (payload.len() as u32).to_le_bytes();
        ([&head[..], &checksum(&payload).to_le_bytes(), &payload].concat(), chain)
    }

    /// Syncs the current segment of bodies. Abandoned segments are never synced.
    fn sync_bodies(&mut self) {
        self.bodies.last_mut().into_iter().for_each(File::sync);
    }

    /// Syncs the tape. Returns true if bodies were synced too.
    pub(super) fn sync(&mut self) -> bool {
        let had_bodies = std::mem::take(&mut self.waits_for_bodies);
        if had_bodies {
            self.sync_bodies();
        }
        self.rows.sync();
        had_bodies
    }

    /// Returns true if bodies must be synced before the unsynced rows.
    pub(super) fn waits_for_bodies(&self) -> bool {
        self.waits_for_bodies
    }

    /// Applies a crash of the process and, with `loss`, a power failure. How far the current write came is random.
    pub(super) fn crash(&mut self, loss: Option<Loss>, rng: &mut Rng) {
        if std::mem::take(&mut self.waits_for_bodies) {
            if rng.chance(0.5) {
                self.rows.forget_unsynced();
            } else {
                self.sync_bodies();
            }
        }
        // Without a power failure, data that was handed to the operating system is kept.
        let loss = loss.unwrap_or(if rng.chance(0.5) { Loss::Torn } else { Loss::Kept });
        self.bodies.iter_mut().for_each(|file| file.crash(loss, rng));
        self.rows.crash(loss, rng);
    }

    /// Damages synced data, if there is any of this kind. [`Self::mend`] repairs it.
    pub(super) fn damage(&mut self, damage: Damage, rng: &mut Rng) {
        let segment = match damage {
            Damage::RowBit | Damage::RowPage => None,
            Damage::BodyBit | Damage::BodyPage => match self.bodies.iter().rposition(|file| file.len() > 0) {
                Some(segment) => Some(segment),
                None => return,
            },
        };
        let file = segment.map_or(&mut self.rows, |segment| &mut self.bodies[segment]);
        let len = if segment.is_some() { file.len() } else { last_begins(file.bytes()) };
        if len == 0 {
            return;
        }
        let (before, at) = (file.bytes().to_vec(), rng.below(len as u64) as usize);
        match damage {
            Damage::RowBit | Damage::BodyBit => file.flip(at, rng),
            Damage::RowPage | Damage::BodyPage => file.overwrite(at, rng),
        }
        // A page may extend into the last transaction, which is restored.
        file.restore(len, &before[len..]);
        self.wounds.push((segment, before[..len].to_vec()));
    }

    /// Repairs all damage.
    pub(super) fn mend(&mut self) {
        while let Some((segment, before)) = self.wounds.pop() {
            let file = segment.map_or(&mut self.rows, |segment| &mut self.bodies[segment]);
            file.restore(0, &before);
        }
    }

    /// Replays the rows after `seq` in `recovery`, to the end of the tape.
    ///
    /// # Errors
    /// A sentence with the damage and its location.
    pub(super) fn follow(&self, recovery: &mut Recovery, seq: u64) -> Result<TapeEnd, String> {
        self.read(seq, |entry, place| {
            recovery.follow(entry, self.bodies_at(place)).map(drop).map_err(|error| error.to_string())
        })
    }

    /// Replays the rows after `seq` in `rollbacks`.
    ///
    /// # Errors
    /// Those of [`Self::follow`].
    pub(super) fn rollback(&self, rollbacks: &mut [Rollback], seq: u64) -> Result<(), String> {
        let followed = self.read(seq, |entry, place| {
            let mut rollbacks = rollbacks.iter_mut();
            let followed = rollbacks.try_for_each(|rollback| rollback.follow(entry, self.bodies_at(place)));
            followed.map_err(|error| error.to_string())
        });
        followed.map(drop)
    }

    /// Returns the learners whose updates were merged after row `seq`, up to row `until`.
    pub(super) fn senders(&self, seq: u64, until: u64) -> BTreeSet<LearnerId> {
        let (mut found, mut row) = (BTreeSet::new(), seq);
        // An unreadable row is reported when the tape is replayed.
        let _ = self.read(seq, |entry, _| {
            row += 1;
            found.extend(senders(entry).filter(|_| row <= until));
            Ok(())
        });
        found
    }

    /// Calls `take` with the entry of each row after `seq`, in order, and the location of its bodies.
    fn read(
        &self,
        seq: u64,
        mut take: impl FnMut(&Entry, Option<Place>) -> Result<(), String>,
    ) -> Result<TapeEnd, String> {
        let mut links = Links::after(seq);
        let mut followed = TapeEnd { last: 0, chain: Chain::default(), end: 0 };
        let bytes = self.rows.bytes();
        while followed.end < bytes.len() {
            let Some((rows, end)) = transaction(bytes, followed.end) else {
                let later = (followed.end + 1..bytes.len()).find(|&at| transaction(bytes, at).is_some());
                match later {
                    None => break,
                    Some(later) => {
                        let at = followed.end;
                        return Err(format!(
                            "the rows are damaged at byte {at}: a complete row follows at byte {later}"
                        ));
                    }
                }
            };
            for TapeRow { seq, at_ms, data, place, chain } in rows {
                let place = place.map(|(segment, offset)| Place { segment, offset });
                let is_wanted = links.next(seq, at_ms, &data, place, &chain);
                if is_wanted.map_err(|damage| damage.to_string())? {
                    let entry =
                        rmp_serde::from_slice(&data).map_err(|error| format!("row {seq}: {error}"))?;
                    take(&entry, place).map_err(|why| format!("row {seq}: {why}"))?;
                }
                (followed.last, followed.chain) = (seq, chain);
            }
            followed.end = end;
        }
        links.end().map_err(|damage| damage.to_string())?;
        Ok(followed)
    }

    /// Reopens the tape for writing after `followed`, the end of the readable rows, with a new segment of bodies.
    pub(super) fn reopen(&mut self, followed: &TapeEnd) {
        self.rows.cut(followed.end);
        (self.last, self.chain) = (followed.last, followed.chain);
        self.bodies.push(File::default());
    }

    /// Returns a copy of the tape without unsynced data.
    pub(super) fn copy(&self) -> Self {
        let mut copy = self.clone();
        copy.rows.forget_unsynced();
        copy
    }

    /// Returns a function that reads the bodies at `place`, one after the other, given their lengths.
    fn bodies_at(&self, place: Option<Place>) -> impl FnMut(usize) -> Result<Vec<u8>, String> + '_ {
        let mut place = place;
        move |len| {
            let Place { segment, offset } =
                place.as_mut().ok_or("the row does not name the place of its bodies")?;
            let file = (*segment as usize).checked_sub(1).and_then(|n| self.bodies.get(n));
            let bytes = file.map(File::bytes).ok_or_else(|| format!("there is no segment {segment}"))?;
            let from = *offset as usize;
            let there = bytes.get(from..from + 4).ok_or("the segment ends before it")?;
            if there != (len as u32).to_le_bytes() {
                return Err(format!("segment {segment} at byte {from}: a body with another length"));
            }
            let body = bytes.get(from + 4..from + 4 + len).ok_or("the segment ends in it")?;
            *offset += 4 + len as u64;
            Ok(body.to_vec())
        }
    }
}

/// Returns bodies as they are stored, each after its length.
fn framed(bodies: &[Arc<Vec<u8>>]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(bodies.iter().map(|body| 4 + body.len()).sum());
    for body in bodies {
        bytes.extend((body.len() as u32).to_le_bytes());
        bytes.extend_from_slice(body);
    }
    bytes
}

/// Returns the offset of the last intact transaction.
fn last_begins(bytes: &[u8]) -> usize {
    let (mut last, mut at) = (0, 0);
    while let Some((_, end)) = transaction(bytes, at) {
        (last, at) = (at, end);
    }
    last
}

/// Returns the transaction at offset `at` and its end, or `None` if it is not intact.
fn transaction(bytes: &[u8], at: usize) -> Option<(Vec<TapeRow>, usize)> {
    let head = bytes.get(at..at + HEAD_BYTES)?;
    let len = u32::from_le_bytes(head[..4].try_into().ok()?) as usize;
    let end = (at + HEAD_BYTES).checked_add(len)?;
    let payload = bytes.get(at + HEAD_BYTES..end)?;
    if len == 0 || checksum(payload).to_le_bytes() != head[4..] {
        return None;
    }
    Some((rmp_serde::from_slice(payload).ok()?, end))
}
