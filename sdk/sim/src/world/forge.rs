//! Forged bodies of updates, and the forger's tools.

use std::collections::BTreeMap;

use super::{Lie, Rng};
use archipelago_core::diloco::{Codec, Fragments, Segment, VALUE_ABS_MAX, checksum};
use archipelago_core::wire::{Code, FragmentId, InnerSpec, Message, RunSpec, Update};

/// Cosine of a drifting learner's updates to the direction that all drifting learners share.
const DRIFT: f64 = 0.5;
/// Random stream of that direction, the same in every process of a run.
const DRIFT_STREAM: u64 = 0xd21f;
/// Honest updates of each fragment that a stale learner sends before it repeats the last of them for ever. The very
/// first are from the warm-up and close to zero.
const FRESH: usize = 4;
/// Share of the longest accepted norm that a forger aims at; coding adds a little.
const NEARLY: f64 = 0.97;
/// Accepted norm of an update relative to AdamW's largest, as the syncer has it.
const REACH_SLACK: f64 = 4.0;

/// State that a forger keeps between updates.
#[derive(Debug)]
pub(super) struct Memory {
    rng: Rng,
    /// Number of honest updates sent for each fragment, and the body of the last.
    kept: BTreeMap<FragmentId, (usize, Vec<u8>)>,
}

impl Memory {
    pub(super) fn new(rng: Rng) -> Self {
        Self { rng, kept: BTreeMap::new() }
    }

    /// Keeps the body of `update` while it is one of the first; later replaces it with the kept one.
    fn repeat(&mut self, update: &mut Update) {
        let (count, body) = self.kept.entry(update.fragment).or_default();
        if *count < FRESH {
            (*count, *body) = (*count + 1, update.body.clone());
        }
        update.body.clone_from(body);
    }
}

/// Inputs of a forger.
pub(super) struct Craft<'a> {
    pub(super) run: &'a RunSpec,
    /// `None` before the run is joined; then there is nothing to forge.
    pub(super) fragments: Option<&'a Fragments>,
    /// The latest body of each fragment from an honest learner.
    pub(super) overheard: &'a BTreeMap<FragmentId, Vec<u8>>,
    pub(super) memory: &'a mut Memory,
}

