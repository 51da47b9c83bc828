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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ApplyPolicy;

    const P: FragmentId = FragmentId(1);
    const KEEP: ApplyPolicy = ApplyPolicy::Keep { residue: true };

    fn claim(serial: u64, steps: u32, tokens: u64) -> Claim {
        Claim { serial: Serial(serial), fragment: P, steps, tokens, body: Arc::default() }
    }

    fn facts() -> Facts {
        let grant = LeaseGrant { lease: LeaseId(9), epoch: 0, shard: 0, start: 40, windows: 8 };
        Facts {
            grants: BTreeMap::from([(grant.lease, grant)]),
            clocks: BTreeSet::from([100, 200]),
            hats: BTreeMap::from([3, 4].map(|version| ((P, Version(version)), Arc::new(vec![0.0])))),
            merged: BTreeSet::from([(P, Serial(5))]),
        }
    }

    /// What becomes of `ops` one after the other, up to the first that is not as the syncer knows it.
    fn follow(ops: &[Op], claim: &Claim) -> Result<(), Verdict> {
        let mut tally = Tally::new(2);
        for op in ops {
            facts().check(&tally, op, claim)?;
            tally.take(op, 10, KEEP);
        }
        Ok(())
    }

    fn step(base: u64, own: u64, first: u32) -> Op {
        Op::Step { base, own, windows: vec![(LeaseId(9), first, 2)] }
    }

    fn code(serial: u64) -> Op {
        Op::Encode { serial: Serial(serial), fragment: P }
    }

    /// Goal: progress that was merged is taken out once, before more is sent; or it would count again and again.
    #[test]
    fn what_was_merged_is_taken_out_once() {
        let include = Op::Include { fragment: P };
        let failed = Err(Fault::Include.into());
        let steps = [step(0, 0, 0), code(5), step(0, 20, 2)];
        let with = |rest: &[Op]| [&steps[..], rest].concat();
        assert_eq!(follow(&with(&[include.clone(), code(6)]), &claim(6, 1, 20)), Ok(()));
        assert_eq!(follow(&with(&[code(6)]), &claim(6, 2, 40)), failed, "it stays in");
        assert_eq!(follow(&with(&[include.clone(), include.clone()]), &claim(6, 1, 20)), failed, "twice");
        let unmerged = [step(0, 0, 0), code(6), include];
        assert_eq!(follow(&unmerged, &claim(6, 1, 20)), failed, "it was not merged");
    }

    #[test]
    fn windows_come_one_after_the_other() {
        let claim = claim(6, 2, 40);
        assert_eq!(follow(&[step(0, 0, 0), step(0, 20, 2), code(6)], &claim), Ok(()));
        for wrong in [0, 1, 3, 7] {
            assert_eq!(follow(&[step(0, 0, 0), step(0, 20, wrong)], &claim), Err(Fault::Window.into()));
        }
        assert_eq!(follow(&[step(0, 0, 1)], &claim), Err(Fault::Window.into()), "it begins at the first");
        let other = |lease, count| Op::Step { base: 0, own: 0, windows: vec![(LeaseId(lease), 0, count)] };
        assert_eq!(follow(&[other(9, 9)], &claim), Err(Fault::Window.into()), "it ends with the lease");
        assert_eq!(follow(&[other(10, 1)], &claim), Err(Fault::Window.into()));
        assert_eq!(follow(&[other(8, 1)], &claim), Err(Verdict::Undecided), "too long ago to be known");
        let nothing = Op::Step { base: 0, own: 0, windows: Vec::new() };
        assert_eq!(follow(&[nothing], &claim), Err(Fault::Steps.into()));
    }

    #[test]
    fn rates_follow_what_was_told() {
        let check = |base, own, expected: Result<(), Verdict>| {
            assert_eq!(
                follow(&[step(100, 0, 0), step(base, own, 2)], &claim(6, 2, 40)),
                expected,
                "{base} {own}"
            );
        };
        check(100, 20, Ok(()));
        check(100, 0, Ok(()));
        check(200, 0, Ok(()));
        for (base, own) in [(100, 19), (100, 40), (200, 20), (150, 0), (300, 0)] {
            check(base, own, Err(Fault::Rate.into()));
        }
        check(99, 0, Err(Verdict::Undecided));
    }

    #[test]
    fn versions_are_those_that_were_published() {
        let check = |version, expected: Result<(), Verdict>| {
            let take = Op::Take { fragment: P, version: Version(version), keep: true };
            assert_eq!(follow(&[take], &claim(6, 1, 1)), expected, "{version}");
        };
        check(3, Ok(()));
        check(4, Ok(()));
        check(5, Err(Fault::Version.into()));
        check(2, Err(Verdict::Undecided));
        let other = Op::Take { fragment: FragmentId(0), version: Version(3), keep: true };
        assert_eq!(follow(&[other], &claim(6, 1, 1)), Err(Fault::Version.into()));
    }

    #[test]
    fn an_update_says_what_was_trained() {
        let ops = [step(0, 0, 0), code(6)];
        assert_eq!(follow(&ops, &claim(6, 1, 20)), Ok(()));
        assert_eq!(follow(&ops, &claim(6, 2, 20)), Err(Fault::Count.into()));
        assert_eq!(follow(&ops, &claim(6, 1, 21)), Err(Fault::Count.into()));
        let other = [step(0, 0, 0), Op::Encode { serial: Serial(6), fragment: FragmentId(0) }];
        assert_eq!(follow(&other, &claim(6, 1, 20)), Err(Fault::Codes.into()));
        let none = [Op::Include { fragment: FragmentId(2) }];
        assert_eq!(follow(&none, &claim(6, 1, 20)), Err(Fault::Malformed.into()));
    }
}
