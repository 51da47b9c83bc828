//! Tests of merges: weights, rules, and independence of the order of arrival.

use proptest::prelude::*;

use super::*;
use crate::diloco::checksum;
use crate::wire::{ApplyPolicy, Code, ExchangeSpec};

fn codec(code: Code) -> Codec {
    let apply = ApplyPolicy::Overwrite;
    Codec::new(&ExchangeSpec { fragments: 1, sync_every: 1, block: 16, code, apply }).unwrap()
}

fn segments(parts: &[(u32, MergeClass)]) -> Vec<Segment> {
    let mut start = 0;
    let segment = |&(len, merge): &(u32, MergeClass)| {
        start += len;
        Segment { start: start - len, len, merge, cols: 0, expert: None }
    };
    parts.iter().map(segment).collect()
}

/// Creates a merge into zeros with lr 1 and no momentum, so that Θ becomes −Δ.
pub(super) fn job(code: Code, parts: &[(u32, MergeClass)], updates: &[(u32, f64, &[f32])]) -> MergeJob {
    let (segments, codec) = (segments(parts), codec(code));
    let zeros = vec![0.0; fragment_len(&segments)];
    let update = |&(learner, weight, values): &(u32, f64, &[f32])| WeightedUpdate {
        learner: LearnerId(learner),
        weight,
        experts: Vec::new(),
        steps: 1,
        body: codec.check(&segments, codec.encode(&segments, values)).unwrap(),
    };
    MergeJob {
        round: Round(3),
        fragment: FragmentId(1),
        state: FragmentState { version: Version(7), ..FragmentState::new(zeros) },
        absent: 0.0,
        absent_experts: Vec::new(),
        updates: updates.iter().map(update).collect(),
        segments,
        codec,
        rule: MergeRule::Radial,
        radii: Vec::new(),
        outer: OuterSpec { lr: 1.0, momentum: 0.0 },
        next: Version(8),
    }
}

fn delta(job: MergeJob) -> Vec<f32> {
    job.run().unwrap().state.theta.iter().map(|theta| 0.0 - theta).collect()
}

/// Creates a job like [`job`] with one expert, on the second segment. The weights on this segment are `weights` for the
/// updates and `absent` for missing ones.
fn job_of_expert(updates: &[(u32, f64, &[f32])], weights: &[f64], absent: f64) -> MergeJob {
    let parts = [(2, MergeClass::Radial), (2, MergeClass::Radial), (2, MergeClass::Mean)];
    let mut job = job(Code::F32, &parts, updates);
    job.segments[1].expert = Some(0);
    job.absent_experts = vec![absent];
    job.updates.iter_mut().zip(weights).for_each(|(update, &weight)| update.experts = vec![weight]);
    job
}

#[test]
fn an_expert_is_merged_by_weights_of_its_own() {
    let (a, b) = ([4.0, 0.0, 4.0, 0.0, 4.0, 0.0], [8.0, 0.0, 8.0, 0.0, 8.0, 0.0]);
    let updates: [(u32, f64, &[f32]); 2] = [(1, 1.0, &a), (2, 3.0, &b)];
    let of = |weights: &[f64], absent| delta(job_of_expert(&updates, weights, absent));
    assert_eq!(of(&[3.0, 1.0], 0.0), [7.0, 0.0, 5.0, 0.0, 7.0, 0.0]);
    assert_eq!(of(&[0.0, 5.0], 0.0), [7.0, 0.0, 8.0, 0.0, 7.0, 0.0], "weight 0 does not count");
    assert_eq!(of(&[1.0, 0.0], 3.0), [7.0, 0.0, 1.0, 0.0, 7.0, 0.0], "next to missing updates");
    assert_eq!(of(&[0.0, 0.0], 0.0), [7.0, 0.0, 0.0, 0.0, 7.0, 0.0], "no learner trained it");
    for bad in [&[f64::NAN, 1.0][..], &[-1.0, 2.0], &[f64::INFINITY, 1.0]] {
        let failure = job_of_expert(&updates, bad, 0.0).run().unwrap_err();
        assert!(matches!(failure.error, MergeError::Experts { .. }), "{bad:?}: {}", failure.error);
    }
    let mut short = job_of_expert(&updates, &[1.0, 1.0], 0.0);
    short.absent_experts.clear();
    assert!(matches!(short.run().unwrap_err().error, MergeError::Experts { .. }));
}

fn check(parts: &[(u32, MergeClass)], updates: &[(u32, f64, &[f32])], expected: &[f32]) {
    let merged = delta(job(Code::F32, parts, updates));
    let near = merged.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6);
    assert!(near && merged.len() == expected.len(), "{merged:?}, not {expected:?}");
}

