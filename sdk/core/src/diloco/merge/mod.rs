//! Merge of the updates of one fragment, and the outer step.

mod partial;

pub use partial::{PartialSum, SumPlan};

use std::sync::Arc;

use super::quant::{Block, Span, fragment_len};
use super::{
    CheckedBody, Codec, ExpertWeights, FragmentId, LearnerId, MergeClass, OuterSpec, Round, Segment, Version,
    binary16, checksum, outer,
};
use crate::diloco::block;
use partial::{Term, Terms};
use serde::{Deserialize, Serialize};

/// Rules by which updates are averaged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum MergeRule {
    /// The average that the [`MergeClass`] of each segment names.
    #[default]
    Radial,
    /// Radial averaging everywhere, regardless of the [`MergeClass`].
    #[serde(rename = "radial-all")]
    RadialAll,
    /// The average of `Radial`. Matrices that are merged radially then get singular values of equal size, so that all
    /// directions in which learners moved count equally (arXiv 2607.03011).
    Flat,
    /// Weighted mean everywhere.
    Mean,
}

impl MergeRule {
    /// All rules.
    pub const ALL: [Self; 4] = [Self::Radial, Self::RadialAll, Self::Flat, Self::Mean];

    /// Returns the name in settings, reports and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Radial => "radial",
            Self::RadialAll => "radial-all",
            Self::Flat => "flat",
            Self::Mean => "mean",
        }
    }
}

/// State of one fragment in the syncer. Clones share their vectors, and a merge copies shared vectors.
#[derive(Clone, Debug, PartialEq)]
pub struct FragmentState {
    /// Version of `hat`.
    pub version: Version,
    /// Θ, `[fragment_len]`.
    pub theta: Arc<Vec<f32>>,
    /// Θ̂, which learners hold, `[fragment_len]`; each value is rounded by [`binary16::nearest`].
    pub hat: Arc<Vec<f32>>,
    /// Outer momentum, `[fragment_len]`.
    pub momentum: Arc<Vec<f32>>,
}

impl FragmentState {
    /// Creates the first state of a fragment: Θ = `theta`, Θ̂ is the same in 16 bits, version 0, no momentum.
    #[must_use]
    pub fn new(theta: Vec<f32>) -> Self {
        let (momentum, mut hat) = (Arc::new(vec![0.0; theta.len()]), theta.clone());
        binary16::round(&mut hat);
        Self { version: Version(0), theta: Arc::new(theta), hat: Arc::new(hat), momentum }
    }

    /// Creates a state from Θ̂ alone, for a fragment that another process leads. Θ equals Θ̂, and the momentum is
    /// empty. The state takes 4 bytes per value.
    pub(crate) fn of_hat(version: Version, hat: Arc<Vec<f32>>) -> Self {
        Self { version, theta: Arc::clone(&hat), hat, momentum: Arc::default() }
    }

    /// Returns the state with Θ in the place of Θ̂. The Θ of later merges does not depend on Θ̂. The state takes 8
    /// bytes per parameter instead of 12.
    #[must_use]
    pub fn without_hat(&self) -> Self {
        Self { hat: Arc::clone(&self.theta), ..self.clone() }
    }
}

/// Update of one learner, with its weights.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightedUpdate {
    /// The sender, unique in a merge.
    pub learner: LearnerId,
    /// Weight relative to the other updates, finite and above 0.
    pub weight: f64,
    /// Weights on the segments of each expert of the fragment, `[experts]`, finite and not below 0.
    pub experts: Vec<f64>,
    /// Number of inner steps that bounds the counted norm, at least 1.
    pub steps: u32,
    /// Coded `Θ̂ − θ`.
    pub body: CheckedBody,
}

impl WeightedUpdate {
    /// Returns the part of `norm` that counts on a segment. One step counts up to `radius`.
    pub(super) fn counted(&self, norm: f64, radius: f64) -> f64 {
        norm.min(radius * f64::from(self.steps.max(1)).sqrt())
    }

    /// Returns the weight of the update on `segment`.
    fn weight_on(&self, segment: &Segment) -> f64 {
        segment.expert.map_or(self.weight, |expert| self.experts[usize::from(expert)])
    }
}

