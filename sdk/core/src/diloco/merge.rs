//! Merging the updates of one fragment and taking the outer step.

mod error;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::quant::{Block, Span, fragment_len};
use super::{
    CheckedBody, Codec, ExpertWeights, FragmentId, LearnerId, MergeClass, OuterSpec, Round, Segment, Version,
};
use super::{block, checksum, halves, outer};
pub use error::{MergeError, MergeFailure};

/// How updates are merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum MergeRule {
    /// Each segment as its [`MergeClass`] says.
    #[default]
    Radial,
    /// Weighted mean everywhere.
    Mean,
}

impl MergeRule {
    /// All rules that there are.
    pub const ALL: [Self; 2] = [Self::Radial, Self::Mean];

    /// Its name in settings, reports and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Radial => "radial",
            Self::Mean => "mean",
        }
    }
}

/// What the syncer holds of one fragment. To keep a copy costs nothing: a merge copies what is shared then.
#[derive(Clone, Debug, PartialEq)]
pub struct FragmentState {
    /// Names the content of `hat`.
    pub version: Version,
    /// Θ, the master, `[fragment_len]`.
    pub theta: Arc<Vec<f32>>,
    /// Θ̂, what the learners hold, `[fragment_len]`, each value as [`halves::nearest`] gives it.
    pub hat: Arc<Vec<f32>>,
    /// Outer momentum, `[fragment_len]`.
    pub momentum: Arc<Vec<f32>>,
}

impl FragmentState {
    /// The first state of a fragment: Θ = `theta`, Θ̂ the same in 16 bits, version 0, no momentum.
    #[must_use]
    pub fn new(theta: Vec<f32>) -> Self {
        let momentum = Arc::new(vec![0.0; theta.len()]);
        let mut hat = theta.clone();
        halves::round(&mut hat);
        Self { version: Version(0), theta: Arc::new(theta), hat: Arc::new(hat), momentum }
    }

    /// The same with Θ in the place of Θ̂, of which what merges lead Θ to does not depend: to keep it for long takes 8
    /// bytes a parameter and not 12.
    #[must_use]
    pub fn without_hat(&self) -> Self {
        Self { hat: Arc::clone(&self.theta), ..self.clone() }
    }
}

/// One learner's update.
#[derive(Clone, Debug, PartialEq)]
pub struct Weighted {
    /// Who sent it; unique within a merge.
    pub learner: LearnerId,
    /// Its weight against the others', finite and above 0.
    pub weight: f64,
    /// Its weight for each expert of the fragment, `[experts]`, finite and not below 0: what counts on their segments.
    pub experts: Vec<f64>,
    /// Steps that it may be as long as, at least 1.
    pub steps: u32,
    /// Coded `Θ̂ − θ`.
    pub body: CheckedBody,
}

impl Weighted {
    /// How far a norm of it counts on a segment, where that of one step counts up to `radius`.
    pub(super) fn counted(&self, norm: f64, radius: f64) -> f64 {
        norm.min(radius * f64::from(self.steps.max(1)).sqrt())
    }
}

/// All that one merge needs, so that it can run anywhere.
#[derive(Clone, Debug)]
pub struct MergeJob {
    /// The round.
    pub round: Round,
    /// The fragment.
    pub fragment: FragmentId,
    /// Its state before.
    pub state: FragmentState,
    /// The weight of those who sent nothing, not below 0: as if they had sent zeros.
    pub absent: f64,
    /// The same for each expert of the fragment, `[experts]`, not below 0.
    pub absent_experts: Vec<f64>,
    /// The updates, in any order. Where learners keep their progress, it is the same from whatever version they held;
    /// else all are relative to `state.hat`.
    pub updates: Vec<Weighted>,
    /// The fragment's segments.
    pub segments: Vec<Segment>,
    /// How bodies are coded.
    pub codec: Codec,
    /// How updates are merged.
    pub rule: MergeRule,
    /// How far the norm of an update of one step counts on each segment, `[segments]`, each above 0; of one of n steps
    /// it counts √n times as far. Empty for no bound.
    pub radii: Vec<f64>,
    /// The outer step.
    pub outer: OuterSpec,
    /// The version that results.
    pub next: Version,
}

/// What a merge led to.
#[derive(Clone, Debug, PartialEq)]
pub struct MergeOutcome {
    /// The round.
    pub round: Round,
    /// The fragment.
    pub fragment: FragmentId,
    /// Its state after.
    pub state: FragmentState,
    /// Coded change of Θ̂, for every learner.
    pub body: Vec<u8>,
    /// [`checksum`] of `body`.
    pub checksum: u64,
    /// [`halves::digest`] of the new Θ̂.
    pub digest: u64,
    /// L2 norm of the merged delta, before the outer step.
    pub norm: f64,
}