/// Returns roughly uniform noise in −1…1.
fn noise(seed: &mut u64) -> f32 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 40) as f32 / (1 << 23) as f32 - 1.0
}

pub(super) fn noisy_job(seed: u64, code: Code, learners: u32) -> MergeJob {
    let mut seed = seed;
    let parts = [(33, MergeClass::Radial), (7, MergeClass::Mean), (300, MergeClass::Radial)];
    let updates: Vec<Vec<f32>> =
        (0..learners).map(|_| (0..340).map(|_| noise(&mut seed)).collect()).collect();
    let weighted = |(learner, values): (u32, &Vec<f32>)| (learner, 1.5 + f64::from(learner), values.clone());
    let weighted: Vec<(u32, f64, Vec<f32>)> = (0..).zip(&updates).map(weighted).collect();
    let updates: Vec<(u32, f64, &[f32])> = weighted.iter().map(|(l, w, v)| (*l, *w, v.as_slice())).collect();
    let mut job = job(code, &parts, &updates);
    let theta: Vec<f32> = (0..340).map(|_| noise(&mut seed)).collect();
    job.state.hat = Arc::new(theta.iter().map(|theta| theta + 0.01 * noise(&mut seed)).collect());
    job.state.theta = Arc::new(theta);
    job.state.momentum = Arc::new((0..340).map(|_| noise(&mut seed)).collect());
    job.outer = OuterSpec { lr: 0.7, momentum: 0.5 };
    job
}

#[test]
fn merges_as_the_class_says() {
    use MergeClass::{Mean, Radial};
    // Orthogonal updates of length 2 give length 2 on the diagonal; their mean is shorter.
    let (a, b): (&[f32], &[f32]) = (&[2.0, 0.0], &[0.0, 2.0]);
    let half = 2.0_f32.sqrt();
    check(&[(2, Radial)], &[(0, 1.0, a), (1, 1.0, b)], &[half, half]);
    check(&[(2, Mean)], &[(0, 1.0, a), (1, 1.0, b)], &[1.0, 1.0]);
    check(&[(2, Mean)], &[(0, 3.0, a), (1, 1.0, b)], &[1.5, 0.5]);
    // Lengths 3 and 1 with weights 1 and 3: 1.5 along (1, 3)/√10.
    let unit = 10.0_f32.sqrt().recip();
    check(&[(2, Radial)], &[(0, 1.0, &[3.0, 0.0]), (1, 3.0, &[0.0, 1.0])], &[1.5 * unit, 4.5 * unit]);
    // Each segment is merged by itself.
    let (a, b): (&[f32], &[f32]) = (&[2.0, 0.0, 2.0, 0.0], &[0.0, 2.0, 0.0, 2.0]);
    check(&[(2, Radial), (2, Mean)], &[(0, 1.0, a), (1, 1.0, b)], &[half, half, 1.0, 1.0]);
    // A zero update adds no direction, but counts in the mean of lengths.
    check(&[(2, Radial)], &[(0, 1.0, &[2.0, 0.0]), (1, 1.0, &[0.0, 0.0])], &[1.0, 0.0]);
    check(&[(2, Radial)], &[(0, 1.0, &[0.0, 0.0]), (1, 1.0, &[0.0, 0.0])], &[0.0, 0.0]);
    // Updates that cancel out have no direction. Their mean is not zero here.
    check(&[(2, Radial)], &[(0, 1.0, &[3.0, 0.0]), (1, 1.0, &[-1.0, 0.0])], &[1.0, 0.0]);
}

#[test]
fn the_rule_can_do_the_same_to_all_segments() {
    let (a, b): (&[f32], &[f32]) = (&[2.0, 0.0, 2.0, 0.0], &[0.0, 2.0, 0.0, 2.0]);
    let merged = |rule| {
        let parts = [(2, MergeClass::Radial), (2, MergeClass::Mean)];
        delta(MergeJob { rule, ..job(Code::F32, &parts, &[(0, 1.0, a), (1, 1.0, b)]) })
    };
    let along = 2.0 * 0.5_f32.sqrt();
    assert_eq!(merged(MergeRule::Radial), [along, along, 1.0, 1.0]);
    assert_eq!(merged(MergeRule::RadialAll), [along; 4]);
    assert_eq!(merged(MergeRule::Mean), [1.0; 4]);
}