/// Complete input of one merge, so that it can run anywhere.
#[derive(Clone, Debug)]
pub struct MergeJob {
    /// The round.
    pub round: Round,
    /// The fragment.
    pub fragment: FragmentId,
    /// State before the merge.
    pub state: FragmentState,
    /// Weight of missing updates, not below 0. Each counts as an update of zeros.
    pub absent: f64,
    /// Weight of missing updates on the segments of each expert of the fragment, `[experts]`, not below 0.
    pub absent_experts: Vec<f64>,
    /// Updates in any order. If learners keep their progress, an update does not depend on its base version. Otherwise
    /// all updates are relative to `state.hat`.
    pub updates: Vec<WeightedUpdate>,
    /// Segments of the fragment.
    pub segments: Vec<Segment>,
    /// Codec of the bodies.
    pub codec: Codec,
    /// Merge rule.
    pub rule: MergeRule,
    /// Bound on the norm of a one-step update on each segment, `[segments]`, each above 0. An update of n steps
    /// counts up to √n times the bound. Empty for no bound.
    pub radii: Vec<f64>,
    /// The outer step.
    pub outer: OuterSpec,
    /// Version after the merge.
    pub next: Version,
}

/// Result of a merge.
#[derive(Clone, Debug, PartialEq)]
pub struct MergeOutcome {
    /// The round.
    pub round: Round,
    /// The fragment.
    pub fragment: FragmentId,
    /// State after the merge.
    pub state: FragmentState,
    /// Coded change of Θ̂ for learners.
    pub body: Vec<u8>,
    /// [`checksum`] of `body`.
    pub checksum: u64,
    /// [`binary16::digest`] of the new Θ̂.
    pub digest: u64,
    /// L2 norm of the merged delta, before the outer step.
    pub norm: f64,
}

/// Ways to obtain the sum of the updates.
enum Reduction<'a> {
    /// Summing the job's updates by this plan.
    Whole(SumPlan),
    /// Use of a given sum.
    Summed(&'a PartialSum),
}

impl MergeJob {
    /// Merges the updates into Δ, takes the outer step with it, and codes the change of Θ̂.
    ///
    /// Per segment, with `v_m` the decoded updates, `w_m` the weights and φ(x) = x/‖x‖, φ(0) = 0:
    /// - [`MergeClass::Mean`]: `Δ = Σ w_m v_m / Σ w_m`;
    /// - [`MergeClass::Radial`]: `Δ = (Σ w_m ‖v_m‖ / Σ w_m) φ(Σ w_m φ(v_m))`. So Δ is as long as the updates are,
    ///   even if they are nearly orthogonal. If they cancel out, it is the weighted mean.
    ///
    /// With [`MergeRule::Flat`], the Δ of a matrix becomes the mean of its singular values times its polar factor.
    ///
    /// Each Σ w_m in a denominator also includes `absent`.
    ///
    /// On the segments of an expert, the weights are those for the expert. If all are 0, no learner trained it, and Δ
    /// is 0.
    ///
    /// With `radii`, each ‖v_m‖ counts as `r_m = min(‖v_m‖, radius · √steps_m)`, and `v_m` as `r_m φ(v_m)`. So a long
    /// update hardly makes the merge longer.
    ///
    /// After the outer step, `body = encode(Θ − Θ̂)` and `Θ̂ = nearest(Θ̂ + decode(body))`, see [`binary16::nearest`].
    /// The remainder of both roundings stays in Θ − Θ̂, and the next merge sends it.
    ///
    /// The result is the same to the bit for any order of `updates`, on any machine, and for any grouping, see
    /// [`Self::finish`]. A merge of a single update leaves it unchanged, except for values below 2⁻²⁶ of its length,
    /// which lose up to 2⁻⁵¹ of that length. With [`MergeRule::Flat`], that holds for all but matrices.
    ///
    /// # Errors
    /// [`MergeFailure`] with the unchanged state and any variant of [`MergeError`] except `Sum`, `Cancelled` and
    /// `Unread`.
    pub fn run(mut self) -> Result<MergeOutcome, Box<MergeFailure>> {
        self.updates.sort_by_key(|update| update.learner);
        if let Err(error) = self.check().and_then(|()| self.check_bodies()) {
            return Err(self.failure(error));
        }
        let plan = SumPlan::of(&self);
        Ok(self.step(&Reduction::Whole(plan)))
    }

