//! The parameters as others get them, to measure or to take home.

use std::sync::Arc;

use archipelago_core::diloco::Fragments;

use crate::llama::Course;

/// Parameters to measure, and where the run stood.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Θ of each fragment, `[P]`, shared with the syncer.
    pub thetas: Vec<Arc<Vec<f32>>>,
    /// How they lie in the flat vector.
    pub fragments: Arc<Fragments>,
    /// How far the run had come, for people.
    pub course: Course,
    /// Tokens merged into it.
    pub tokens_merged: u64,
    /// Rounds merged into it.
    pub rounds: u64,
    /// Whether the run is complete, so that nothing will ever be merged into it again.
    pub is_final: bool,
}

impl Subject {
    /// Θ, flat, `[layout.len()]`.
    #[must_use]
    pub fn theta(&self) -> Vec<f32> {
        let mut flat = vec![0.0; self.params()];
        for (fragment, theta) in self.fragments.ids().zip(&self.thetas) {
            self.fragments.scatter(fragment, theta, &mut flat);
        }
        flat
    }

    /// Values of Θ.
    #[must_use]
    pub fn params(&self) -> usize {
        self.thetas.iter().map(|theta| theta.len()).sum()
    }
}
