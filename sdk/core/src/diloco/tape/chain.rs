//! Chained checksums of rows.

use sha2::{Digest, Sha256};

use super::Place;

/// Checksum of a row and of all before it: the first half of a SHA-256.
pub type Chain = [u8; 16];

/// Returns the checksum of a row that follows a row with checksum `before` (zeros for the first). `data` is its entry
/// in stored form.
#[must_use]
pub fn link(before: &Chain, seq: u64, at_ms: u64, data: &[u8], place: Option<Place>) -> Chain {
    let mut sha = Sha256::new();
    sha.update(before);
    sha.update(seq.to_le_bytes());
    sha.update(at_ms.to_le_bytes());
    if let Some(Place { segment, offset }) = place {
        sha.update(segment.to_le_bytes());
        sha.update(offset.to_le_bytes());
    }
    sha.update(data);
    let digest = sha.finalize();
    let mut chain = Chain::default();
    chain.copy_from_slice(&digest[..size_of::<Chain>()]);
    chain
}

/// A row that differs from what was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("row {seq} is damaged: {why}")]
pub struct RowDamage {
    /// Number of the row.
    pub seq: u64,
    /// Description of the damage.
    pub why: String,
}

/// Reads rows in order, and detects changed, lost or misplaced ones.
#[derive(Clone, Debug)]
pub struct Links {
    /// Row after which reading begins.
    after: u64,
    /// Number and checksum of the previous row.
    before: Option<(u64, Chain)>,
}

impl Links {
    /// Creates a reader of the rows after `seq`. Unless that is 0, row `seq` must be read first, as the start of the
    /// chain.
    #[must_use]
    pub fn after(seq: u64) -> Self {
        Self { after: seq, before: (seq == 0).then(|| (0, Chain::default())) }
    }

    /// Takes in the next row, which is stored with the checksum `chain`. Returns true if it comes after the start.
    ///
    /// # Errors
    /// [`RowDamage`]: the row was changed, or rows before it are missing.
    pub fn next(
        &mut self,
        seq: u64,
        at_ms: u64,
        data: &[u8],
        place: Option<Place>,
        chain: &Chain,
    ) -> Result<bool, RowDamage> {
        let damaged = |why: String| Err(RowDamage { seq, why });
        let is_wanted = match self.before {
            Some((last, _)) if seq != last + 1 => {
                return damaged(format!("the row before it is {last}, and those between are missing"));
            }
            Some((_, before)) if link(&before, seq, at_ms, data, place) != *chain => {
                return damaged("it does not match its checksum".to_owned());
            }
            Some(_) => seq > self.after,
            // The oldest remaining row has no predecessor to check against, and was replayed already.
            None if seq > self.after => {
                return damaged(format!("those between it and row {} are missing", self.after));
            }
            None => false,
        };
        self.before = Some((seq, *chain));
        Ok(is_wanted)
    }

    /// Checks that the tape did not end too early, once all rows were read.
    ///
    /// # Errors
    /// [`RowDamage`]: the tape ends before the row at which reading was to begin.
    pub fn end(&self) -> Result<(), RowDamage> {
        if self.before.is_some_and(|(last, _)| last >= self.after) {
            return Ok(());
        }
        Err(RowDamage { seq: self.after, why: "it is missing, with all rows after it".to_owned() })
    }
}
