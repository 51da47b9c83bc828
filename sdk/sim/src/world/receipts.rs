//! Checks that each learner gets exactly one correct receipt for each settled update.

use std::collections::BTreeMap;

use super::Violation;
use archipelago_core::wire::{Fate, FragmentId, LearnerId, Serial};

/// Receipts that the syncer sent before the event that books the fate.
#[derive(Clone, Debug, Default)]
pub(super) struct Receipts {
    said: BTreeMap<(LearnerId, FragmentId, Serial), Fate>,
}

impl Receipts {
    /// Notes a receipt that the syncer sends.
    pub(super) fn say(&mut self, learner: LearnerId, fragment: FragmentId, serial: Serial, fate: Fate) {
        self.said.insert((learner, fragment, serial), fate);
    }

    /// Checks the receipt of a booked fate; a learner that `is_here` must have one.
    ///
    /// # Errors
    /// [`Violation::Receipt`].
    pub(super) fn settle(
        &mut self,
        learner: LearnerId,
        fragment: FragmentId,
        serial: Serial,
        fate: Fate,
        is_here: bool,
    ) -> Result<(), Violation> {
        let told = self.said.remove(&(learner, fragment, serial));
        let expected = is_here.then_some(fate);
        if told == expected {
            Ok(())
        } else {
            Err(Violation::Receipt { learner, serial, fate: expected, told })
        }
    }

    /// Checks that no receipt is left without a booked fate.
    ///
    /// # Errors
    /// [`Violation::Receipt`].
    pub(super) fn check(&self) -> Result<(), Violation> {
        match self.said.first_key_value() {
            None => Ok(()),
            Some((&(learner, _, serial), &told)) => {
                Err(Violation::Receipt { learner, serial, fate: None, told: Some(told) })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use archipelago_core::wire::{LateReason, Version};

    #[test]
    fn whoever_is_here_is_told_what_happened() {
        let merged = Fate::Merged { version: Version(2), weight: 1.0, tokens: 8 };
        let late = Fate::Late(LateReason::StaleBase);
        let check = |said: Option<Fate>, done: Fate, is_here: bool, expected: bool| {
            let (learner, fragment, serial) = (LearnerId(1), FragmentId(0), Serial(3));
            let mut receipts = Receipts::default();
            if let Some(said) = said {
                receipts.say(learner, fragment, serial, said);
                assert!(receipts.check().is_err(), "nothing was done yet");
            }
            assert_eq!(receipts.settle(learner, fragment, serial, done, is_here).is_ok(), expected);
            assert!(receipts.check().is_ok());
        };
        check(Some(merged), merged, true, true);
        check(Some(late), merged, true, false);
        check(None, merged, true, false);
        check(None, merged, false, true);
        check(Some(merged), merged, false, false);
    }
}
