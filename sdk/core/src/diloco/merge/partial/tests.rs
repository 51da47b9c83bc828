//! Tests of partial sums: any grouping gives the bits of a merge in one place.

use std::sync::Arc;

use proptest::prelude::*;

use super::super::tests::{job, noisy_job};
use super::super::{ExpertWeights, FragmentState, MergeError, MergeJob, OuterSpec, Weighted};
use super::*;
use crate::wire::{Code, MergeClass};

const CODES: [Code; 4] = [Code::Int4, Code::E3m0, Code::F32, Code::Int2];

/// Creates a job with all features of a merge: an expert, weights of every size, missing updates and radii.
fn rich_job(seed: u64, code: Code, weights: &[f64], absent: f64) -> MergeJob {
    let mut job = noisy_job(seed, code, weights.len() as u32);
    job.segments[2].expert = Some(0);
    for (at, (update, weight)) in job.updates.iter_mut().zip(weights).enumerate() {
        update.weight = *weight;
        update.experts = vec![if at % 3 == 1 { 0.0 } else { weight.sqrt() }];
        update.steps = 1 + at as u32;
    }
    (job.absent, job.absent_experts) = (absent, vec![absent / 2.0]);
    job.radii = vec![0.9, 0.5, 7.0];
    job
}

/// Returns the sums of the updates in each group, in this order, after directions `cancelled` out on these segments.
fn sums(job: &mut MergeJob, groups: &[Vec<usize>], cancelled: &[u32]) -> Vec<PartialSum> {
    let plan = Arc::new(job.plan().unwrap().after_cancelling(cancelled));
    let segments = Arc::new(job.segments.clone());
    let empty = PartialSum::new(plan, job.codec, segments).unwrap();
    let sum = |group: &Vec<usize>| {
        let mut sum = empty.clone();
        group.iter().for_each(|&at| sum.add(&job.updates[at]).unwrap());
        sum
    };
    groups.iter().map(sum).collect()
}

/// Joins the sums of all groups; all but the first are sent as bytes.
fn joined(job: &mut MergeJob, groups: &[Vec<usize>], cancelled: &[u32]) -> PartialSum {
    let mut parts = sums(job, groups, cancelled).into_iter();
    let mut sum = parts.next().unwrap();
    for part in parts {
        let mut read = sum.clone();
        read.read(&part.to_bytes()).unwrap();
        assert_eq!(read, part);
        sum.join(&read).unwrap();
    }
    sum
}

/// Returns the job without the bodies of its updates.
fn without_bodies(job: &MergeJob) -> MergeJob {
    let bodiless = |update: &Weighted| Weighted { body: update.body.without_bytes(), ..update.clone() };
    MergeJob { updates: job.updates.iter().map(bodiless).collect(), ..job.clone() }
}

/// Computes Δ and its norm by the formula of [`MergeJob::run`], with rounded additions.
fn by_formula(job: &MergeJob) -> (Vec<f64>, f64) {
    let norm = |values: &[f64]| values.iter().map(|value| value * value).sum::<f64>().sqrt();
    let ratio = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
    let mut delta = Vec::new();
    for (at, segment) in job.segments.iter().enumerate() {
        let (start, end) = (segment.start as usize, (segment.start + segment.len) as usize);
        let decode = |update: &Weighted| -> Vec<f64> {
            let values = job.codec.decode(&job.segments, update.body.bytes()).unwrap();
            values[start..end].iter().copied().map(f64::from).collect()
        };
        let values: Vec<Vec<f64>> = job.updates.iter().map(decode).collect();
        let ExpertWeights { weights, absent } = job.weights(segment);
        let total = absent + weights.iter().sum::<f64>();
        let lengths: Vec<(f64, f64)> = values
            .iter()
            .zip(&job.updates)
            .map(|(values, update)| (norm(values), update.counted(norm(values), job.radii[at])))
            .collect();
        let add = |factor: &dyn Fn(f64, f64) -> f64| -> Vec<f64> {
            let mut sum = vec![0.0; end - start];
            for ((values, weight), (norm, counted)) in values.iter().zip(&weights).zip(&lengths) {
                let factor = ratio(*weight, total) * factor(*norm, *counted);
                sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += factor * value);
            }
            sum
        };
        let direction = add(&|norm, _| ratio(1.0, norm));
        if job.is_radial(segment) && norm(&direction) > 1e-6 {
            let length: f64 = weights
                .iter()
                .zip(&lengths)
                .map(|(weight, (_, counted))| ratio(*weight, total) * counted)
                .sum();
            delta.extend(direction.iter().map(|value| value * length / norm(&direction)));
        } else {
            delta.extend(add(&|norm, counted| ratio(counted, norm)));
        }
    }
    let size = norm(&delta);
    (delta, size)
}