#[test]
fn flat_gives_all_directions_of_a_matrix_the_same_length() {
    let parts = [(4, MergeClass::Radial), (4, MergeClass::Radial), (4, MergeClass::Mean)];
    let values = [3.0, 0.0, 0.0, 1.0].repeat(3);
    let mut job = job(Code::F32, &parts, &[(0, 1.0, &values)]);
    job.rule = MergeRule::Flat;
    // The second segment is a table of vectors; the third is merged by the mean.
    (job.segments[0].cols, job.segments[2].cols) = (2, 2);
    let norm = job.clone().run().unwrap().norm;
    let merged = delta(job);
    let flat = [2.0, 0.0, 0.0, 2.0];
    assert!(merged[..4].iter().zip(flat).all(|(a, b)| (a - b).abs() < 1e-2), "{merged:?}");
    assert_eq!(merged[4..], values[4..]);
    assert!((norm - 28.0_f64.sqrt()).abs() < 1e-2, "{norm}");
}

#[test]
fn one_learner_is_its_own_merge() {
    let values: Vec<f32> = (0_u16..40).map(|i| f32::from(i).sin()).collect();
    for code in [Code::Int4, Code::E3m0, Code::F32] {
        let job = job(code, &[(40, MergeClass::Radial)], &[(5, 0.3, &values)]);
        let decoded = job.codec.decode(&job.segments, job.updates[0].body.bytes()).unwrap();
        assert_eq!(delta(job), decoded, "{code:?}");
    }
}

#[test]
fn ignores_arrival_order() {
    // 1e18 absorbs 1 unless the two large values cancel first, so the order would show.
    let updates: [(u32, f64, &[f32]); 3] = [(0, 1.0, &[1.0]), (1, 1.0, &[1e18]), (2, 1.0, &[-1e18])];
    let mut backwards = updates;
    backwards.reverse();
    let parts = [(1, MergeClass::Mean)];
    let of = |updates| job(Code::F32, &parts, updates).run().unwrap();
    assert_eq!(of(&updates), of(&backwards));
}

/// If this fails on one machine only, its sums run in another order; if on all, the arithmetic changed.
#[test]
fn bits_are_frozen() {
    let bits = |code| {
        let outcome = noisy_job(1, code, 3).run().unwrap();
        let values = outcome.state.theta.iter().chain(&*outcome.state.hat).chain(&*outcome.state.momentum);
        let bytes: Vec<u8> = values.flat_map(|value| value.to_le_bytes()).collect();
        (checksum(&bytes), outcome.checksum, outcome.norm.to_bits())
    };
    let frozen = [
        (0x441f_a92b_43eb_c03c, 0xe515_ffba_361d_a247, 0x4025_59e3_1d8c_25c4),
        (0xa563_6f91_251d_4a47, 0x2155_e2dd_668d_c7bc, 0x4025_b993_1a77_0cb9),
        (0x7eb5_fcd0_02de_0e7c, 0x2ee7_356e_832c_2350, 0x4025_5014_3bc0_53f7),
    ];
    assert_eq!([Code::Int4, Code::E3m0, Code::F32].map(bits), frozen);
}

#[test]
fn a_shared_hat_stays_as_it_was() {
    let job = job(Code::F32, &[(1, MergeClass::Mean)], &[(0, 1.0, &[2.0])]);
    let served = Arc::clone(&job.state.hat);
    let outcome = job.run().unwrap();
    assert_eq!((served[0], outcome.state.hat[0]), (0.0, -2.0));
    assert_eq!((outcome.state.version, outcome.norm), (Version(8), 2.0));
}

#[test]
fn hat_fits_in_16_bits_and_theta_keeps_the_rest() {
    let theta = vec![1.0 + f32::EPSILON, -std::f32::consts::PI];
    let state = FragmentState::new(theta.clone());
    assert_eq!((&*state.hat, &*state.theta), (&vec![1.0, -3.140_625], &theta));

    for code in [Code::Int4, Code::E3m0, Code::F32] {
        let outcome = noisy_job(1, code, 3).run().unwrap();
        let mut rounded = outcome.state.hat.to_vec();
        binary16::round(&mut rounded);
        assert_eq!(*outcome.state.hat, rounded, "{code:?}");
        assert_ne!(outcome.state.hat, outcome.state.theta);
        assert_eq!(outcome.digest, binary16::digest(&rounded));
    }
}

