//! Cosines between the updates of honest learners, which limit what geometry can detect.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use archipelago_core::diloco::{Layout, MergeJob, Segment};
use archipelago_core::wire::LearnerId;

/// Tensors of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TensorGroup {
    /// The embedding, and a separate output head.
    Embedding,
    /// Queries, keys, values and the output projection.
    Attention,
    /// Gates, and the up and down projections.
    FeedForward,
    /// The scales of normalisation layers.
    Norms,
}

impl TensorGroup {
    /// All groups, in display order.
    pub const ALL: [Self; 4] = [Self::Embedding, Self::Attention, Self::FeedForward, Self::Norms];

    /// Returns the display name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::Attention => "attention",
            Self::FeedForward => "feed-forward",
            Self::Norms => "norms",
        }
    }

    /// Returns the group of the tensor with this name, as in [`archipelago_core::model::layout`].
    fn of(name: &str) -> Self {
        match name {
            _ if name.contains("norm") => Self::Norms,
            _ if name.contains("self_attn") => Self::Attention,
            _ if name.contains("mlp") => Self::FeedForward,
            _ => Self::Embedding,
        }
    }
}

/// Distribution of cosines on the segments of one tensor group. Each pair of honest updates in a merge gives a cosine
/// for each segment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cosines {
    /// Group of the tensors.
    pub part: TensorGroup,
    /// Number of cosines.
    pub pairs: u64,
    /// The 5th percentile.
    pub p5: f32,
    /// The median.
    pub p50: f32,
    /// The 95th percentile.
    pub p95: f32,
}

/// Collector of cosines.
pub(super) struct Collector {
    layout: Layout,
    found: BTreeMap<TensorGroup, Vec<f32>>,
}

impl Collector {
    pub(super) fn new(layout: Layout) -> Self {
        Self { layout, found: BTreeMap::new() }
    }

    /// Adds the honest updates of a merge.
    pub(super) fn take(&mut self, job: &MergeJob, is_honest: impl Fn(LearnerId) -> bool) {
        let honest = job.updates.iter().filter(|update| is_honest(update.learner));
        let decode = |body| job.codec.decode(&job.segments, body).expect("it was checked");
        let updates: Vec<Vec<f32>> = honest.map(|update| decode(update.body.bytes())).collect();
        let mut start = 0;
        for segment in &job.segments {
            let values = start..start + segment.len as usize;
            start = values.end;
            let units: Vec<Vec<f64>> =
                updates.iter().filter_map(|update| unit(&update[values.clone()])).collect();
            let part = self.part(segment);
            let found = self.found.entry(part).or_default();
            for (i, one) in units.iter().enumerate() {
                found.extend(units[..i].iter().map(|other| dot(one, other) as f32));
            }
        }
    }

    pub(super) fn end(self) -> Vec<Cosines> {
        let spread = |(part, mut cosines): (TensorGroup, Vec<f32>)| {
            cosines.sort_by(f32::total_cmp);
            let at = |share: f64| cosines[((cosines.len() - 1) as f64 * share) as usize];
            (!cosines.is_empty()).then(|| Cosines {
                part,
                pairs: cosines.len() as u64,
                p5: at(0.05),
                p50: at(0.5),
                p95: at(0.95),
            })
        };
        self.found.into_iter().filter_map(spread).collect()
    }

    fn part(&self, segment: &Segment) -> TensorGroup {
        let tensors = self.layout.offsets().filter(|(start, _)| *start <= segment.start);
        tensors.last().map_or(TensorGroup::Embedding, |(_, tensor)| TensorGroup::of(&tensor.name))
    }
}

/// Returns `values` scaled to norm 1; `None` for zeros.
fn unit(values: &[f32]) -> Option<Vec<f64>> {
    let norm = values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    (norm > 0.0).then(|| values.iter().map(|value| f64::from(*value) / norm).collect())
}

fn dot(one: &[f64], other: &[f64]) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tensor_has_its_kind() {
        let layout = archipelago_core::model::layout(&super::super::reference_model()).unwrap();
        let count =
            |part| layout.tensors().iter().filter(|tensor| TensorGroup::of(&tensor.name) == part).count();
        assert_eq!(TensorGroup::ALL.map(count), [1, 2 * 4, 2 * 3, 2 * 2 + 1]);
    }
}
