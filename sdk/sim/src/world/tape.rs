//! The run's tape on the simulated disk: transactions of rows in one file, bodies in others.
//!
//! A transaction is its length (32 bits), the checksum of its rows (64 bits), and its rows. One that cannot be read and
//! is the last was never finished, so nobody was told of what is in it: it is cut off. One that cannot be read and is
//! followed by one that can was synced before the other was begun: the tape is damaged, and the run does not go on.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Rng;
use super::file::{File, Loss};
use archipelago_core::diloco::syncer::{Recovery, Remake, senders};
use archipelago_core::diloco::tape::{Chain, Links, Place, Row, link};
use archipelago_core::diloco::{Entry, checksum};
use archipelago_core::wire::LearnerId;

/// Length and checksum of a transaction, in bytes.
const HEAD_BYTES: usize = 12;

/// What is damaged of what was synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Damage {
    /// A bit of the rows, but for the last transaction: damage to that looks as if it was never finished.
    RowBit,
    /// A page of the rows, with the same exception: there is nothing in it, or the page before it.
    RowPage,
    /// A bit of the bodies.
    BodyBit,
    /// A page of the bodies.
    BodyPage,
}

impl Damage {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::RowBit, Self::RowPage, Self::BodyBit, Self::BodyPage];
}

/// A row as it is stored.
#[derive(Serialize, Deserialize)]
struct Stored {
    seq: u64,
    at_ms: u64,
    data: Vec<u8>,
    place: Option<(u32, u64)>,
    chain: Chain,
}

/// The files of the tape.
#[derive(Clone, Debug, Default)]
pub(super) struct Tape {
    rows: File,
    /// Each process that appends begins one.
    bodies: Vec<File>,
    last: u64,
    chain: Chain,
    /// What was damaged, oldest first: the rows, or a segment of bodies, and how that began before.
    wounds: Vec<(Option<usize>, Vec<u8>)>,
    /// The rows that are being written speak of bodies, which have to be on the disk before them.
    waits_for_bodies: bool,
}

/// How far a tape could be followed.
pub(super) struct Followed {
    pub(super) last: u64,
    chain: Chain,
    end: usize,
}

impl Tape {
    /// The newest row that was written.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Appends `bodies` one after another; where they are.
    pub(super) fn append_bodies(&mut self, bodies: &[Arc<Vec<u8>>]) -> Place {
        let segment = self.open_bodies();
        let file = &mut self.bodies[segment];
        let place = Place { segment: segment as u32 + 1, offset: file.len() as u64 };
        file.append(&framed(bodies));
        place
    }

    /// Appends a part of `bodies`, by chance, of which nothing counts.
    pub(super) fn try_bodies(&mut self, bodies: &[Arc<Vec<u8>>], rng: &mut Rng) {
        let segment = self.open_bodies();
        let bytes = framed(bodies);
        self.bodies[segment].attempt(&bytes[..rng.below(bytes.len() as u64) as usize]);
    }

    /// The file that bodies are appended to.
    fn open_bodies(&mut self) -> usize {
        if self.bodies.is_empty() {
            self.bodies.push(File::default());
        }
        self.bodies.len() - 1
    }

    /// Nothing more is appended to this file of bodies: nobody knows what of it is on the disk.
    pub(super) fn abandon_bodies(&mut self) {
        self.bodies.push(File::default());
    }

    /// What is written next speaks of bodies, which have to be on the disk before it.
    pub(super) fn await_bodies(&mut self) {
        self.waits_for_bodies = true;
    }

    pub(super) fn append_rows(&mut self, rows: &[Row]) {
        let (bytes, chain) = self.transaction_of(rows);
        self.rows.append(&bytes);
        (self.chain, self.last) = (chain, rows.last().map_or(self.last, |row| row.seq));
    }