/// Splits the three updates of a job into two groups.
fn two_groups() -> (MergeJob, Vec<PartialSum>) {
    let mut job = rich_job(3, Code::Int4, &[1.0, 2.0, 3.0], 0.0);
    let groups = sums(&mut job, &[vec![0, 2], vec![1]], &[]);
    (job, groups)
}

proptest! {
    /// Goal: every result of a merge is the same to the bit for any grouping of its updates, any order of updates and
    /// groups, and across processes.
    #[test]
    fn any_grouping_gives_the_same_bits(
        seed in any::<u64>(),
        code in prop::sample::select(&CODES[..]),
        members in prop::collection::vec((-20.0_f64..20.0, 0_usize..4, any::<u32>()), 1..9),
        absent in prop_oneof![Just(0.0), 0.0_f64..1e6],
        rotate in 0_usize..4,
    ) {
        let weights: Vec<f64> = members.iter().map(|(size, ..)| size.exp()).collect();
        let mut job = rich_job(seed, code, &weights, absent);
        let whole = job.clone().run().unwrap();
        let mut order: Vec<usize> = (0..members.len()).collect();
        order.sort_by_key(|&at| members[at].2);
        let mut groups = vec![Vec::new(); 4];
        order.into_iter().for_each(|at| groups[members[at].1].push(at));
        groups.rotate_left(rotate);
        let mut sum = joined(&mut job, &groups, &[]);
        let cancelled = sum.cancelled();
        if !cancelled.is_empty() {
            sum = joined(&mut job, &groups, &cancelled);
        }
        let finished = without_bodies(&job).finish(&sum).unwrap();
        prop_assert_eq!(&finished, &whole);
    }

    /// Goal: a merge follows its formula, up to rounding.
    #[test]
    fn merges_follow_the_formula(
        seed in any::<u64>(),
        code in prop::sample::select(&CODES[..]),
        sizes in prop::collection::vec(-3.0_f64..3.0, 1..9),
    ) {
        let weights: Vec<f64> = sizes.iter().map(|size| size.exp()).collect();
        let mut job = rich_job(seed, code, &weights, 0.5);
        job.state = FragmentState::new(vec![0.0; 340]);
        job.outer = OuterSpec { lr: 1.0, momentum: 0.0 };
        let (expected, size) = by_formula(&job);
        let outcome = job.run().unwrap();
        let largest = expected.iter().fold(0.0_f64, |max, value| max.max(value.abs()));
        prop_assert!(largest > 0.0 && (outcome.norm - size).abs() <= 1e-6 * size, "{} {}", outcome.norm, size);
        for (theta, expected) in outcome.state.theta.iter().zip(&expected) {
            let most = 1e-6 * expected.abs() + 1e-9 * largest;
            prop_assert!((f64::from(-theta) - expected).abs() <= most, "{} {}", theta, expected);
        }
    }

    /// Goal: any bytes are a sum or a typed error, and a sum is written as it was read.
    #[test]
    fn any_bytes_are_a_sum_or_refused(
        at in 0_usize..2_000,
        value in any::<u8>(),
        cut in prop_oneof![Just(None), (0_usize..3_000).prop_map(Some)],
    ) {
        let (_, groups) = two_groups();
        let mut bytes = groups[0].to_bytes();
        if let Some(byte) = bytes.get_mut(at) {
            *byte = value;
        }
        bytes.truncate(cut.unwrap_or(usize::MAX));
        let mut sum = groups[1].clone();
        match sum.read(&bytes) {
            Ok(()) => prop_assert_eq!(sum.to_bytes(), bytes),
            Err(_) => prop_assert_eq!(&sum, &groups[1]),
        }
    }
}