    /// Returns the plan for summing the updates elsewhere. The updates may lack their bodies.
    ///
    /// # Errors
    /// Any variant of [`MergeError`] except `Sum`, `Cancelled` and `Unread`.
    pub fn plan(&mut self) -> Result<SumPlan, MergeError> {
        self.updates.sort_by_key(|update| update.learner);
        self.check()?;
        Ok(SumPlan::of(self))
    }

    /// Merges with a given sum of the updates. The result equals that of [`Self::run`] to the bit. The updates may lack
    /// their bodies.
    ///
    /// # Errors
    /// [`MergeFailure`] with the unchanged state. [`MergeError::Sum`]: the sum has another plan or other updates.
    /// [`MergeError::Cancelled`]: directions cancel out in the sum. All other errors are those of [`Self::plan`].
    pub fn finish(mut self, sum: &PartialSum) -> Result<MergeOutcome, Box<MergeFailure>> {
        let plan = match self.plan() {
            Ok(plan) => plan,
            Err(error) => return Err(self.failure(error)),
        };
        let is_of_all = self.updates.iter().map(|update| update.learner).eq(sum.learners().iter().copied());
        if !(is_of_all && plan.is_or_was(sum.plan()) && sum.values().len() == self.state.theta.len()) {
            let (expected, actual) = (self.updates.len(), sum.learners().len());
            return Err(self.failure(MergeError::Sum { expected, actual }));
        }
        if let Some(&segment) = sum.cancelled().first() {
            return Err(self.failure(MergeError::Cancelled { segment: segment as usize }));
        }
        Ok(self.step(&Reduction::Summed(sum)))
    }

    /// Takes the outer step along the sum of the updates.
    fn step(mut self, way: &Reduction<'_>) -> MergeOutcome {
        let mut state = std::mem::replace(&mut self.state, FragmentState::new(Vec::new()));
        let mut body = vec![0; self.codec.body_bytes(&self.segments)];
        let mut squares = 0.0;
        for (at, span) in self.codec.spans(&self.segments).enumerate() {
            let mut added = match way {
                Reduction::Whole(plan) => self.added(plan, at, span),
                Reduction::Summed(sum) => sum.added(at, span),
            };
            if let (MergeRule::Flat, Some(rows)) = (self.rule, self.segments[at].matrix_rows()) {
                added = added.flattened(&self.codec, span, rows);
            }
            squares += added.norm * added.norm;
            advance(&self.codec, span, &added, &self.outer, &mut state, &mut body);
        }
        state.version = self.next;
        let Self { round, fragment, .. } = self;
        let (checksum, digest) = (checksum(&body), binary16::digest(&state.hat));
        MergeOutcome { round, fragment, state, body, checksum, digest, norm: squares.sqrt() }
    }

