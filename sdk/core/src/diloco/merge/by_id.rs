//! The arithmetic of merges on tapes of before sums were exact, kept so that those are computed again to the bit.

use super::plan::DIRECTION_MIN;
use super::source::{Added, Source, square};
use super::{ExpertWeights, MergeJob};
use crate::diloco::quant::Span;

/// The updates of `job` on its segment `at`, added up one after the other as `Δ = Σ factor · body`. Where directions
/// cancel out, Δ is the weighted mean.
pub(super) fn added(job: &MergeJob, at: usize, span: Span) -> Added<'_> {
    let (segment, updates) = (&job.segments[at], &job.updates);
    let ExpertWeights { weights, absent } = job.weights(segment);
    let total = absent + weights.iter().sum::<f64>();
    if total <= 0.0 {
        return Added { source: Source::Rounded(Vec::new()), factor: 1.0, norm: 0.0 };
    }
    let radius = job.radii.get(at).copied().unwrap_or(f64::INFINITY);
    let norms: Vec<f64> = updates.iter().map(|update| update.body.squares()[at].sqrt()).collect();
    let radii: Vec<f64> =
        updates.iter().zip(&norms).map(|(update, &norm)| update.counted(norm, radius)).collect();
    let shares = weights.iter().map(|weight| weight / total);
    let bodies = updates.iter().map(|update| update.body.bytes());
    let norm_of = |source: &Source<'_>| square(&job.codec, span, source).sqrt();
    if job.is_radial(segment) && updates.len() > 1 {
        let unit = |(share, &norm): (f64, &f64)| if norm > 0.0 { share / norm } else { 0.0 };
        let mut units: Vec<_> = shares.clone().zip(&norms).map(unit).zip(bodies.clone()).collect();
        let direction = norm_of(&Source::Rounded(units.clone()));
        if direction > DIRECTION_MIN {
            let norm: f64 = shares.zip(&radii).map(|(share, counted)| share * counted).sum();
            units.iter_mut().for_each(|(factor, _)| *factor *= norm / direction);
            return Added { source: Source::Rounded(units), factor: 1.0, norm };
        }
    }
    let shorter = |(&counted, &norm): (&f64, &f64)| if counted < norm { counted / norm } else { 1.0 };
    let shares = shares.zip(radii.iter().zip(&norms).map(shorter)).map(|(share, shorter)| share * shorter);
    let source = Source::Rounded(shares.zip(bodies).collect());
    let norm = match &radii[..] {
        [counted] if absent == 0.0 => *counted,
        _ => norm_of(&source),
    };
    Added { source, factor: 1.0, norm }
}
