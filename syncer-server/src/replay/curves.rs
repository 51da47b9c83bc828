//! HTML page with curves over merges, thinned for long runs.

use super::Replay;
use crate::inspect::{count, duration};
use crate::report::{HEAD, Html, curve};
use crate::tape::ReplayedMerge;

/// Approximate number of points in a curve.
const POINTS_MAX: u64 = 1_000;

/// Curves over merges. Merges that share a point are combined: the largest norm, since a single one may do harm, and
/// the mean number of learners.
pub(super) struct Curves {
    /// Merges for each point.
    each: u64,
    merges: u64,
    learners: f64,
    norm: f64,
    losses: Vec<(f64, f64)>,
    cohorts: Vec<(f64, f64)>,
    norms: Vec<(f64, f64)>,
}

impl Curves {
    /// Creates empty curves for about `merges` merges.
    pub(super) fn new(merges: u64) -> Self {
        let each = merges.div_ceil(POINTS_MAX).max(1);
        let (losses, cohorts, norms) = (Vec::new(), Vec::new(), Vec::new());
        Self { each, merges: 0, learners: 0.0, norm: 0.0, losses, cohorts, norms }
    }

    /// Adds the next merge.
    pub(super) fn add(&mut self, merge: &ReplayedMerge) {
        self.merges += 1;
        self.learners += merge.members.len() as f64;
        self.norm = self.norm.max(merge.norm);
        let x = self.merges as f64;
        self.losses.extend(merge.loss.map(|loss| (x, loss.into())));
        if self.merges.is_multiple_of(self.each) {
            self.cohorts.push((x, self.learners / self.each as f64));
            self.norms.push((x, self.norm));
            (self.learners, self.norm) = (0.0, 0.0);
        }
    }

    /// Returns the page.
    pub(super) fn page(self, replay: &Replay) -> String {
        let mut html = Html::default();
        let title = format!("The merges of run {}", replay.run);
        html.raw(HEAD).element("title", &title).raw("</head>\n<body>\n<main>\n").element("h1", &title);
        let (merges, run_s) = (count(replay.merges), duration(replay.run_s));
        let first = format!("Decisions {} to {}: {merges} merges in {run_s}", replay.first, replay.last);
        html.element("p", &format!("{first}, each recomputed to the same bits."));
        if let Some(losses) = &replay.losses {
            for line in losses.to_string().lines() {
                html.element("p", line);
            }
            curve(&mut html, "Held-out loss", ["merges", "nats per token"], [("loss", 0, self.losses)]);
        }
        let cohort = [("learners", 2, self.cohorts)];
        curve(&mut html, "Learners with an update in a merge", ["merges", "learners"], cohort);
        let norm = [("largest norm", 1, self.norms)];
        curve(&mut html, "How far a merge moved, before the outer step", ["merges", "L2 norm"], norm);
        html.raw("</main>\n</body>\n</html>\n");
        html.into_text()
    }
}