    /// Returns the sum of the updates on segment `at`, in whole numbers.
    fn added(&self, plan: &SumPlan, at: usize, span: Span) -> SegmentSum<'_> {
        let terms = &plan.terms[at];
        self.added_by(terms, at, span)
            .or_else(|| self.added_by(&terms.by_mean(), at, span))
            .unwrap_or_default()
    }

    fn added_by(&self, terms: &Terms, at: usize, span: Span) -> Option<SegmentSum<'_>> {
        let segment = &self.segments[at];
        let mut bodies = Vec::with_capacity(self.updates.len());
        let mut lengths = 0.0;
        for update in &self.updates {
            let Term { factor, length } = terms.term(update, at, update.weight_on(segment));
            lengths += length;
            if factor != 0.0 {
                bodies.push((factor, update.body.bytes()));
            }
        }
        let source = Source::Whole(bodies);
        let (factor, norm) = terms.scale(lengths, || square(&self.codec, span, &source).sqrt())?;
        Some(SegmentSum { source, factor, norm })
    }

    fn failure(self, error: MergeError) -> Box<MergeFailure> {
        let Self { round, fragment, state, .. } = self;
        Box::new(MergeFailure { round, fragment, state, error })
    }

    /// Returns true if the directions of updates are averaged on `segment`.
    fn is_radial(&self, segment: &Segment) -> bool {
        match self.rule {
            MergeRule::Radial | MergeRule::Flat => segment.merge == MergeClass::Radial,
            MergeRule::RadialAll => true,
            MergeRule::Mean => false,
        }
    }

    /// Returns the weights of the updates on `segment`.
    fn weights(&self, segment: &Segment) -> ExpertWeights {
        let weights = self.updates.iter().map(|update| update.weight_on(segment)).collect();
        let absent = segment.expert.map_or(self.absent, |expert| self.absent_experts[usize::from(expert)]);
        ExpertWeights { weights, absent }
    }

    fn check(&self) -> Result<(), MergeError> {
        let OuterSpec { lr, momentum } = self.outer;
        if !(lr.is_finite() && lr > 0.0 && (0.0..1.0).contains(&momentum)) {
            return Err(MergeError::Outer { spec: self.outer });
        }
        let expected = fragment_len(&self.segments);
        for actual in [self.state.theta.len(), self.state.hat.len(), self.state.momentum.len()] {
            if actual != expected {
                return Err(MergeError::State { expected, actual });
            }
        }
        if self.updates.is_empty() {
            return Err(MergeError::Empty);
        }
        if let Some(pair) = self.updates.windows(2).find(|pair| pair[0].learner == pair[1].learner) {
            return Err(MergeError::Duplicate { learner: pair[0].learner });
        }
        let mut total = self.absent;
        for &WeightedUpdate { learner, weight, .. } in &self.updates {
            total += weight;
            if !(weight > 0.0 && f64::is_finite(total)) {
                return Err(MergeError::Weight { learner, weight });
            }
        }
        let last = self.segments.iter().filter_map(|segment| segment.expert).max();
        let experts = last.map_or(0, |last| usize::from(last) + 1);
        let fits = |weights: &[f64]| {
            let sum = weights.iter().sum::<f64>() * self.updates.len() as f64;
            weights.len() >= experts && sum.is_finite() && weights.iter().all(|&weight| weight >= 0.0)
        };
        let absent = fits(&self.absent_experts);
        if let Some(update) = self.updates.iter().find(|update| !(absent && fits(&update.experts))) {
            return Err(MergeError::Experts { learner: update.learner });
        }
        let expected = self.codec.body_bytes(&self.segments);
        let other = self.updates.iter().find(|update| update.body.squares().len() != self.segments.len());
        other.map_or(Ok(()), |WeightedUpdate { learner, body, .. }| {
            Err(MergeError::Body { learner: *learner, expected, actual: body.bytes().len() })
        })
    }

    fn check_bodies(&self) -> Result<(), MergeError> {
        let expected = self.codec.body_bytes(&self.segments);
        let other = self.updates.iter().find(|update| update.body.bytes().len() != expected);
        other.map_or(Ok(()), |WeightedUpdate { learner, body, .. }| {
            Err(MergeError::Body { learner: *learner, expected, actual: body.bytes().len() })
        })
    }
}

/// Takes the outer step on `span`, where `added` is Δ, and codes the change into `body`.
#[cfg_attr(feature = "simd", multiversion::multiversion(targets = "simd"))]
fn advance(
    codec: &Codec,
    span: Span,
    added: &SegmentSum<'_>,
    spec: &OuterSpec,
    state: &mut FragmentState,
    body: &mut [u8],
) {
    let hat = Arc::make_mut(&mut state.hat);
    let (thetas, momenta) = (Arc::make_mut(&mut state.theta), Arc::make_mut(&mut state.momentum));
    let mut space = vec![0.0; codec.block_len()];
    let mut lack = vec![0.0; codec.block_len()];
    for block in codec.blocks(span) {
        let sum = added.source.on(codec, &block, &mut space);
        let lack = &mut lack[..sum.len()];
        let theta = &mut thetas[block.values.clone()];
        let momentum = &mut momenta[block.values.clone()];
        let hat = &mut hat[block.values.clone()];

        let state = theta.iter_mut().zip(momentum).zip(&*hat);
        for ((((theta, v), hat), sum), lack) in state.zip(sum).zip(&mut *lack) {
            outer::step(spec, theta, v, (added.factor * sum) as f32);
            *lack = *theta - hat;
        }
        send(codec, &block, lack, hat, body);
    }
}