/// Below this length a weighted sum of unit vectors has no direction worth following: the updates
/// cancel out.
const DIRECTION_MIN: f64 = 1e-6;

impl MergeJob {
    /// Merges the updates to Δ, steps Θ against it, and codes what learners lack of the new Θ.
    ///
    /// Per segment, with `v_m` the decoded updates, `w_m` the weights and φ(x) = x/‖x‖, φ(0) = 0:
    /// - [`MergeClass::Mean`]: `Δ = Σ w_m v_m / Σ w_m`;
    /// - [`MergeClass::Radial`]: `Δ = (Σ w_m ‖v_m‖ / Σ w_m) φ(Σ w_m φ(v_m))`, so that Δ is as long as
    ///   the updates are, however nearly orthogonal they are. If they cancel out, the weighted mean.
    ///
    /// With `absent` that much is added to each Σ w_m by which is divided.
    ///
    /// On the segments of an expert the weights are those for it. Where they are all 0 nobody trained it, and Δ is 0.
    ///
    /// With `radii` each ‖v_m‖ counts as `r_m = min(‖v_m‖, radius · √steps_m)`, and `v_m` as `r_m φ(v_m)`: a merge is
    /// hardly longer for an update that is.
    ///
    /// Then the outer step, `body = encode(Θ − Θ̂)`, and `Θ̂ = nearest(Θ̂ + decode(body))`, see
    /// [`halves::nearest`]. What either rounding left over stays in Θ − Θ̂ and goes out with the next merge.
    ///
    /// Sums are in `f64` by ascending learner: the result is the same to the bit for any order of
    /// `updates` and on any machine. One learner's update is its own merge, exactly.
    ///
    /// # Errors
    /// [`MergeFailure`] with each variant of [`MergeError`], and the state as it was.
    pub fn run(mut self) -> Result<MergeOutcome, Box<MergeFailure>> {
        self.updates.sort_by_key(|update| update.learner);
        if let Err(error) = self.check() {
            let Self { round, fragment, state, .. } = self;
            return Err(Box::new(MergeFailure { round, fragment, state, error }));
        }
        let mut body = vec![0; self.codec.body_bytes(&self.segments)];
        let mut square = 0.0;
        for (i, (segment, span)) in self.segments.iter().zip(self.codec.spans(&self.segments)).enumerate() {
            let norms: Vec<f64> = self.updates.iter().map(|update| update.body.squares()[i].sqrt()).collect();
            let radial = self.rule == MergeRule::Radial && segment.merge == MergeClass::Radial;
            let radius = self.radii.get(i).copied().unwrap_or(f64::INFINITY);
            let weights = self.weights(segment);
            let (updates, norm) = factors(&self.codec, span, &self.updates, &weights, &norms, radius, radial);
            square += norm * norm;
            advance(&self.codec, span, &updates, &self.outer, &mut self.state, &mut body);
        }
        self.state.version = self.next;
        let Self { round, fragment, state, .. } = self;
        let (checksum, digest) = (checksum(&body), halves::digest(&state.hat));
        Ok(MergeOutcome { round, fragment, state, body, checksum, digest, norm: square.sqrt() })
    }