impl Craft<'_> {
    /// Returns the message that a learner with `lie` sends instead of `message`.
    pub(super) fn tell(&mut self, lie: Lie, message: Message) -> Option<Message> {
        if lie.swallows(&message) {
            return None;
        }
        Some(match message {
            Message::Progress(progress) => Message::Progress(lie.report(progress)),
            Message::Update(mut update) => {
                self.forge(lie, &mut update);
                if lie.boasts_of_steps() {
                    (update.steps, update.tokens) = (u32::MAX, u64::MAX);
                }
                Message::Update(update)
            }
            other => other,
        })
    }

    /// Applies `lie` to the body of `update`, which the learner's replica coded.
    fn forge(&mut self, lie: Lie, update: &mut Update) {
        let segments = self.fragments.and_then(|fragments| fragments.segments(update.fragment));
        let Some(segments) = segments else { return };
        let codec = Codec::new(&self.run.exchange).expect("the syncer uses the same codec");
        let mut values = codec.decode(segments, &update.body).expect("its own replica coded it");
        let overheard = self.overheard.get(&update.fragment);
        match lie {
            Lie::Rides => update.body.fill(0),
            Lie::Stale => self.memory.repeat(update),
            Lie::Copies => update.body = overheard.unwrap_or(&update.body).clone(),
            Lie::Scales => self.raise_scales(&codec, segments, &values, update),
            _ => {
                let honest = overheard.and_then(|body| codec.decode(segments, body).ok());
                self.bend(lie, segments, &mut values, honest.as_deref(), update.steps);
                update.body = codec.encode(segments, &values);
            }
        }
        update.checksum = checksum(&update.body);
    }

    /// Applies `lie` to the trained `values`; `honest` is the latest update of an honest learner.
    fn bend(
        &mut self,
        lie: Lie,
        segments: &[Segment],
        values: &mut [f32],
        honest: Option<&[f32]>,
        steps: u32,
    ) {
        match lie {
            Lie::Times(factor) => scale(values, f64::from(factor)),
            Lie::Reaches => {
                let reach = NEARLY * reach(&self.run.inner, steps, values.len());
                stretch(values, reach);
                scale(values, -1.0);
            }
            Lie::Noise | Lie::Claims => {
                for part in parts(segments, values.len()) {
                    let values = &mut values[part];
                    let long = norm(values);
                    values.fill_with(|| self.memory.rng.bell());
                    stretch(values, long);
                }
            }
            Lie::Sandbags => {
                let Some(honest) = honest else { return };
                for part in parts(segments, values.len()) {
                    stretch(&mut values[part.clone()], norm(&honest[part]));
                }
            }
            Lie::Drifts => {
                for (part, segment) in parts(segments, values.len()).zip(segments) {
                    let stream = DRIFT_STREAM << 32 | u64::from(segment.start);
                    lean(&mut values[part], Rng::stream(self.run.seed, stream));
                }
            }
            _ => {}
        }
    }

    /// Raises the scale of each segment's first block until the update has the longest accepted norm, and each segment
    /// its part of it.
    fn raise_scales(&self, codec: &Codec, segments: &[Segment], values: &[f32], update: &mut Update) {
        if codec.code() == Code::F32 {
            return;
        }
        let reach = NEARLY * reach(&self.run.inner, update.steps, values.len());
        let mut block = 0;
        for part in parts(segments, values.len()) {
            let aim = reach * (part.len() as f64 / values.len() as f64).sqrt();
            let first = norm(&values[part.start..part.end.min(part.start + codec.block_len())]);
            let field = &mut update.body[2 * block..2 * block + 2];
            block += part.len().div_ceil(codec.block_len());
            if first > 0.0 {
                let rest = (norm(&values[part]).powi(2) - first.powi(2)).max(0.0);
                let factor = ((aim * aim - rest).max(0.0).sqrt() / first).max(1.0);
                // A scale is the upper half of an `f32`.
                let bits = u16::from_le_bytes([field[0], field[1]]);
                let raised = f64::from(f32::from_bits(u32::from(bits) << 16)) * factor;
                let raised = raised.min(VALUE_ABS_MAX.into()) as f32;
                field.copy_from_slice(&((raised.to_bits() >> 16) as u16).to_le_bytes());
            }
        }
    }
}

/// Returns the range of each segment's values within the fragment.
fn parts(segments: &[Segment], len: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    segments.iter().scan(0, move |next, segment| {
        let start = *next;
        *next = (start + segment.len as usize).min(len);
        Some(start..*next)
    })
}

/// Returns the largest norm that a syncer accepts for `steps` steps on `len` values, see `rounds/admit.rs`.
fn reach(inner: &InnerSpec, steps: u32, len: usize) -> f64 {
    let [beta1, beta2] = [inner.beta1, inner.beta2].map(f64::from);
    let step = f64::from(inner.lr_max) * ((1.0 - beta1) / (1.0 - beta2).sqrt()).max(1.0);
    REACH_SLACK * step * f64::from(steps) * (len as f64).sqrt()
}

fn norm(values: &[f32]) -> f64 {
    values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt()
}

fn scale(values: &mut [f32], factor: f64) {
    values.iter_mut().for_each(|value| *value = (f64::from(*value) * factor) as f32);
}

/// Scales `values` to the norm `long`; zeros stay zeros.
fn stretch(values: &mut [f32], long: f64) {
    let is = norm(values);
    if is > 0.0 {
        scale(values, long / is);
    }
}

/// Turns `values` towards a random direction and keeps their norm.
fn lean(values: &mut [f32], mut rng: Rng) {
    let long = norm(values);
    if long == 0.0 {
        return;
    }
    let mut direction: Vec<f32> = values.iter().map(|_| rng.bell()).collect();
    stretch(&mut direction, DRIFT);
    scale(values, (1.0 - DRIFT * DRIFT).sqrt() / long);
    values.iter_mut().zip(&direction).for_each(|(value, towards)| *value += towards);
    stretch(values, long);
}

#[cfg(test)]
mod tests;