/// Codes `lack`, the difference Θ − Θ̂ on `block`, into `body`, and adds its decoded value to Θ̂.
#[inline(always)]
pub(super) fn send(codec: &Codec, block: &Block, lack: &[f32], hat: &mut [f32], body: &mut [u8]) {
    codec.encode_block(block, lack, body);
    codec.unpack_block(block, body, hat, |hat, sent| *hat = binary16::nearest(*hat + sent));
}

/// Failed merge.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("round {round} on fragment {fragment} was not merged: {error}")]
pub struct MergeFailure {
    /// The round.
    pub round: Round,
    /// The fragment.
    pub fragment: FragmentId,
    /// Unchanged state of the fragment.
    pub state: FragmentState,
    /// Reason.
    pub error: MergeError,
}

/// Reasons for a merge to fail.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum MergeError {
    /// The updates cannot be read from the tape again.
    #[error("the merged updates cannot be read from the tape")]
    Unread,
    /// There is no update.
    #[error("a merge needs at least one update")]
    Empty,
    /// There are two updates of one learner.
    #[error("two updates of learner {learner} in one merge")]
    Duplicate {
        /// The learner.
        learner: LearnerId,
    },
    /// A weight is not a positive number, or makes the sum of weights infinite.
    #[error("weight {weight} of learner {learner}: weights and their sum must be finite and above 0")]
    Weight {
        /// The learner.
        learner: LearnerId,
        /// Its weight.
        weight: f64,
    },
    /// Weights for experts are invalid, or there are too few for the segments.
    #[error(
        "the weights of learner {learner} for experts must be finite, not below 0, and one for each expert"
    )]
    Experts {
        /// The learner.
        learner: LearnerId,
    },
    /// A body was checked for a fragment of another shape.
    #[error("the update of learner {learner} is for another fragment: {actual} bytes instead of {expected}")]
    Body {
        /// The learner.
        learner: LearnerId,
        /// Bytes of a body of this fragment.
        expected: usize,
        /// Bytes of the update's body.
        actual: usize,
    },
    /// A given sum has other updates than this merge, or another plan.
    #[error("the sum of {actual} updates does not match the {expected} of this merge")]
    Sum {
        /// Updates of the merge.
        expected: usize,
        /// Updates in the sum.
        actual: usize,
    },
    /// Directions cancel out in a given sum, which must be computed again.
    #[error(
        "the directions of updates cancel out on segment {segment}, and the sum of their lengths is missing"
    )]
    Cancelled {
        /// The first such segment.
        segment: usize,
    },
    /// Θ, Θ̂ or the momentum does not have the length of all segments.
    #[error("a state of {actual} values for a fragment of {expected}")]
    State {
        /// Values in the fragment.
        expected: usize,
        /// Values in the state.
        actual: usize,
    },
    /// The learning rate is not finite or not above 0, or the momentum is not from 0 to below 1.
    #[error(
        "outer step with learning rate {} and momentum {}: need lr > 0, 0 ≤ momentum < 1",
        .spec.lr,
        .spec.momentum
    )]
    Outer {
        /// The invalid values.
        spec: OuterSpec,
    },
}

