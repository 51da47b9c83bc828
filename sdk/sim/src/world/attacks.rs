//! Attacks of learners that follow the protocol: forged reports and forged update bodies.

use std::collections::BTreeMap;

use archipelago_core::diloco::{Codec, Fragments, Segment, VALUE_ABS_MAX, checksum};
use archipelago_core::wire::{Code, FragmentId, InnerSpec, Message, Progress, RunSpec, Update};
use serde::{Deserialize, Serialize};

use super::Rng;

/// Cosine between a drifting learner's updates and the direction that all drifting learners share.
const DRIFT: f64 = 0.5;
/// Random stream of the shared drift direction. It is the same for all learners of a run.
const DRIFT_STREAM: u64 = 0xd21f;
/// Number of honest updates of each fragment that a stale learner sends before it repeats the last one forever. The
/// very first updates are close to zero because of the warm-up.
const FRESH: usize = 4;
/// Fraction of the largest accepted norm that forged updates have before coding, which may add to it.
const NEARLY: f64 = 0.97;
/// Largest accepted norm of an update relative to AdamW's largest possible one, as in the syncer.
const REACH_SLACK: f64 = 4.0;

/// State that a forging learner keeps between updates.
#[derive(Debug)]
pub(super) struct ForgerState {
    rng: Rng,
    /// For each fragment, the number of honest updates sent and the body of the last one.
    kept: BTreeMap<FragmentId, (usize, Vec<u8>)>,
}

impl ForgerState {
    pub(super) fn new(rng: Rng) -> Self {
        Self { rng, kept: BTreeMap::new() }
    }

    /// Stores the body of `update` if it is one of the first [`FRESH`]. Later replaces the body by the stored one.
    fn repeat(&mut self, update: &mut Update) {
        let (count, body) = self.kept.entry(update.fragment).or_default();
        if *count < FRESH {
            (*count, *body) = (*count + 1, update.body.clone());
        }
        update.body.clone_from(body);
    }
}

/// Inputs for forging a message.
pub(super) struct Forger<'a> {
    pub(super) run: &'a RunSpec,
    /// Fragments of the run; `None` before the learner has joined, when there is nothing to forge.
    pub(super) fragments: Option<&'a Fragments>,
    /// Latest body of each fragment from any honest learner.
    pub(super) overheard: &'a BTreeMap<FragmentId, Vec<u8>>,
    pub(super) state: &'a mut ForgerState,
}

impl Forger<'_> {
    /// Returns the message that a learner with `attack` sends instead of `message`, or `None` if it sends nothing.
    pub(super) fn forge_message(&mut self, attack: Attack, message: Message) -> Option<Message> {
        if attack.suppresses(&message) {
            return None;
        }
        Some(match message {
            Message::Progress(progress) => Message::Progress(attack.report(progress)),
            Message::Update(mut update) => {
                self.forge(attack, &mut update);
                if attack.claims_all_steps() {
                    (update.steps, update.tokens) = (u32::MAX, u64::MAX);
                }
                Message::Update(update)
            }
            other => other,
        })
    }

    /// Applies `attack` to the body of `update`, which the learner's own replica coded.
    fn forge(&mut self, attack: Attack, update: &mut Update) {
        let segments = self.fragments.and_then(|fragments| fragments.segments(update.fragment));
        let Some(segments) = segments else { return };
        let codec = Codec::new(&self.run.exchange).expect("the syncer uses the same codec");
        let mut values = codec.decode(segments, &update.body).expect("its own replica coded it");
        let overheard = self.overheard.get(&update.fragment);
        match attack {
            Attack::Rides => update.body.fill(0),
            Attack::Stale => self.state.repeat(update),
            Attack::Copies => update.body = overheard.unwrap_or(&update.body).clone(),
            Attack::Scales => self.raise_scales(&codec, segments, &values, update),
            _ => {
                let honest = overheard.and_then(|body| codec.decode(segments, body).ok());
                self.change_values(attack, segments, &mut values, honest.as_deref(), update.steps);
                update.body = codec.encode(segments, &values);
            }
        }
        update.checksum = checksum(&update.body);
    }

    /// Applies `attack` to the honest `values` of an update. `honest` is the latest update of an honest learner.
    fn change_values(
        &mut self,
        attack: Attack,
        segments: &[Segment],
        values: &mut [f32],
        honest: Option<&[f32]>,
        steps: u32,
    ) {
        match attack {
            Attack::Times(factor) => scale(values, f64::from(factor)),
            Attack::Reaches => {
                let reach = NEARLY * reach(&self.run.inner, steps, values.len());
                scale_to_norm(values, reach);
                scale(values, -1.0);
            }
            Attack::Noise | Attack::Claims => {
                for part in parts(segments, values.len()) {
                    let values = &mut values[part];
                    let norm_before = norm(values);
                    values.fill_with(|| self.state.rng.normal());
                    scale_to_norm(values, norm_before);
                }
            }
            Attack::Sandbags => {
                let Some(honest) = honest else { return };
                for part in parts(segments, values.len()) {
                    scale_to_norm(&mut values[part.clone()], norm(&honest[part]));
                }
            }
            Attack::Drifts => {
                for (part, segment) in parts(segments, values.len()).zip(segments) {
                    let stream = DRIFT_STREAM << 32 | u64::from(segment.start);
                    turn(&mut values[part], Rng::stream(self.run.seed, stream));
                }
            }
            _ => {}
        }
    }

    /// Raises the scale of each segment's first block so that the update has the largest accepted norm, distributed
    /// over the segments according to their size.
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

