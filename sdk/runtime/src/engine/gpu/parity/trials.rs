//! The trials that choose among the variants of matrix products.

use std::cell::Cell;

use super::super::matmul::{Best, Choice, ChoiceError, Form, Matmul, Variant};
use super::harness::Gpus;

/// Returns the best variants of `form` in `choice`.
fn best(choice: &Choice, form: Form) -> Vec<(u64, Variant)> {
    let all = [&choice.nt, &choice.nn, &choice.tn][form as usize];
    all.iter().map(|best| (best.area, best.variant)).collect()
}

/// With a clock on which every run takes equally long, all variants are tried, and the first one of each shape stays.
async fn a_trial_chooses(gpus: &Gpus) {
    gpus.each(async |gpu| {
        let clock = Cell::new(0);
        let now_us = || {
            clock.set(clock.get() + 5_000);
            clock.get()
        };
        let shapes = [(Form::Nt, 33, 2_000_000_000, 4), (Form::Nt, 8, 8, 8), (Form::Tn, 5, 6, 7)];
        let choosing = Matmul::choose(gpu, &shapes, &now_us);
        let (matmul, trials) = choosing.await.unwrap();
        let tried = |form, n| trials.iter().filter(move |trial| trial.form == form && trial.n == n);
        let variants: Vec<Variant> = tried(Form::Tn, 6).map(|trial| trial.variant).collect();
        assert!(variants.iter().copied().eq(Variant::suitable(gpu)));
        assert!(!gpu.facts().software || variants == Variant::ALL[..3], "tiles are not tried on the CPU");
        assert_eq!(tried(Form::Nt, 8).count(), variants.len());
        assert_eq!(trials.len(), 3 * variants.len());
        assert!(trials.iter().all(|trial| trial.n < 32 << 20), "B cannot be bound");
        let gflops = 2.0 * 5.0 * 6.0 * 7.0 / 5e-3 / 1e9;
        assert!(tried(Form::Tn, 6).all(|trial| (trial.gflops / gflops - 1.0).abs() < 1e-9));
        let choice = matmul.choice(gpu);
        let first = Variant::ALL[0];
        assert_eq!(best(&choice, Form::Nt), [(66_000_000_000, first), (64, first)]);
        assert_eq!(best(&choice, Form::Nn), [(1, Variant::Register8)], "of which nothing was tried");
        assert_eq!(best(&choice, Form::Tn), [(30, first)]);
    })
    .await;
}

/// With a clock on which the first variant takes 5 ms in each of three runs, the second 20, the third 4, and any other
/// 20. For a larger product the second takes 4, and any other 5 or 20.
async fn a_trial_leaves_what_is_slow(gpus: &Gpus) {
    gpus.each(async |gpu| {
        let (clock, calls) = (Cell::new(0), Cell::new(0));
        let suitable: Vec<Variant> = Variant::suitable(gpu).collect();
        // Each run reads the clock twice. A slow variant has one run, others have three. The trial that limits the size
        // of large products has three too.
        let before = if gpu.facts().software { 0 } else { 6 };
        let slow = 2 * (suitable.len() - 3);
        let (small, large) = (before + 14 + slow, before + 14 + slow + 6);
        let now_us = || {
            calls.set(calls.get() + 1);
            let call = calls.get();
            let us = match call {
                _ if call <= before + 6 => 5_000,
                _ if (before + 9..=before + 14).contains(&call) => 4_000,
                _ if (small + 1..=large).contains(&call) => 5_000,
                _ if (large + 1..=large + 6).contains(&call) => 4_000,
                _ => 20_000,
            };
            clock.set(clock.get() + us);
            clock.get()
        };
        let shapes = [(Form::Nn, 4, 4, 4), (Form::Nn, 8, 8, 8)];
        let (matmul, trials) = Matmul::choose(gpu, &shapes, &now_us).await.unwrap();
        let found: Vec<_> = trials.iter().map(|trial| (trial.variant, trial.n)).collect();
        let expected = [4, 8].map(|n| suitable.iter().map(move |&variant| (variant, n)));
        assert_eq!(found, expected.into_iter().flatten().collect::<Vec<_>>());
        let (second, third) = (suitable[1], suitable[2]);
        assert_eq!(best(&matmul.choice(gpu), Form::Nn), [(16, third), (64, second)]);
        assert_eq!(calls.get(), large + 6 + 2 + slow);

        let sizes = [(1, third), (31, third), (33, second), (9_000, second)];
        for (m, expected) in sizes {
            assert_eq!(matmul.variant(Form::Nn, m, 1), expected, "that of the size nearest to {m}");
        }
    })
    .await;
}

async fn a_choice_holds_where_it_was_made(gpus: &Gpus) {
    gpus.each(async |gpu| {
        let made = Matmul::fixed(Variant::Tile64).choice(gpu);
        let best = |area, variant| Best { area, variant };
        let nn = vec![best(16, Variant::Register4), best(64, Variant::Tile64)];
        let tn = vec![best(16, Variant::Register8)];
        let choice = Choice { nn, tn, gflops: 2_000, ..made };
        let bytes = rmp_serde::to_vec_named(&choice).unwrap();
        let kept: Choice = rmp_serde::from_slice(&bytes).unwrap();
        let matmul = Matmul::from_choice(gpu, &kept).unwrap();
        assert_eq!(matmul.choice(gpu), choice);
        assert_eq!(matmul.cost_max, 40_000_000_000, "what it does within 20 ms");
        let elsewhere = Choice { adapter: "Voodoo".to_owned(), ..choice.clone() };
        let error = Matmul::from_choice(gpu, &elsewhere).unwrap_err();
        assert!(matches!(error, ChoiceError::Adapter { .. }), "{error}");
        let others = Choice { matrices: !choice.matrices, ..choice.clone() };
        let error = Matmul::from_choice(gpu, &others).unwrap_err();
        assert!(matches!(error, ChoiceError::Matrices { .. }), "{error}");
        let nothing = Choice { tn: Vec::new(), ..choice.clone() };
        assert_eq!(Matmul::from_choice(gpu, &nothing).unwrap_err(), ChoiceError::Wrong);
        if !gpu.has_matrices() {
            let untried = Choice { strips: true, ..choice.clone() };
            assert_eq!(Matmul::from_choice(gpu, &untried).unwrap_err(), ChoiceError::Wrong);
            let untried = Choice { nt: vec![best(16, Variant::Matrix64)], ..choice.clone() };
            assert_eq!(Matmul::from_choice(gpu, &untried).unwrap_err(), ChoiceError::Wrong);
        }
        let before = Choice { driver: "1.0".to_owned(), ..choice };
        let error = Matmul::from_choice(gpu, &before).unwrap_err();
        assert!(matches!(error, ChoiceError::Driver { .. }), "{error}");
    })
    .await;
}

parity!(a_trial_chooses, a_trial_leaves_what_is_slow, a_choice_holds_where_it_was_made);
