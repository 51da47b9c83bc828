//! A line of a table that sets one experiment beside another.

use std::collections::BTreeMap;

use super::Case;
use super::findings::Findings;

/// What each experiment led to, by its name.
pub type Found = BTreeMap<String, Findings>;

/// One line of the table: an experiment beside the one that it is measured by.
#[derive(Clone, Debug)]
pub struct Line {
    /// What it is a figure of.
    pub case: String,
    /// Name of the experiment.
    pub ours: String,
    /// Name of the one beside it.
    pub base: String,
    /// What the paper says, in percent.
    pub paper: Option<f64>,
}

impl Line {
    /// By how many percent the loss is above that of the one beside it.
    #[must_use]
    pub fn case(&self, found: &Found) -> Case {
        Case::new(&self.case, found[&self.ours].above(&found[&self.base]).0, self.paper)
    }
}