#[test]
fn refuses_and_gives_the_state_back() {
    let check = |spoil: &dyn Fn(&mut MergeJob), expected: MergeError| {
        let mut job = noisy_job(1, Code::Int4, 3);
        spoil(&mut job);
        let state = job.state.clone();
        let failure = job.run().unwrap_err();
        assert_eq!((failure.state, failure.error), (state, expected));
    };
    let learner = LearnerId(1);
    check(&|job| job.updates.clear(), MergeError::Empty);
    check(&|job| job.updates[2].learner = learner, MergeError::Duplicate { learner });
    for weight in [0.0, -1.0, f64::INFINITY] {
        check(&|job| job.updates[1].weight = weight, MergeError::Weight { learner, weight });
    }
    let weight = f64::MAX;
    check(&|job| (0..2).for_each(|i| job.updates[i].weight = weight), MergeError::Weight { learner, weight });
    check(
        &|job| Arc::make_mut(&mut job.state.theta).truncate(339),
        MergeError::State { expected: 340, actual: 339 },
    );
    check(
        &|job| Arc::make_mut(&mut job.state.momentum).push(0.0),
        MergeError::State { expected: 340, actual: 341 },
    );
    for (lr, momentum) in [(0.0, 0.5), (f32::INFINITY, 0.5), (0.7, 1.0), (0.7, -0.1)] {
        let spec = OuterSpec { lr, momentum };
        check(&|job| job.outer = spec, MergeError::Outer { spec });
    }
    let expected = noisy_job(1, Code::Int4, 1).updates[0].body.bytes().len();
    let other = job(Code::Int4, &[(8, MergeClass::Mean)], &[(1, 1.0, &[1.0; 8])]).updates.remove(0).body;
    let actual = other.bytes().len();
    check(&|job| job.updates[1].body = other.clone(), MergeError::Body { learner, expected, actual });

    let mut job = noisy_job(1, Code::Int4, 2);
    job.updates[0].weight = f64::NAN;
    assert!(matches!(job.run().unwrap_err().error, MergeError::Weight { .. }));
}

proptest! {
    #[test]
    fn any_order_gives_the_same_bits(
        seed in any::<u64>(),
        swaps in prop::collection::vec((0_usize..5, 0_usize..5), 5),
    ) {
        let job = noisy_job(seed, Code::Int4, 5);
        let mut other = job.clone();
        for (a, b) in swaps {
            other.updates.swap(a, b);
        }
        prop_assert_eq!(job.run().unwrap(), other.run().unwrap());
    }

    #[test]
    fn what_is_left_over_never_exceeds_half_a_step(seed in any::<u64>(), e3m0 in any::<bool>()) {
        let code = if e3m0 { Code::E3m0 } else { Code::Int4 };
        let mut state = None;
        for round in 0..20 {
            let mut job = noisy_job(seed.wrapping_add(round), code, 3);
            job.state = state.take().unwrap_or(job.state);
            let hat = Arc::clone(&job.state.hat);
            let outcome = job.run().unwrap();
            let now = outcome.state;
            let size = |of: &dyn Fn(usize) -> f32| (0..340).fold(0.0_f32, |max, i| max.max(of(i).abs()));
            let lack = size(&|i| now.theta[i] - hat[i]);
            let left = size(&|i| now.theta[i] - now.hat[i]);
            // Int4: half of a seventh; E3M0: half of the widest gap; and the rounding of the scale. Then that of Θ̂.
            let share = if e3m0 { 0.25 } else { 1.0 / 14.0 };
            let half_step = size(&|i| now.hat[i]) / 2048.0;
            let most = lack * share * 1.01 + half_step + 1e-6;
            prop_assert!(left <= most, "round {round}: {left} left of {lack}");
            state = Some(now);
        }
    }
}

/// Goal: on each segment, an update counts up to its radius times the root of its steps, with the same direction.
/// Updates within their radius are merged to the bit as without a radius.
#[test]
fn what_is_too_long_counts_up_to_its_radius() {
    let parts = [(2, MergeClass::Radial), (2, MergeClass::Mean)];
    let updates: [(u32, f64, &[f32]); 2] =
        [(1, 1.0, &[1.0, 0.0, 1.0, 0.0]), (2, 1.0, &[100.0, 0.0, 0.0, 100.0])];
    let mut long = job(Code::F32, &parts, &updates);
    long.radii = vec![1.5, 2.0];
    long.updates[1].steps = 4;
    let norm = long.clone().run().unwrap().norm;
    // Radial: half of 1 + 1.5 · √4. Mean: half of each.
    assert_eq!(delta(long), [2.0, 0.0, 0.5, 2.0]);
    assert!((norm - (4.0_f64 + 0.25 + 4.0).sqrt()).abs() < 1e-12, "{norm}");

    let free = noisy_job(3, Code::Int4, 4);
    let wide = MergeJob { radii: vec![1e9; 3], ..free.clone() };
    assert_eq!(wide.run().unwrap(), free.run().unwrap());

    let mut alone = job(Code::F32, &parts, &updates[1..]);
    alone.radii = vec![1.0, 1.0];
    assert_eq!(delta(alone), [1.0, 0.0, 0.0, 1.0]);
}