/// Reasons for which updates cannot be summed, or bytes are not a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SumError {
    /// The plan, the codec or the fragment differs.
    #[error("the sum is of another merge, or of another fragment")]
    Plan,
    /// An update would be in the sum twice.
    #[error("the update of learner {learner} is in the sum already")]
    Duplicate {
        /// The learner.
        learner: LearnerId,
    },
    /// An update was checked for a fragment of another shape, or lacks weights for experts.
    #[error("the update of learner {learner} is for another fragment")]
    Update {
        /// The learner.
        learner: LearnerId,
    },
    /// A sum is too large to be exact: the plan was not made for these updates.
    #[error("value {index} of the sum is too large to be exact")]
    Range {
        /// Index of the value; sums of lengths come first.
        index: usize,
    },
    /// The bytes are of another version of this program.
    #[error("the sum has layout {layout}, which this program does not know")]
    Layout {
        /// Layout number of the bytes.
        layout: u8,
    },
    /// There are too few or too many bytes.
    #[error("a sum of {actual} bytes instead of {expected}")]
    Length {
        /// Expected number of bytes.
        expected: usize,
        /// Actual number of bytes.
        actual: usize,
    },
    /// Learners are not in ascending order.
    #[error("learner {learner} is out of order in a sum")]
    Order {
        /// First learner in a wrong place.
        learner: LearnerId,
    },
}

/// Source of the sum on a segment.
#[derive(Clone, Debug)]
enum Source<'a> {
    /// Bodies and their factors, to be summed in whole numbers.
    Whole(Vec<(f64, &'a [u8])>),
    /// A finished sum, `[fragment_len]`.
    Summed(&'a [f64]),
    /// A finished sum on one segment, and its first value in the fragment.
    Flattened(usize, Vec<f64>),
}

/// Sum of the updates on a segment; Δ is `factor` times that sum.
#[derive(Clone, Debug)]
struct SegmentSum<'a> {
    source: Source<'a>,
    factor: f64,
    /// L2 norm of Δ.
    norm: f64,
}

impl Default for SegmentSum<'_> {
    /// An empty sum.
    fn default() -> Self {
        Self { source: Source::Whole(Vec::new()), factor: 0.0, norm: 0.0 }
    }
}

impl SegmentSum<'_> {
    /// Returns Δ with equal singular values, for a segment that is a matrix of `rows` rows.
    fn flattened(&self, codec: &Codec, span: Span, rows: usize) -> SegmentSum<'static> {
        let mut space = vec![0.0; codec.block_len()];
        let mut matrix = Vec::with_capacity(span.len);
        for block in codec.blocks(span) {
            let sum = self.source.on(codec, &block, &mut space);
            matrix.extend(sum.iter().map(|sum| self.factor * sum));
        }
        let matrix = crate::polar::flatten(&matrix, rows, self.norm);
        let norm = block::sum_squares(&matrix, |value| *value).sqrt();
        SegmentSum { source: Source::Flattened(span.value, matrix), factor: 1.0, norm }
    }
}

impl Source<'_> {
    /// Returns the sum on `block`; `space` is a buffer.
    ///
    /// Summing the bodies twice, once for the norm and once for the step, is faster than writing and reading 8 bytes
    /// a value.
    #[inline(always)]
    fn on<'s>(&'s self, codec: &Codec, block: &Block, space: &'s mut [f64]) -> &'s [f64] {
        let space = &mut space[..block.values.len()];
        match self {
            Self::Whole(bodies) => {
                space.fill(0.0);
                for (factor, body) in bodies {
                    codec.add_whole_block(block, body, *factor, space);
                }
            }
            Self::Summed(sums) => return &sums[block.values.clone()],
            Self::Flattened(first, sums) => {
                return &sums[block.values.start - first..block.values.end - first];
            }
        }
        space
    }
}

/// Returns the squared norm of a sum on `span`.
#[cfg_attr(feature = "simd", multiversion::multiversion(targets = "simd"))]
fn square(codec: &Codec, span: Span, source: &Source<'_>) -> f64 {
    let mut space = vec![0.0; codec.block_len()];
    let mut square = 0.0;
    for block in codec.blocks(span) {
        square += block::sum_squares(source.on(codec, &block, &mut space), |sum| *sum);
    }
    square
}

/// Adds `factor` times a body to the whole numbers `sums`, `[fragment_len]`, on `span`.
#[cfg_attr(feature = "simd", multiversion::multiversion(targets = "simd"))]
fn add_whole(codec: &Codec, span: Span, body: &[u8], factor: f64, sums: &mut [f64]) {
    for block in codec.blocks(span) {
        codec.add_whole_block(&block, body, factor, &mut sums[block.values.clone()]);
    }
}

#[cfg(test)]
mod tests;
