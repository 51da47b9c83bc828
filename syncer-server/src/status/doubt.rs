//! Why a learner is suspected of not training, in words.

/// Why a learner is suspected, after so many looks.
#[must_use]
pub fn doubted(looks: u32) -> String {
    format!(
        "updates do not lower the loss on the text that it was given as those of others do: {looks} looks"
    )
}