/// Returns the largest norm that a syncer accepts for `steps` steps on `len` values; see `rounds/admit.rs`.
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

/// Scales `values` to the norm `target`. Zeros stay zeros.
fn scale_to_norm(values: &mut [f32], target: f64) {
    let before = norm(values);
    if before > 0.0 {
        scale(values, target / before);
    }
}

/// Turns `values` towards a random direction without changing their norm.
fn turn(values: &mut [f32], mut rng: Rng) {
    let norm_before = norm(values);
    if norm_before == 0.0 {
        return;
    }
    let mut direction: Vec<f32> = values.iter().map(|_| rng.normal()).collect();
    scale_to_norm(&mut direction, DRIFT);
    scale(values, (1.0 - DRIFT * DRIFT).sqrt() / norm_before);
    values.iter_mut().zip(&direction).for_each(|(value, towards)| *value += towards);
    scale_to_norm(values, norm_before);
}

/// Attack of a learner. Its messages are well-formed, so none is refused for its form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attack {
    /// Reports a step time of one hour and sends no updates.
    Crawls,
    /// Reports a step time of about a hundredth of a millisecond and sends no updates.
    Boasts,
    /// Sends no updates.
    Mute,
    /// Reports the largest possible number of trained tokens and sends no updates.
    Inflates,
    /// Sends zeros as the progress of the largest possible number of steps, and reports all its leases as completed.
    Rides,
    /// Multiplies its updates by this factor; a negative one reverses them.
    Times(i32),
    /// Reverses its updates and scales them to the largest norm that the syncer accepts for their steps.
    Reaches,
    /// Sends noise that has the norm of its honest progress on each segment.
    Noise,
    /// Sends a few honest updates of each fragment, then repeats the last one as if it were new.
    Stale,
    /// Sends copies of the latest update of an honest learner on the same fragment.
    Copies,
    /// Sends noise and claims the largest possible number of steps for it.
    Claims,
    /// Scales its updates to the norm of an honest learner's, however little it trained. In the experiments it takes
    /// one step in ten.
    Sandbags,
    /// Keeps the norm of its updates, but turns them to a cosine of ½ with a direction that all learners with this
    /// attack share.
    Drifts,
    /// Raises the scale of each segment's first block so that the update has the largest accepted norm. All codes stay
    /// the same. Has no effect on uncoded values.
    Scales,
}

/// Step time that boasting learners report, in milliseconds.
const BOAST_MS: f32 = 0.011;
/// Step time that a learner with [`Attack::Crawls`] reports, in milliseconds.
const CRAWL_MS: f32 = 3_600_000.0;

impl Attack {
    /// Returns true if a learner with this attack does not send `message`.
    pub(super) fn suppresses(self, message: &Message) -> bool {
        matches!(message, Message::Update(_) | Message::NoUpdate { .. })
            && matches!(self, Self::Crawls | Self::Boasts | Self::Mute | Self::Inflates)
    }

    /// Returns true if updates with this attack claim the largest possible number of steps.
    pub(super) fn claims_all_steps(self) -> bool {
        matches!(self, Self::Rides | Self::Claims)
    }