/// Goal: if directions cancel out, separate sums are computed again, and give the same mean as in one place.
#[test]
fn what_cancels_out_is_added_up_once_more() {
    let parts = [(2, MergeClass::Radial), (1, MergeClass::Radial)];
    let mut job = job(Code::F32, &parts, &[(1, 1.0, &[1.0, 2.0, 3.0]), (2, 1.0, &[2.0, 1.0, -1.0])]);
    let groups = [vec![1], vec![0]];
    let sum = joined(&mut job, &groups, &[]);
    assert_eq!(sum.cancelled(), [1]);
    let failure = job.clone().finish(&sum).unwrap_err();
    assert_eq!(failure.error, MergeError::Cancelled { segment: 1 });

    let sum = joined(&mut job, &groups, &[1]);
    let outcome = job.clone().finish(&sum).unwrap();
    assert_eq!(outcome.state.theta[2], -1.0, "the mean of 3 and −1");
    assert_eq!(outcome, job.run().unwrap());
}

#[test]
fn bytes_that_are_no_sum_say_why() {
    let (_, groups) = two_groups();
    let bytes = groups[0].to_bytes();
    let len = 1 + 4 + 2 * 4 + 8 * (3 + 340);
    assert_eq!(bytes.len(), len, "layout, count, two learners, lengths and sums");
    let check = |change: &dyn Fn(&mut Vec<u8>), expected: SumError| {
        let mut other = bytes.clone();
        change(&mut other);
        assert_eq!(groups[1].clone().read(&other), Err(expected));
    };
    check(&|bytes| bytes[0] = 2, SumError::Layout { layout: 2 });
    check(&|bytes| bytes.truncate(4), SumError::Length { expected: 5, actual: 4 });
    check(&|bytes| bytes.push(0), SumError::Length { expected: len, actual: len + 1 });
    check(&|bytes| bytes[1] = 3, SumError::Length { expected: len + 4, actual: len });
    check(&|bytes| bytes[9] = 0, SumError::Order { learner: LearnerId(0) });
    check(&|bytes| *bytes.last_mut().unwrap() = 0x7f, SumError::Range { index: 342 });
}

#[test]
fn no_update_is_in_a_sum_twice() {
    let (job, groups) = two_groups();
    let mut sum = groups[0].clone();
    let learner = job.updates[2].learner;
    assert_eq!(sum.add(&job.updates[2]), Err(SumError::Duplicate { learner }));
    assert_eq!(sum.join(&groups[0]), Err(SumError::Duplicate { learner: job.updates[0].learner }));
    assert_eq!(sum, groups[0]);
}

#[test]
fn a_sum_is_of_one_merge() {
    let (job, mut groups) = two_groups();
    let failure = job.clone().finish(&groups[0]).unwrap_err();
    assert_eq!(
        (failure.state, failure.error),
        (job.state.clone(), MergeError::Sum { expected: 3, actual: 2 })
    );

    let mut other = rich_job(3, Code::Int4, &[1.0, 2.5, 3.0], 0.0);
    let others = sums(&mut other, &[vec![1]], &[]);
    assert_eq!(groups[0].join(&others[0]), Err(SumError::Plan), "other weights, another plan");
    let short = Arc::new(job.segments[..2].to_vec());
    assert_eq!(PartialSum::new(Arc::clone(&groups[0].plan), job.codec, short), Err(SumError::Plan));

    let stranger = job_of_eight().updates.remove(0);
    assert_eq!(groups[1].add(&stranger), Err(SumError::Update { learner: stranger.learner }));
    let rest = groups[1].clone();
    groups[0].join(&rest).unwrap();
    assert_eq!(job.clone().finish(&groups[0]).unwrap(), job.run().unwrap());
}

/// Creates a job on a fragment of another shape.
fn job_of_eight() -> MergeJob {
    job(Code::Int4, &[(8, MergeClass::Mean)], &[(7, 1.0, &[1.0; 8])])
}

/// A plan that was made for other updates leads to an inexact sum, which is refused.
#[test]
fn what_is_too_large_to_be_exact_is_refused() {
    let (mut job, _) = two_groups();
    let plan = Arc::new(job.plan().unwrap());
    let mut sum = PartialSum::new(plan, job.codec, Arc::new(job.segments.clone())).unwrap();
    job.updates[0].weight = 1e9;
    assert!(matches!(sum.add(&job.updates[0]), Err(SumError::Range { .. })));
}
