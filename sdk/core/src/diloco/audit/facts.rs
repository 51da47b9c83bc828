//! What a syncer knows itself of a span that somebody shows it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Fault, Op, Tally, Verdict};
use crate::wire::{FragmentId, LeaseGrant, LeaseId, Serial, Version};

/// What was leased to a learner, what was published, and what of it was merged.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub(super) grants: BTreeMap<LeaseId, LeaseGrant>,
    pub(super) clocks: BTreeSet<u64>,
    pub(super) hats: BTreeMap<(FragmentId, Version), Arc<Vec<f32>>>,
    pub(super) merged: BTreeSet<(FragmentId, Serial)>,
}

/// What the update says for which a span is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The update.
    pub serial: Serial,
    /// The fragment.
    pub fragment: FragmentId,
    /// Steps.
    pub steps: u32,
    /// Tokens.
    pub tokens: u64,
    /// Coded.
    pub body: Arc<Vec<u8>>,
}

impl Facts {
    /// Whether `op`, of a learner whose counts are `tally`, is what was leased, published and merged. The last one is
    /// to be the code of `claim`.
    ///
    /// # Errors
    /// The verdict: [`Verdict::Failed`] with [`Fault::Window`], [`Fault::Rate`], [`Fault::Version`], [`Fault::Include`]
    /// or [`Fault::Count`]; and [`Verdict::Undecided`] where it rests on what is not kept any more.
    pub fn check(&self, tally: &Tally, op: &Op, claim: &Claim) -> Result<(), Verdict> {
        match op {
            Op::Step { base, own, windows } => {
                self.check_rate(tally, *base, *own)?;
                self.check_windows(tally, windows)
            }
            Op::Encode { serial, fragment } => {
                let counts = tally.counts(usize::from(fragment.0)).ok_or(Fault::Malformed)?;
                if counts.sent.is_some_and(|(sent, ..)| self.is_merged(*fragment, sent)) {
                    return Err(Fault::Include.into());
                }
                let is_claim = *serial == claim.serial;
                if is_claim && *fragment != claim.fragment {
                    return Err(Fault::Codes.into());
                }
                if is_claim && (counts.steps, counts.tokens) != (claim.steps, claim.tokens) {
                    return Err(Fault::Count.into());
                }
                Ok(())
            }
            Op::Include { fragment } => {
                let counts = tally.counts(usize::from(fragment.0)).ok_or(Fault::Malformed)?;
                let sent = counts.sent.map(|(serial, ..)| serial);
                match sent.filter(|&sent| self.is_merged(*fragment, sent)) {
                    Some(_) => Ok(()),
                    None => Err(Fault::Include.into()),
                }
            }
            Op::Take { fragment, version, .. } => self.hat(*fragment, *version).map(|_| ()),
        }
    }

    /// Θ̂ of a version, `[fragment_len]`.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn hat(&self, fragment: FragmentId, version: Version) -> Result<&[f32], Verdict> {
        if let Some(hat) = self.hats.get(&(fragment, version)) {
            return Ok(hat);
        }
        let mut kept = self.hats.range((fragment, Version(0))..=(fragment, Version(u64::MAX)));
        let is_old = kept.next().is_some_and(|(&(_, oldest), _)| version < oldest);
        Err(if is_old { Verdict::Undecided } else { Fault::Version.into() })
    }

    /// What was leased as `lease`.
    #[must_use]
    pub fn grant(&self, lease: LeaseId) -> Option<&LeaseGrant> {
        self.grants.get(&lease)
    }

    fn is_merged(&self, fragment: FragmentId, serial: Serial) -> bool {
        self.merged.contains(&(fragment, serial))
    }

    /// Either the syncer said something new before this step, or own tokens went on.
    fn check_rate(&self, tally: &Tally, base: u64, own: u64) -> Result<(), Verdict> {
        if (base, own) == (tally.base, tally.own) || (base == tally.base && own == 0) {
            return Ok(());
        }
        if own == 0 && self.clocks.contains(&base) {
            return Ok(());
        }
        let is_old = own == 0 && self.clocks.first().is_some_and(|&oldest| base < oldest);
        Err(if is_old { Verdict::Undecided } else { Fault::Rate.into() })
    }

    fn check_windows(&self, tally: &Tally, windows: &[(LeaseId, u32, u32)]) -> Result<(), Verdict> {
        let mut seen = BTreeSet::new();
        for &(lease, first, count) in windows {
            let Some(grant) = self.grants.get(&lease) else {
                let is_old = self.grants.first_key_value().is_some_and(|(&oldest, _)| lease < oldest);
                return Err(if is_old { Verdict::Undecided } else { Fault::Window.into() });
            };
            if tally.done(lease).is_none() && tally.may_forget(lease) {
                return Err(Verdict::Undecided);
            }
            let is_next = first == tally.done(lease).unwrap_or(0) && seen.insert(lease);
            let is_in = first.checked_add(count).is_some_and(|end| end <= grant.windows);
            if count == 0 || !is_next || !is_in {
                return Err(Fault::Window.into());
            }
        }
        if windows.is_empty() { Err(Fault::Steps.into()) } else { Ok(()) }
    }
}

impl From<Fault> for Verdict {
    fn from(fault: Fault) -> Self {
        Self::Failed(fault)
    }
}