    /// Returns the report that a learner with this attack sends instead of `progress`.
    pub(super) fn report(self, progress: Progress) -> Progress {
        let done = |leases: Vec<_>| leases.into_iter().map(|(lease, _)| (lease, u32::MAX)).collect();
        match self {
            Self::Crawls => Progress { step_ms: CRAWL_MS, ..progress },
            Self::Boasts => Progress { step_ms: BOAST_MS, ..progress },
            Self::Inflates => Progress { step_ms: BOAST_MS, tokens: u64::MAX, ..progress },
            Self::Rides | Self::Claims => {
                let leases = done(progress.leases);
                Progress { step_ms: BOAST_MS, tokens: u64::MAX, leases, ..progress }
            }
            _ => progress,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use archipelago_core::diloco::{Layout, MergeClass, Tensor};
    use archipelago_core::wire::{Message, Progress, RunId, Serial, Version};

    use super::*;
    use crate::world::Toy;

    const LENS: [u32; 2] = [640, 320];
    const STEPS: u32 = 10;

    /// Forgery of updates of one fragment with two segments, in 4-bit codes and blocks of 16 values.
    struct ForgeryCase {
        run: RunSpec,
        fragments: Fragments,
        codec: Codec,
        overheard: BTreeMap<FragmentId, Vec<u8>>,
        state: ForgerState,
    }

    impl ForgeryCase {
        fn new() -> Self {
            let tensor =
                |len: &u32| Tensor { name: format!("{len}"), rows: 1, cols: *len, merge: MergeClass::Radial };
            let layout = Layout::new(LENS.iter().map(tensor).collect()).unwrap();
            let (run, _) = Toy::run(1, 1, 100);
            let codec = Codec::new(&run.exchange).unwrap();
            let fragments = Fragments::plan(&layout, NonZeroU16::MIN);
            Self { run, fragments, codec, overheard: BTreeMap::new(), state: ForgerState::new(Rng::new(7)) }
        }

        fn segments(&self) -> &[Segment] {
            self.fragments.segments(FragmentId(0)).unwrap()
        }

        /// Returns a random honest update with values of about `size`.
        fn honest(&self, seed: u64, size: f32) -> Update {
            let mut rng = Rng::new(seed);
            let values: Vec<f32> = (0..LENS.iter().sum()).map(|_| size * rng.normal()).collect();
            let body = self.codec.encode(self.segments(), &values);
            let checksum = checksum(&body);
            let (fragment, serial, base) = (FragmentId(0), Serial(1), Version(0));
            Update {
                run: RunId(1),
                fragment,
                serial,
                base,
                steps: STEPS,
                tokens: 320,
                body,
                checksum,
                seen: Vec::new(),
            }
        }

        fn forge_message(&mut self, attack: Attack, message: Message) -> Vec<Message> {
            let Self { run, fragments, overheard, state, .. } = self;
            let mut forger = Forger { run, fragments: Some(fragments), overheard, state };
            forger.forge_message(attack, message).into_iter().collect()
        }

        fn forge(&mut self, attack: Attack, update: &Update) -> Update {
            let messages = self.forge_message(attack, Message::Update(update.clone()));
            let [Message::Update(forged)] = &messages[..] else { panic!("{messages:?}") };
            assert_eq!(forged.checksum, checksum(&forged.body), "{attack:?}");
            forged.clone()
        }

        /// Returns the decoded values of each segment of an update. Panics if the body is malformed.
        fn values(&self, update: &Update) -> [Vec<f32>; 2] {
            let mut values = self.codec.decode(self.segments(), &update.body).unwrap();
            let second = values.split_off(LENS[0] as usize);
            [values, second]
        }

        fn norms(&self, update: &Update) -> [f64; 2] {
            self.values(update).map(|values| norm(&values))
        }

        fn cosines(&self, one: &Update, other: &Update) -> [f64; 2] {
            let ([a, b], [c, d]) = (self.values(one), self.values(other));
            let cosine = |one: &[f32], other: &[f32]| {
                let dot: f64 = one.iter().zip(other).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
                dot / norm(one) / norm(other)
            };
            [cosine(&a, &c), cosine(&b, &d)]
        }

        fn reach(&self) -> f64 {
            reach(&self.run.inner, STEPS, LENS.iter().sum::<u32>() as usize)
        }
    }

    /// Returns true if both values are within ten percent of the expected ones.
    fn near(found: [f64; 2], expected: [f64; 2]) -> bool {
        found.iter().zip(expected).all(|(found, expected)| (found / expected - 1.0).abs() < 0.1)
    }

    #[test]
    fn times_scales_and_turns() {
        let mut forge = ForgeryCase::new();
        let honest = forge.honest(1, 0.01);
        let [first, second] = forge.values(&honest);
        let turned = forge.forge(Attack::Times(-1), &honest);
        let negative = |values: &[f32]| values.iter().map(|value| -value).collect::<Vec<f32>>();
        assert_eq!(forge.values(&turned), [negative(&first), negative(&second)]);
        let long = forge.forge(Attack::Times(100), &honest);
        assert!(near(forge.norms(&long), forge.norms(&honest).map(|norm| 100.0 * norm)));
        assert!(forge.cosines(&long, &honest).iter().all(|cosine| *cosine > 0.99));
    }

    #[test]
    fn reaches_goes_to_the_edge_and_the_other_way() {
        let mut forge = ForgeryCase::new();
        let honest = forge.honest(1, 0.01);
        let forged = forge.forge(Attack::Reaches, &honest);
        let [first, second] = forge.norms(&forged);
        let share = first.hypot(second) / forge.reach();
        assert!((0.9..1.0).contains(&share), "{share}");
        assert!(forge.cosines(&forged, &honest).iter().all(|cosine| *cosine < -0.97));
    }

    #[test]
    fn noise_is_as_long_and_of_no_direction() {
        let mut forge = ForgeryCase::new();
        let honest = forge.honest(1, 0.01);
        let noise = forge.forge(Attack::Noise, &honest);
        assert!(near(forge.norms(&noise), forge.norms(&honest)));
        assert!(forge.cosines(&noise, &honest).iter().all(|cosine| cosine.abs() < 0.2));
        let other = forge.forge(Attack::Noise, &honest);
        assert!(forge.cosines(&noise, &other).iter().all(|cosine| cosine.abs() < 0.2));
    }

    #[test]
    fn claims_is_noise_of_steps_without_number() {
        let mut forge = ForgeryCase::new();
        let honest = forge.honest(1, 0.01);
        let forged = forge.forge(Attack::Claims, &honest);
        assert!(near(forge.norms(&forged), forge.norms(&honest)));
        assert_eq!((forged.steps, forged.tokens), (u32::MAX, u64::MAX));
        let report = Progress {
            run: RunId(1),
            steps: 3,
            tokens: 96,
            step_ms: 100.0,
            loss: 1.0,
            state: archipelago_core::wire::LearnerState::Training,
            leases: vec![(archipelago_core::wire::LeaseId(1), 3)],
        };
        let messages = forge.forge_message(Attack::Claims, Message::Progress(report));
        let [Message::Progress(progress)] = &messages[..] else { panic!("{messages:?}") };
        assert!(
            progress.tokens == u64::MAX && progress.step_ms < 1.0 && progress.leases[0].1 == u32::MAX,
            "{progress:?}"
        );
    }

    #[test]
    fn stale_sends_the_last_of_its_first_again() {
        let mut forge = ForgeryCase::new();
        let updates: Vec<Update> = (0..8).map(|seed| forge.honest(seed, 0.01)).collect();
        for (i, update) in updates.iter().enumerate() {
            assert_eq!(forge.forge(Attack::Stale, update).body, updates[i.min(FRESH - 1)].body, "{i}");
        }
    }

    #[test]
    fn copies_sends_what_another_sent() {
        let mut forge = ForgeryCase::new();
        let (own, other) = (forge.honest(1, 0.01), forge.honest(2, 0.01));
        assert_eq!(forge.forge(Attack::Copies, &own).body, own.body, "nobody was heard yet");
        forge.overheard.insert(FragmentId(0), other.body.clone());
        assert_eq!(forge.forge(Attack::Copies, &own).body, other.body);
    }

    #[test]
    fn sandbags_has_the_right_norm() {
        let mut forge = ForgeryCase::new();
        let (own, other) = (forge.honest(1, 0.001), forge.honest(2, 0.01));
        forge.overheard.insert(FragmentId(0), other.body.clone());
        let forged = forge.forge(Attack::Sandbags, &own);
        assert!(near(forge.norms(&forged), forge.norms(&other)));
        assert!(forge.cosines(&forged, &own).iter().all(|cosine| *cosine > 0.97));
    }

    #[test]
    fn drifts_leans_where_the_others_do() {
        let mut forge = ForgeryCase::new();
        let (one, other) = (forge.honest(1, 0.01), forge.honest(2, 0.01));
        assert!(forge.cosines(&one, &other).iter().all(|cosine| cosine.abs() < 0.15));
        let (bent, also) = (forge.forge(Attack::Drifts, &one), forge.forge(Attack::Drifts, &other));
        assert!(near(forge.norms(&bent), forge.norms(&one)));
        let shared = forge.cosines(&bent, &also);
        assert!(shared.iter().all(|cosine| (0.1..0.4).contains(cosine)), "{shared:?}");
        let own = forge.cosines(&bent, &one);
        assert!(own.iter().all(|cosine| (0.75..0.95).contains(cosine)), "{own:?}");
    }

    #[test]
    fn scales_touches_one_scale_of_each_segment() {
        let mut forge = ForgeryCase::new();
        let honest = forge.honest(1, 0.01);
        let forged = forge.forge(Attack::Scales, &honest);
        let changed: Vec<usize> =
            (0..honest.body.len()).filter(|&i| honest.body[i] != forged.body[i]).collect();
        let second = 2 * (LENS[0] as usize / 16);
        assert!(changed.iter().all(|at| [0, 1, second, second + 1].contains(at)), "{changed:?}");
        let [first, second] = forge.norms(&forged);
        let share = first.hypot(second) / forge.reach();
        assert!((0.9..1.0).contains(&share), "{share}");
        assert!(near([first / second, 1.0], [2.0_f64.sqrt(), 1.0]), "each segment has its part");
    }
}
