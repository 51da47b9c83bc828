//! Goal of these: who did what it says passes always, and who did not fails for what it did not.

use archipelago_core::audit::{AuditJob, Fault, Op, Span, Tally, Verdict, inputs_hash};
use archipelago_core::diloco::syncer::Trust;
use archipelago_core::diloco::{FragmentId, LearnerId, LeaseId, Version};
use archipelago_core::model::ExpertSpec;
use archipelago_core::wire::ApplyPolicy;

use super::peer::Cheat;
use super::rig::Rig;

/// Goal: an honest learner never fails, whatever is merged amid a span, however often it loses its connection, and when
/// another process takes the place of the syncer.
#[test]
fn whoever_is_honest_passes_always() {
    let mut rig = Rig::new(1.0, &[None, None, None]);
    for round in 0..40 {
        rig.run(30);
        if round % 3 == 1 {
            rig.cut(round % 2);
        }
        if round % 13 == 12 {
            rig.restart_syncer();
        }
    }
    assert_eq!(rig.failed(), [], "{:?}", rig.verdicts);
    let undecided = rig.verdicts.iter().filter(|(_, verdict)| *verdict == Verdict::Undecided).count();
    assert_eq!(undecided, 0);
    assert!(rig.passed() >= 100, "{} passed", rig.passed());
    let takes = |job: &&AuditJob| {
        let span = Span::from_bytes(&job.evidence).unwrap();
        let at = |is: fn(&Op) -> bool| span.ops.iter().position(is);
        let (step, take) = (at(|op| matches!(op, Op::Step { .. })), at(|op| matches!(op, Op::Take { .. })));
        !span.state.is_empty() && step.is_some() && take > step
    };
    assert!(rig.jobs.iter().filter(takes).count() >= 10, "versions came amid spans");
    assert!(rig.peers.iter().all(|peer| peer.afresh.is_empty()), "nobody had to begin anew");
}

#[test]
fn other_policies_are_audited_too() {
    for apply in
        [ApplyPolicy::Overwrite, ApplyPolicy::Keep { residue: false }, ApplyPolicy::Blend { alpha: 0.5 }]
    {
        let mut rig = Rig::with(1.0, &[None, None], apply, None);
        rig.run(150);
        assert_eq!(rig.failed(), [], "{apply:?}");
        assert!(rig.passed() >= 10, "{apply:?}: {}", rig.passed());
    }
}

/// Goal: the bits of a mixture of experts are the same everywhere too; and experts are merged by what they saw.
#[test]
fn experts_are_audited_too() {
    let experts = Some(ExpertSpec { count: 3, per_token: 1, aux_loss: 0.01 });
    let mut rig = Rig::with(1.0, &[None, None], ApplyPolicy::Keep { residue: true }, experts);
    rig.run(150);
    assert_eq!(rig.failed(), []);
    assert!(rig.passed() >= 10, "{}", rig.passed());
    let mut weights = rig.expert_weights.clone();
    weights.sort_by(f64::total_cmp);
    weights.dedup();
    assert!(weights.len() > 20, "experts saw different numbers of tokens: {weights:?}");
}

/// Goal: nobody cheats for longer than to the first audit, and it is found out what it did.
#[test]
fn whoever_cheats_fails_for_what_it_did() {
    for (cheat, fault) in [
        (Cheat::SkipsSteps, Fault::Closing),
        (Cheat::OtherText, Fault::Closing),
        (Cheat::LearnsAll, Fault::Closing),
        (Cheat::OneBit, Fault::Closing),
        (Cheat::OtherUpdate, Fault::Codes),
        (Cheat::Doubles, Fault::Count),
        (Cheat::Silent, Fault::Unanswered),
        (Cheat::Uncommitted, Fault::Uncommitted),
        (Cheat::Unchained, Fault::Chain),
    ] {
        let mut rig = Rig::new(1.0, &[None, Some(cheat)]);
        rig.run(if cheat == Cheat::Silent { 2_500 } else { 200 });
        let liar = LearnerId(2);
        let failed: Vec<_> =
            rig.verdicts.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Failed(_))).collect();
        assert_eq!(failed, [&(liar, Verdict::Failed(fault))], "{cheat:?}");
        assert_eq!(rig.syncer.trust(rig.now, liar), Trust::Out, "{cheat:?}");
        assert!(rig.peers[1].reasons.iter().any(|reason| reason.contains("failed an audit")), "{cheat:?}");
        let account = rig.syncer.ledger().account(liar).unwrap();
        assert_eq!((account.audits_failed, account.audit_fault), (1, Some(fault)), "{cheat:?}");
        // Nothing of it is merged from then on, also after a restart of the syncer.
        let merged = account.fates.merged;
        rig.restart_syncer();
        rig.run(200);
        let account = rig.syncer.ledger().account(liar).unwrap();
        assert_eq!((account.fates.merged, account.audits_failed), (merged, 1), "{cheat:?}");
        assert!(rig.passed() > 0, "the other one is as before");
    }
}

/// What becomes of spans that somebody made up by `edit`, as far as it can edit them: whoever makes up a list
/// commits to that one.
fn check_forged(rig: &Rig, name: &str, expected: Verdict, edit: &dyn Fn(&mut Span) -> bool) {
    let mut found = Vec::new();
    for job in &rig.jobs {
        let mut span = Span::from_bytes(&job.evidence).unwrap();
        if span.state.is_empty() || !edit(&mut span) {
            continue;
        }
        let mut forged = job.clone();
        (forged.evidence, forged.commitment.inputs) = (span.to_bytes(), inputs_hash(&span.ops));
        forged.commitment.steps = span.steps();
        found.push(rig.judge(&forged));
    }
    assert!(!found.is_empty() && found.iter().all(|verdict| *verdict == expected), "{name}: {found:?}");
}

