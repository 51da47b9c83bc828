//! Each lie has its stated effect on the decoded values.

use std::num::NonZeroU16;

use super::*;
use crate::world::Toy;
use archipelago_core::diloco::{Layout, MergeClass, Tensor};
use archipelago_core::wire::{Message, Progress, RunId, Serial, Version};

const LENS: [u32; 2] = [640, 320];
const STEPS: u32 = 10;

/// One fragment of two segments, in blocks of 16 values of four bits.
struct Forge {
    run: RunSpec,
    fragments: Fragments,
    codec: Codec,
    overheard: BTreeMap<FragmentId, Vec<u8>>,
    memory: Memory,
}

impl Forge {
    fn new() -> Self {
        let tensor =
            |len: &u32| Tensor { name: format!("{len}"), rows: 1, cols: *len, merge: MergeClass::Radial };
        let layout = Layout::new(LENS.iter().map(tensor).collect()).unwrap();
        let (run, _) = Toy::run(1, 1, 100);
        let codec = Codec::new(&run.exchange).unwrap();
        let fragments = Fragments::plan(&layout, NonZeroU16::MIN);
        Self { run, fragments, codec, overheard: BTreeMap::new(), memory: Memory::new(Rng::new(7)) }
    }

    fn segments(&self) -> &[Segment] {
        self.fragments.segments(FragmentId(0)).unwrap()
    }