    /// Writes `rows`, or with chance a part of them, of which nothing counts. Nothing is on its way to the disk then.
    pub(super) fn try_rows(&mut self, rows: &[Row], part: Option<&mut Rng>) {
        let (bytes, _) = self.transaction_of(rows);
        let len = part.map_or(bytes.len(), |rng| rng.below(bytes.len() as u64) as usize);
        self.rows.attempt(&bytes[..len]);
        if std::mem::take(&mut self.waits_for_bodies) {
            self.sync_bodies();
        }
    }

    /// `rows` as they are stored, and their checksum.
    fn transaction_of(&self, rows: &[Row]) -> (Vec<u8>, Chain) {
        let mut chain = self.chain;
        let mut stored = Vec::with_capacity(rows.len());
        for row in rows {
            let data = rmp_serde::to_vec_named(&row.entry).expect("memory takes every byte");
            chain = link(&chain, row.seq, row.at_ms, &data, row.place);
            let place = row.place.map(|place| (place.segment, place.offset));
            stored.push(Stored { seq: row.seq, at_ms: row.at_ms, data, place, chain });
        }
        let payload = rmp_serde::to_vec(&stored).expect("memory takes every byte");
        let head = (payload.len() as u32).to_le_bytes();
        ([&head[..], &checksum(&payload).to_le_bytes(), &payload].concat(), chain)
    }

    /// Those that were appended last are on the disk; a file that was abandoned is synced no more.
    fn sync_bodies(&mut self) {
        self.bodies.last_mut().into_iter().for_each(File::sync);
    }

    /// What was written last is on the disk. Whether that took two turns of it, one for the bodies.
    pub(super) fn sync(&mut self) -> bool {
        let had_bodies = std::mem::take(&mut self.waits_for_bodies);
        if had_bodies {
            self.sync_bodies();
        }
        self.rows.sync();
        had_bodies
    }

    /// Whether bodies have to be synced before the rows that are being written.
    pub(super) fn waits_for_bodies(&self) -> bool {
        self.waits_for_bodies
    }

    /// The process died, and with `loss` the power failed too. Chance says how far it had come with what it wrote.
    pub(super) fn crash(&mut self, loss: Option<Loss>, rng: &mut Rng) {
        if std::mem::take(&mut self.waits_for_bodies) {
            if rng.chance(0.5) {
                self.rows.forget_unsynced();
            } else {
                self.sync_bodies();
            }
        }
        // What a process handed to its system is there after its death, as far as it came.
        let loss = loss.unwrap_or(if rng.chance(0.5) { Loss::Torn } else { Loss::Kept });
        self.bodies.iter_mut().for_each(|file| file.crash(loss, rng));
        self.rows.crash(loss, rng);
    }