/// Goal: what is claimed is compared with what the syncer knows, and not with what fits together by itself.
#[test]
fn a_list_that_was_made_up_fails_for_what_is_wrong_in_it() {
    let mut rig = Rig::new(1.0, &[None, None]);
    rig.run(300);
    let check =
        |name: &str, expected, edit: &dyn Fn(&mut Span) -> bool| check_forged(&rig, name, expected, edit);
    let fault = Verdict::Failed;
    check("as it is", Verdict::Passed, &|_| true);
    let step = |span: &mut Span, edit: &dyn Fn(&mut Op)| {
        let found = span.ops.iter_mut().find(|op| matches!(op, Op::Step { .. }));
        found.is_some_and(|op| {
            edit(op);
            true
        })
    };
    let windows = |span: &mut Span, edit: &dyn Fn(&mut (LeaseId, u32, u32))| {
        step(span, &|op| {
            let Op::Step { windows, .. } = op else { return };
            edit(&mut windows[0]);
        })
    };
    check("windows of nobody", fault(Fault::Window), &|span| windows(span, &|window| window.0.0 = u64::MAX));
    check("windows beyond the lease", fault(Fault::Window), &|span| {
        windows(span, &|window| window.1 = 1 << 30)
    });
    check("the same windows again", fault(Fault::Window), &|span| {
        let mut steps = span.ops.iter_mut().filter_map(|op| match op {
            Op::Step { windows, .. } => Some(windows),
            _ => None,
        });
        let (Some(first), Some(second)) = (steps.next(), steps.next()) else { return false };
        second.clone_from(first);
        true
    });
    check("another rate", fault(Fault::Rate), &|span| {
        step(span, &|op| {
            let Op::Step { own, .. } = op else { return };
            *own += 1;
        })
    });
    check("a clock that nobody told", fault(Fault::Rate), &|span| {
        step(span, &|op| {
            let Op::Step { base, own, .. } = op else { return };
            (*base, *own) = (*base + 1, 0);
        })
    });
    check("a version that nobody published", fault(Fault::Version), &|span| {
        let fragment = FragmentId(0);
        span.ops.insert(0, Op::Take { fragment, version: Version(u64::MAX), keep: true });
        true
    });
    check("what was not merged taken out", fault(Fault::Include), &|span| {
        let fragments = 3;
        span.ops.push(Op::Include { fragment: FragmentId(fragments - 1) });
        span.ops.push(Op::Include { fragment: FragmentId(fragments - 1) });
        true
    });
    check("a step left out", fault(Fault::Count), &|span| {
        // The last one, so that no windows or rates come after it that would not fit any more.
        let at = span.ops.iter().rposition(|op| matches!(op, Op::Step { .. }));
        at.is_some_and(|at| {
            span.ops.remove(at);
            true
        })
    });
    check("another beginning", fault(Fault::Opening), &|span| {
        span.state[40] ^= 1;
        true
    });
    check("other counts at the beginning", fault(Fault::Opening), &|span| {
        span.tally = Tally::new(3);
        true
    });
}

/// Goal: what does not fit the commitment is told apart from what does not fit the run.
#[test]
fn what_is_shown_is_what_was_committed_to() {
    let mut rig = Rig::new(1.0, &[None]);
    rig.run(200);
    let check = |edit: &dyn Fn(&mut AuditJob), fault: Fault| {
        for job in rig.jobs.iter().filter(|job| job.commitment.steps > 0) {
            let mut forged = job.clone();
            edit(&mut forged);
            assert_eq!(rig.judge(&forged), Verdict::Failed(fault));
        }
    };
    check(&|job| job.commitment.inputs.0[0] ^= 1, Fault::Inputs);
    check(&|job| job.commitment.steps += 1, Fault::Steps);
    check(&|job| job.commitment.closing.0[31] ^= 1, Fault::Closing);
    check(&|job| job.commitment.opening.0[7] ^= 1, Fault::Opening);
    check(&|job| job.evidence.truncate(job.evidence.len() / 2), Fault::Malformed);
    check(&|job| job.evidence.clear(), Fault::Malformed);
}

/// Goal: one that leaves before it answers is not said to have failed.
#[test]
fn whoever_leaves_is_not_convicted() {
    let mut rig = Rig::new(1.0, &[None, Some(Cheat::Silent)]);
    for _ in 0..20 {
        rig.run(40);
        rig.cut(1);
    }
    assert_eq!(rig.failed(), []);
    assert!(rig.verdicts.iter().any(|&(learner, verdict)| (learner.0, verdict) == (2, Verdict::Left)));
}

#[test]
fn nobody_is_asked_unless_the_owner_wants_it() {
    let mut rig = Rig::new(0.0, &[None, Some(Cheat::SkipsSteps)]);
    rig.run(200);
    assert_eq!((rig.verdicts.len(), rig.jobs.len()), (0, 0));
    let mut rig = Rig::new(0.1, &[None, None]);
    rig.run(1_000);
    let updates: u64 = rig.syncer.ledger().accounts().map(|(_, account)| account.updates).sum();
    let share = rig.passed() as f64 / updates as f64;
    assert!((0.05..0.15).contains(&share), "{share} of {updates}");
}
