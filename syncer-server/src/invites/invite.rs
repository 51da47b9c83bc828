//! Personal invites: each admits a limited number of new keys until it expires or is revoked.

use archipelago_core::wire::{Fingerprint, Invite};
use rusqlite::{OptionalExtension, TransactionBehavior, params};
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::{InviteStore, broken, check_note};
use crate::errors::ServerError;
use crate::store::{random_hex, short};

/// Maximum number of keys that one invite may admit.
pub const USES_MAX: u32 = 100_000;

/// Terms of an invite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InviteTerms {
    /// Number of new keys that the invite may admit, 1 to [`USES_MAX`].
    pub uses: u32,
    /// Lifetime in milliseconds from now; `None` if unlimited.
    pub lasts_ms: Option<u64>,
    /// The owner's note, at most [`super::NOTE_BYTES_MAX`] bytes.
    pub note: String,
}

/// A new invite. No other answer contains its text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct MadeInvite {
    /// Id of the invite in lists.
    pub id: String,
    /// The invite's text, which learners present.
    pub invite: String,
}

/// An invite without its text, as its owner sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct InviteView {
    /// Id of the invite.
    pub id: String,
    /// The owner's note.
    pub note: String,
    /// Number of new keys that it may admit.
    pub uses: u32,
    /// Number of keys that the invite has admitted.
    pub used: u32,
    /// Time of creation, in milliseconds since 1970.
    #[cfg_attr(test, ts(type = "number"))]
    pub made_ms: u64,
    /// Time of expiry, in milliseconds since 1970; `null` if unlimited.
    #[cfg_attr(test, ts(type = "number | null"))]
    pub expires_ms: Option<u64>,
    /// Time of revocation, in milliseconds since 1970; `null` if the invite is not revoked.
    #[cfg_attr(test, ts(type = "number | null"))]
    pub revoked_ms: Option<u64>,
}

/// Reasons why an invite admits no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InviteFault {
    /// No invite was shown.
    #[error(
        "this run asks for an invite: open the whole link that you were given, including the part after #"
    )]
    Missing,
    /// No invite has that text.
    #[error(
        "this invite is not valid for this run: copy the whole link again, or ask the run's owner for another one"
    )]
    Unknown,
    /// The invite has admitted its maximum number of keys.
    #[error("this invite is used up: ask the run's owner for another one")]
    UsedUp,
    /// The invite has expired.
    #[error("this invite has expired: ask the run's owner for another one")]
    Over,
    /// The owner revoked the invite.
    #[error("the run's owner has revoked this invite: ask for another one")]
    Revoked,
}

impl InviteStore {
    /// Creates an invite.
    ///
    /// # Errors
    /// - `Config`: the terms are out of range.
    /// - `Disk`, `System`: the invite cannot be created or stored.
    pub fn invite(&self, terms: &InviteTerms, now_ms: u64) -> Result<MadeInvite, ServerError> {
        check_note(&terms.note)?;
        if !(1..=USES_MAX).contains(&terms.uses) {
            let why = format!("an invite for {} uses is out of range: give 1 to {USES_MAX} uses", terms.uses);
            return Err(ServerError::Config { why });
        }
        let (id, secret) = (short()?, random_hex()?);
        let text = format!("{id}-{secret}");
        let expires_ms = terms.lasts_ms.map(|lasts_ms| now_ms.saturating_add(lasts_ms));
        let insert = "INSERT INTO invites VALUES (?1, ?2, ?3, ?4, ?5, ?6, NULL)";
        let row = params![
            id,
            hash(&text),
            terms.note,
            terms.uses,
            now_ms as i64,
            expires_ms.map(|at_ms| i64::try_from(at_ms).unwrap_or(i64::MAX))
        ];
        self.lock().execute(insert, row).map_err(|error| broken(&self.path, error))?;
        Ok(MadeInvite { id, invite: text })
    }