    /// Damages what was synced, if there is anything of the kind; what was there is remembered.
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
        // A page may reach into the last transaction.
        file.restore(len, &before[len..]);
        self.wounds.push((segment, before[..len].to_vec()));
    }

    /// What was damaged is as it was.
    pub(super) fn mend(&mut self) {
        while let Some((segment, before)) = self.wounds.pop() {
            let file = segment.map_or(&mut self.rows, |segment| &mut self.bodies[segment]);
            file.restore(0, &before);
        }
    }

    /// Takes a run from where `recovery` stands, after row `seq`, to where the tape ends.
    ///
    /// # Errors
    /// A sentence: what is damaged, and where.
    pub(super) fn follow(&self, recovery: &mut Recovery, seq: u64) -> Result<Followed, String> {
        self.read(seq, |entry, place| {
            recovery.follow(entry, self.bodies_at(place)).map(drop).map_err(|error| error.to_string())
        })
    }

    /// Has `remakes` follow the rows after `seq`.
    ///
    /// # Errors
    /// As [`Self::follow`].
    pub(super) fn remake(&self, remakes: &mut [Remake], seq: u64) -> Result<(), String> {
        let followed = self.read(seq, |entry, place| {
            let mut remakes = remakes.iter_mut();
            let followed = remakes.try_for_each(|remake| remake.follow(entry, self.bodies_at(place)));
            followed.map_err(|error| error.to_string())
        });
        followed.map(drop)
    }

    /// Who has an update in the merges after row `seq`, up to row `until`.
    pub(super) fn senders(&self, seq: u64, until: u64) -> BTreeSet<LearnerId> {
        let (mut found, mut row) = (BTreeSet::new(), seq);
        // What cannot be read is found out when it is followed.
        let _ = self.read(seq, |entry, _| {
            row += 1;
            found.extend(senders(entry).filter(|_| row <= until));
            Ok(())
        });
        found
    }

    /// Hands the entries of the rows after `seq` to `take`, in order, with the place of what is kept with them.
    fn read(
        &self,
        seq: u64,
        mut take: impl FnMut(&Entry, Option<Place>) -> Result<(), String>,
    ) -> Result<Followed, String> {
        let mut links = Links::after(seq);
        let mut followed = Followed { last: 0, chain: Chain::default(), end: 0 };
        let bytes = self.rows.bytes();
        while followed.end < bytes.len() {
            let Some((rows, end)) = transaction(bytes, followed.end) else {
                let later = (followed.end + 1..bytes.len()).find(|&at| transaction(bytes, at).is_some());
                match later {
                    None => break,
                    Some(later) => {
                        let at = followed.end;
                        return Err(format!(
                            "the rows are damaged at byte {at}: what follows at byte {later} is whole"
                        ));
                    }
                }
            };
            for Stored { seq, at_ms, data, place, chain } in rows {
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

    /// A process goes on where `followed` ends, and begins a file of bodies of its own.
    pub(super) fn reopen(&mut self, followed: &Followed) {
        self.rows.cut(followed.end);
        (self.last, self.chain) = (followed.last, followed.chain);
        self.bodies.push(File::default());
    }

    /// As it would be found if everything stopped now and nothing that was not synced was there.
    pub(super) fn copy(&self) -> Self {
        let mut copy = self.clone();
        copy.rows.forget_unsynced();
        copy
    }

    /// Gives what is kept at `place`, one after the other.
    fn bodies_at(&self, place: Option<Place>) -> impl FnMut(usize) -> Result<Vec<u8>, String> + '_ {
        let mut place = place;
        move |len| {
            let Place { segment, offset } = place.as_mut().ok_or("the row does not say where it is")?;
            let file = (*segment as usize).checked_sub(1).and_then(|n| self.bodies.get(n));
            let bytes = file.map(File::bytes).ok_or_else(|| format!("there is no segment {segment}"))?;
            let from = *offset as usize;
            let there = bytes.get(from..from + 4).ok_or("the segment ends before it")?;
            if there != (len as u32).to_le_bytes() {
                return Err(format!("segment {segment} at byte {from}: a body of another length"));
            }
            let body = bytes.get(from + 4..from + 4 + len).ok_or("the segment ends in it")?;
            *offset += 4 + len as u64;
            Ok(body.to_vec())
        }
    }
}

/// Bodies as they are stored, each after its length.
fn framed(bodies: &[Arc<Vec<u8>>]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(bodies.iter().map(|body| 4 + body.len()).sum());
    for body in bodies {
        bytes.extend((body.len() as u32).to_le_bytes());
        bytes.extend_from_slice(body);
    }
    bytes
}

/// Where the last transaction that is whole begins.
fn last_begins(bytes: &[u8]) -> usize {
    let (mut last, mut at) = (0, 0);
    while let Some((_, end)) = transaction(bytes, at) {
        (last, at) = (at, end);
    }
    last
}

/// The transaction that begins at byte `at`, and where it ends; `None` if there is none that is whole.
fn transaction(bytes: &[u8], at: usize) -> Option<(Vec<Stored>, usize)> {
    let head = bytes.get(at..at + HEAD_BYTES)?;
    let len = u32::from_le_bytes(head[..4].try_into().ok()?) as usize;
    let end = (at + HEAD_BYTES).checked_add(len)?;
    let payload = bytes.get(at + HEAD_BYTES..end)?;
    if len == 0 || checksum(payload).to_le_bytes() != head[4..] {
        return None;
    }
    Some((rmp_serde::from_slice(payload).ok()?, end))
}
