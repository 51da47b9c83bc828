//! Reasons for suspicion, in plain words.

/// Returns the reason why a learner is suspected after `looks` loss checks.
#[must_use]
pub fn doubted(looks: u32) -> String {
    format!("updates do not lower the loss on their own text as other learners' updates do: {looks} checks")
}