    /// Returns all invites, newest first.
    ///
    /// # Errors
    /// `Disk`, `DirCorrupt`: the file cannot be read.
    pub fn invites(&self) -> Result<Vec<InviteView>, ServerError> {
        let read = |row: &rusqlite::Row<'_>| {
            let time =
                |column| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(column)?.map(|ms| ms as u64));
            Ok(InviteView {
                id: row.get(0)?,
                note: row.get(1)?,
                uses: row.get(2)?,
                used: row.get(6)?,
                made_ms: row.get::<_, i64>(3)? as u64,
                expires_ms: time(4)?,
                revoked_ms: time(5)?,
            })
        };
        self.list(
            "SELECT id, note, uses, made_ms, expires_ms, revoked_ms,
                 (SELECT count(*) FROM guests WHERE guests.invite = invites.id)
             FROM invites ORDER BY made_ms DESC, id",
            read,
        )
    }

    /// Revokes an invite, so that it admits no more keys. Learners that it admitted stay. Returns whether it was valid
    /// until now, or `None` if there is no such invite.
    ///
    /// # Errors
    /// `Disk`, `DirCorrupt`: the file cannot be changed.
    pub fn revoke(&self, id: &str, now_ms: u64) -> Result<Option<bool>, ServerError> {
        let wrong = |error| broken(&self.path, error);
        let db = self.lock();
        let update = "UPDATE invites SET revoked_ms = ?2 WHERE id = ?1 AND revoked_ms IS NULL";
        if db.execute(update, params![id, now_ms as i64]).map_err(wrong)? > 0 {
            return Ok(Some(true));
        }
        let there = db.query_row("SELECT 1 FROM invites WHERE id = ?1", [id], |_| Ok(())).optional();
        Ok(there.map_err(wrong)?.map(|()| false))
    }

    /// Admits the key with this fingerprint. A key that an invite admitted before needs no invite; any other key takes
    /// one use of `shown`. The use is on disk when this function returns, so before any peer learns of the admission. A
    /// crash after that costs no second use, because the key is then known.
    ///
    /// # Errors
    /// `Disk`, `DirCorrupt`: the file cannot be changed. The inner error is the reason for a refusal.
    pub fn admit(
        &self,
        fingerprint: Fingerprint,
        shown: Option<&Invite>,
        now_ms: u64,
    ) -> Result<Result<(), InviteFault>, ServerError> {
        let wrong = |error| broken(&self.path, error);
        let mut db = self.lock();
        let change = db.transaction_with_behavior(TransactionBehavior::Immediate).map_err(wrong)?;
        let known = "SELECT 1 FROM guests WHERE fingerprint = ?1";
        if change.query_row(known, [fingerprint.0], |_| Ok(())).optional().map_err(wrong)?.is_some() {
            return Ok(Ok(()));
        }
        let Some(shown) = shown else { return Ok(Err(InviteFault::Missing)) };
        let query = "SELECT id, uses, expires_ms, revoked_ms IS NOT NULL,
                 (SELECT count(*) FROM guests WHERE guests.invite = invites.id)
             FROM invites WHERE hash = ?1";
        let read = |row: &rusqlite::Row<'_>| {
            let (id, uses, used): (String, u32, u32) = (row.get(0)?, row.get(1)?, row.get(4)?);
            Ok((id, uses, used, row.get::<_, Option<i64>>(2)?, row.get::<_, bool>(3)?))
        };
        let found = change.query_row(query, [hash(shown.expose())], read).optional().map_err(wrong)?;
        let Some((id, uses, used, expires_ms, revoked)) = found else { return Ok(Err(InviteFault::Unknown)) };
        if revoked {
            return Ok(Err(InviteFault::Revoked));
        }
        if expires_ms.is_some_and(|at_ms| at_ms as u64 <= now_ms) {
            return Ok(Err(InviteFault::Over));
        }
        if used >= uses {
            return Ok(Err(InviteFault::UsedUp));
        }
        let insert = "INSERT INTO guests VALUES (?1, ?2, ?3)";
        change.execute(insert, params![fingerprint.0, id, now_ms as i64]).map_err(wrong)?;
        change.commit().map_err(wrong)?;
        Ok(Ok(()))
    }
}

/// Returns the stored hash of an invite's text. The text has 128 random bits, so it cannot be found from its hash.
fn hash(text: &str) -> [u8; 32] {
    Sha256::digest(text).into()
}
