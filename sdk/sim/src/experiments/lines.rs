//! A line of a table that compares two experiments.

use std::collections::BTreeMap;

use super::Case;
use super::findings::Findings;

/// Findings of each experiment, by its name.
pub type Found = BTreeMap<String, Findings>;

/// One line of the table: an experiment and its baseline.
#[derive(Clone, Debug)]
pub struct Line {
    /// Description of the figure.
    pub case: String,
    /// Name of the experiment.
    pub ours: String,
    /// Name of the baseline.
    pub base: String,
    /// The paper's figure, in percent.
    pub paper: Option<f64>,
}

impl Line {
    /// Returns the excess of the loss over the baseline's, in percent.
    #[must_use]
    pub fn case(&self, found: &Found) -> Case {
        Case::new(&self.case, found[&self.ours].above(&found[&self.base]).0, self.paper)
    }
}