    /// Returns a random trained update with values of about `size`.
    fn honest(&self, seed: u64, size: f32) -> Update {
        let mut rng = Rng::new(seed);
        let values: Vec<f32> = (0..LENS.iter().sum()).map(|_| size * rng.bell()).collect();
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

    fn tell(&mut self, lie: Lie, message: Message) -> Vec<Message> {
        let Self { run, fragments, overheard, memory, .. } = self;
        let mut craft = Craft { run, fragments: Some(fragments), overheard, memory };
        craft.tell(lie, message).into_iter().collect()
    }

    fn forge(&mut self, lie: Lie, update: &Update) -> Update {
        let told = self.tell(lie, Message::Update(update.clone()));
        let [Message::Update(forged)] = &told[..] else { panic!("{told:?}") };
        assert_eq!(forged.checksum, checksum(&forged.body), "{lie:?}");
        forged.clone()
    }

    /// Returns the decoded values of an update for each segment; panics if its form is refused.
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

/// Returns true if both are within ten percent of the expectation.
fn near(found: [f64; 2], expected: [f64; 2]) -> bool {
    found.iter().zip(expected).all(|(found, expected)| (found / expected - 1.0).abs() < 0.1)
}

#[test]
fn times_scales_and_turns() {
    let mut forge = Forge::new();
    let honest = forge.honest(1, 0.01);
    let [first, second] = forge.values(&honest);
    let turned = forge.forge(Lie::Times(-1), &honest);
    let negative = |values: &[f32]| values.iter().map(|value| -value).collect::<Vec<f32>>();
    assert_eq!(forge.values(&turned), [negative(&first), negative(&second)]);
    let long = forge.forge(Lie::Times(100), &honest);
    assert!(near(forge.norms(&long), forge.norms(&honest).map(|norm| 100.0 * norm)));
    assert!(forge.cosines(&long, &honest).iter().all(|cosine| *cosine > 0.99));
}

#[test]
fn reaches_goes_to_the_edge_and_the_other_way() {
    let mut forge = Forge::new();
    let honest = forge.honest(1, 0.01);
    let forged = forge.forge(Lie::Reaches, &honest);
    let [first, second] = forge.norms(&forged);
    let share = first.hypot(second) / forge.reach();
    assert!((0.9..1.0).contains(&share), "{share}");
    assert!(forge.cosines(&forged, &honest).iter().all(|cosine| *cosine < -0.97));
}

#[test]
fn noise_is_as_long_and_of_no_direction() {
    let mut forge = Forge::new();
    let honest = forge.honest(1, 0.01);
    let noise = forge.forge(Lie::Noise, &honest);
    assert!(near(forge.norms(&noise), forge.norms(&honest)));
    assert!(forge.cosines(&noise, &honest).iter().all(|cosine| cosine.abs() < 0.2));
    let other = forge.forge(Lie::Noise, &honest);
    assert!(forge.cosines(&noise, &other).iter().all(|cosine| cosine.abs() < 0.2));
}

#[test]
fn claims_is_noise_of_steps_without_number() {
    let mut forge = Forge::new();
    let honest = forge.honest(1, 0.01);
    let forged = forge.forge(Lie::Claims, &honest);
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
    let told = forge.tell(Lie::Claims, Message::Progress(report));
    let [Message::Progress(said)] = &told[..] else { panic!("{told:?}") };
    assert!(said.tokens == u64::MAX && said.step_ms < 1.0 && said.leases[0].1 == u32::MAX, "{said:?}");
}

#[test]
fn stale_sends_the_last_of_its_first_again() {
    let mut forge = Forge::new();
    let updates: Vec<Update> = (0..8).map(|seed| forge.honest(seed, 0.01)).collect();
    for (i, update) in updates.iter().enumerate() {
        assert_eq!(forge.forge(Lie::Stale, update).body, updates[i.min(FRESH - 1)].body, "{i}");
    }
}

#[test]
fn copies_sends_what_another_sent() {
    let mut forge = Forge::new();
    let (own, other) = (forge.honest(1, 0.01), forge.honest(2, 0.01));
    assert_eq!(forge.forge(Lie::Copies, &own).body, own.body, "nobody was heard yet");
    forge.overheard.insert(FragmentId(0), other.body.clone());
    assert_eq!(forge.forge(Lie::Copies, &own).body, other.body);
}

#[test]
fn sandbags_has_the_right_norm() {
    let mut forge = Forge::new();
    let (own, other) = (forge.honest(1, 0.001), forge.honest(2, 0.01));
    forge.overheard.insert(FragmentId(0), other.body.clone());
    let forged = forge.forge(Lie::Sandbags, &own);
    assert!(near(forge.norms(&forged), forge.norms(&other)));
    assert!(forge.cosines(&forged, &own).iter().all(|cosine| *cosine > 0.97));
}

#[test]
fn drifts_leans_where_the_others_do() {
    let mut forge = Forge::new();
    let (one, other) = (forge.honest(1, 0.01), forge.honest(2, 0.01));
    assert!(forge.cosines(&one, &other).iter().all(|cosine| cosine.abs() < 0.15));
    let (bent, also) = (forge.forge(Lie::Drifts, &one), forge.forge(Lie::Drifts, &other));
    assert!(near(forge.norms(&bent), forge.norms(&one)));
    let shared = forge.cosines(&bent, &also);
    assert!(shared.iter().all(|cosine| (0.1..0.4).contains(cosine)), "{shared:?}");
    let own = forge.cosines(&bent, &one);
    assert!(own.iter().all(|cosine| (0.75..0.95).contains(cosine)), "{own:?}");
}

#[test]
fn scales_touches_one_scale_of_each_segment() {
    let mut forge = Forge::new();
    let honest = forge.honest(1, 0.01);
    let forged = forge.forge(Lie::Scales, &honest);
    let changed: Vec<usize> = (0..honest.body.len()).filter(|&i| honest.body[i] != forged.body[i]).collect();
    let second = 2 * (LENS[0] as usize / 16);
    assert!(changed.iter().all(|at| [0, 1, second, second + 1].contains(at)), "{changed:?}");
    let [first, second] = forge.norms(&forged);
    let share = first.hypot(second) / forge.reach();
    assert!((0.9..1.0).contains(&share), "{share}");
    assert!(near([first / second, 1.0], [2.0_f64.sqrt(), 1.0]), "each segment has its part");
}
