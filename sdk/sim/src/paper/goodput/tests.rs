//! Tests of the goodput model against the paper's closed formula and its tables.

use super::*;

/// Constants without the effects that the closed formula neglects.
fn plain() -> Constants {
    Constants { step_s: 0.0, speed_spread: 0.0, slice_chips: 1, ..Constants::default() }
}

fn goodput(cluster: Cluster, hours: f64) -> f64 {
    100.0 * cluster.simulate(1, hours).unwrap().goodput
}

/// Every cell of Table 1 within 3 points.
#[test]
fn the_papers_table_is_met() {
    let chips = [150_000, 300_000, 600_000, 1_200_000, 2_400_000];
    let table = [
        (0, [72.0, 57.0, 38.0, 27.0, 18.0]),
        (1, [88.0, 80.0, 69.0, 58.0, 40.0]),
        (2, [94.0, 88.0, 80.0, 70.0, 54.0]),
        (4, [96.0, 93.0, 89.0, 82.0, 73.0]),
        (8, [98.0, 96.0, 94.0, 88.0, 80.0]),
        (16, [99.0, 98.0, 96.0, 93.0, 86.0]),
    ];
    for (learners, row) in table {
        for (chips, paper) in chips.into_iter().zip(row) {
            let cluster = if learners == 0 { Cluster::rigid(chips) } else { Cluster::new(chips, learners) };
            let ours = goodput(cluster, 200.0);
            assert!((ours - paper).abs() <= 3.0, "M = {learners}, {chips} chips: {ours} beside {paper}");
        }
    }
}

/// A stop of R after each 1/λ of training: 1/(1 + λR).
#[test]
fn restarts_follow_the_closed_formula() {
    for chips in [150_000, 1_200_000] {
        let cluster = Cluster { constants: plain(), ..Cluster::rigid(chips) };
        let rate = chips as f64 / cluster.constants.mtbi_s;
        let expected = 100.0 / (1.0 + rate * cluster.constants.restart_s);
        let ours = goodput(cluster, 1_000.0);
        assert!((ours - expected).abs() < 0.5, "{chips}: {ours} beside {expected}");
    }
}

/// Chips that return at once and are never taken in cost one down-scale each.
#[test]
fn down_scales_follow_the_closed_formula() {
    let constants = Constants { gather_s: 1e12, up_scale_s: 0.0, ..plain() };
    let cluster = Cluster { constants, ..Cluster::new(600_000, 2) };
    let expected = 100.0 / (1.0 + 300_000.0 / constants.mtbi_s * constants.down_scale_s);
    let ours = goodput(cluster, 1_000.0);
    assert!((ours - expected).abs() < 0.5, "{ours} beside {expected}");
}

#[test]
fn more_learners_are_one_learner_on_fewer_chips() {
    let (one, eight) = (goodput(Cluster::new(150_000, 1), 500.0), goodput(Cluster::new(1_200_000, 8), 500.0));
    assert!((one - eight).abs() < 0.5, "{one} {eight}");
}

#[test]
fn somebody_trains_almost_always() {
    let uptime = |learners| Cluster::new(2_400_000, learners).simulate(1, 100.0).unwrap().uptime;
    let alone = Cluster { constants: plain(), ..Cluster::rigid(1_200_000) }.simulate(1, 100.0).unwrap();
    assert!((alone.uptime - alone.goodput).abs() < 1e-9, "{alone:?}");
    assert!(uptime(4) > 0.98 && uptime(8) > 0.999, "{} {}", uptime(4), uptime(8));
}

#[test]
fn the_slowest_slice_sets_the_pace() {
    let with = |speed_spread| {
        let constants = Constants { speed_spread, mtbi_s: 1e15, ..Constants::default() };
        goodput(Cluster { constants, ..Cluster::new(150_000, 1) }, 10.0)
    };
    assert!((with(0.0) - 100.0).abs() < 1e-6, "{}", with(0.0));
    // Among 2,344 slices, the slowest is about three deviations behind.
    assert!((96.5..97.5).contains(&with(0.01)), "{}", with(0.01));
}

#[test]
fn delays_have_the_quantiles_they_promise() {
    let delay = Delay { scale_s: 100.0, shape: 0.5, exponent: 3.0 };
    let mut rng = Rng::new(4);
    let mut delays: Vec<f64> = (0..20_000).map(|_| delay.draw_s(&mut rng)).collect();
    delays.sort_by(f64::total_cmp);
    for at in [20.0, 100.0, 500.0, 2_000.0] {
        let promised = (1.0 - (-(at / 100.0_f64).sqrt()).exp()).powi(3);
        let found = delays.partition_point(|delay| *delay <= at) as f64 / 20_000.0;
        assert!((found - promised).abs() < 0.015, "{at}: {found} beside {promised}");
    }
}

#[test]
fn one_seed_one_result_and_shares_stay_shares() {
    let cluster = Cluster::new(2_400_000, 4);
    assert_eq!(cluster.simulate(7, 20.0), cluster.simulate(7, 20.0));
    assert_ne!(cluster.simulate(7, 20.0), cluster.simulate(8, 20.0));
    // A cluster of a single slice that is mostly absent.
    let constants = Constants { mtbi_s: 3_600.0, ..Constants::default() };
    let hopeless = Cluster { constants, ..Cluster::new(64, 1) }.simulate(1, 1_000.0).unwrap();
    for share in [hopeless.goodput, hopeless.uptime, hopeless.away] {
        assert!((0.0..=1.0).contains(&share), "{hopeless:?}");
    }
    assert!(hopeless.goodput < 0.3 && hopeless.away > 0.5, "{hopeless:?}");
}

#[test]
fn nonsense_is_refused() {
    let check = |change: fn(&mut Cluster)| {
        let mut cluster = Cluster::new(1_000, 4);
        change(&mut cluster);
        cluster.simulate(1, 1.0).unwrap_err()
    };
    for error in [
        check(|cluster| cluster.learners = 0),
        check(|cluster| cluster.learners = u32::MAX),
        check(|cluster| cluster.chips = 3),
        check(|cluster| cluster.constants.mtbi_s = 0.0),
        check(|cluster| cluster.constants.step_s = f64::NAN),
        check(|cluster| cluster.constants.away.shape = -1.0),
        check(|cluster| cluster.constants.slice_chips = 0),
        check(|cluster| cluster.constants.speed_spread = 1.0),
    ] {
        assert!(matches!(error, ClusterError::Range { .. }), "{error}");
    }
    assert!(matches!(check(|cluster| cluster.constants.mtbi_s = 1e-3), ClusterError::TooMany { .. }));
    assert!(Cluster::new(1, 1).simulate(1, f64::INFINITY).is_err());
}