    /// What the updates weigh on `segment`.
    fn weights(&self, segment: &Segment) -> ExpertWeights {
        match segment.expert.map(usize::from) {
            None => {
                let weights = self.updates.iter().map(|update| update.weight).collect();
                ExpertWeights { weights, absent: self.absent }
            }
            Some(expert) => {
                let weights = self.updates.iter().map(|update| update.experts[expert]).collect();
                ExpertWeights { weights, absent: self.absent_experts[expert] }
            }
        }
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
        for &Weighted { learner, weight, .. } in &self.updates {
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
        for Weighted { learner, body, .. } in &self.updates {
            let actual = body.bytes().len();
            if actual != expected || body.squares().len() != self.segments.len() {
                return Err(MergeError::Body { learner: *learner, expected, actual });
            }
        }
        Ok(())
    }
}

/// Factors and bodies such that `Δ = Σ factor · body` on `span`, given the norm of each update there and how far
/// that of one step counts; and the norm of Δ.
fn factors<'a>(
    codec: &Codec,
    span: Span,
    updates: &'a [Weighted],
    ExpertWeights { weights, absent }: &ExpertWeights,
    norms: &[f64],
    radius: f64,
    radial: bool,
) -> (Vec<(f64, &'a [u8])>, f64) {
    let total = absent + weights.iter().sum::<f64>();
    if total <= 0.0 {
        return (Vec::new(), 0.0);
    }
    let shares = weights.iter().map(|weight| weight / total);
    let bodies = updates.iter().map(|update| update.body.bytes());
    let radii: Vec<f64> =
        updates.iter().zip(norms).map(|(update, &norm)| update.counted(norm, radius)).collect();
    if radial && updates.len() > 1 {
        let unit = |(share, &norm): (f64, &f64)| if norm > 0.0 { share / norm } else { 0.0 };
        let mut units: Vec<(f64, &[u8])> = shares.clone().zip(norms).map(unit).zip(bodies.clone()).collect();
        let direction = combined_square(codec, span, &units).sqrt();
        if direction > DIRECTION_MIN {
            let radius: f64 = shares.zip(&radii).map(|(share, counted)| share * counted).sum();
            for (factor, _) in &mut units {
                *factor *= radius / direction;
            }
            return (units, radius);
        }
    }
    // What counts in full is not divided and multiplied, so that one update is its own merge, exactly.
    let shorter = |(&counted, &norm): (&f64, &f64)| if counted < norm { counted / norm } else { 1.0 };
    let shares = shares.zip(radii.iter().zip(norms).map(shorter)).map(|(share, shorter)| share * shorter);
    let mean: Vec<(f64, &[u8])> = shares.zip(bodies).collect();
    let norm = match &radii[..] {
        [counted] if *absent == 0.0 => *counted,
        _ => combined_square(codec, span, &mean).sqrt(),
    };
    (mean, norm)
}

/// `‖Σ factor · update‖²` on `span`.
#[cfg_attr(feature = "simd", multiversion::multiversion(targets = "simd"))]
fn combined_square(codec: &Codec, span: Span, updates: &[(f64, &[u8])]) -> f64 {
    let mut sums = vec![0.0; codec.block_len()];
    let mut square = 0.0;
    for block in codec.blocks(span) {
        let sums = combine(codec, &block, updates, &mut sums);
        square += block::sum_squares(sums, |sum| *sum);
    }
    square
}

/// Merges `updates` on `span`, steps, and codes into `body`.
#[cfg_attr(feature = "simd", multiversion::multiversion(targets = "simd"))]
fn advance(
    codec: &Codec,
    span: Span,
    updates: &[(f64, &[u8])],
    spec: &OuterSpec,
    state: &mut FragmentState,
    body: &mut [u8],
) {
    let hat = Arc::make_mut(&mut state.hat);
    let (thetas, momenta) = (Arc::make_mut(&mut state.theta), Arc::make_mut(&mut state.momentum));
    let mut sums = vec![0.0; codec.block_len()];
    let mut lack = vec![0.0; codec.block_len()];
    for block in codec.blocks(span) {
        let delta = combine(codec, &block, updates, &mut sums);
        let lack = &mut lack[..delta.len()];
        let theta = &mut thetas[block.values.clone()];
        let momentum = &mut momenta[block.values.clone()];
        let hat = &mut hat[block.values.clone()];

        let state = theta.iter_mut().zip(momentum).zip(&*hat);
        for ((((theta, v), hat), delta), lack) in state.zip(delta).zip(&mut *lack) {
            outer::step(spec, theta, v, *delta as f32);
            *lack = *theta - hat;
        }
        send(codec, &block, lack, hat, body);
    }
}

/// Codes what Θ̂ of `block` lacks of Θ into `body`, and lets Θ̂ follow as far as that goes.
#[inline(always)]
pub(super) fn send(codec: &Codec, block: &Block, lack: &[f32], hat: &mut [f32], body: &mut [u8]) {
    codec.encode_block(block, lack, body);
    codec.unpack_block(block, body, hat, |hat, sent| *hat = halves::nearest(*hat + sent));
}

/// `Σ factor · update` on `block`, in `sums`.
#[inline(always)]
fn combine<'a>(codec: &Codec, block: &Block, updates: &[(f64, &[u8])], sums: &'a mut [f64]) -> &'a [f64] {
    let sums = &mut sums[..block.values.len()];
    sums.fill(0.0);
    for (factor, body) in updates {
        codec.add_block(block, body, *factor, sums);
    }
    sums
}

#[cfg(test)]
mod tests;
