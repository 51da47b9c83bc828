//! Remote rounds from the side of the gateway.

use std::sync::Arc;

use crate::diloco::syncer::{
    Answer, Followed, Input, LeaderRequest, Output, Syncer, SyncerConfig, SyncerError,
};
use crate::diloco::{Codec, FragmentState, checksum};
use crate::testing::{larger, merge, part};
use crate::wire::{
    CloseCode, ConnId, Fate, FragmentId, Hello, Identity, LearnerId, LearnerState, Message, Millis, Progress,
    Refusal, Round, RunId, Serial, Share, Signature, Update, Version,
};

const RUN: RunId = RunId(7);
const P: FragmentId = FragmentId(0);
const LEARNER: LearnerId = LearnerId(5);
const CONN: ConnId = ConnId(1);

fn syncer(config: SyncerConfig) -> Syncer {
    let (spec, layout) = larger();
    let theta = vec![0.0; layout.len()];
    Syncer::new(RUN, spec, config, &layout, &theta).unwrap().led_elsewhere(1)
}

fn hello() -> Hello {
    Hello {
        run: None,
        layout: None,
        identity: Identity([5; 32]),
        signature: Signature::NONE,
        name: String::new(),
        device: String::new(),
        invite: None,
    }
}

fn says(syncer: &mut Syncer, input: Input) -> Vec<Output> {
    syncer.handle(Millis(60_000), input);
    std::iter::from_fn(|| syncer.poll()).collect()
}

fn update(syncer: &Syncer) -> Message {
    let (codec, segments) =
        (Codec::new(&syncer.spec().exchange).unwrap(), syncer.fragments().segments(P).unwrap());
    let body = codec.encode(segments, &vec![0.1; syncer.fragments().len(P)]);
    let (serial, checksum) = (Serial(2), checksum(&body));
    let (base, seen) = (Version(0), Vec::new());
    Message::Update(Update {
        run: RUN,
        fragment: P,
        serial,
        base,
        steps: 1,
        tokens: 32,
        body,
        checksum,
        seen,
    })
}

/// A syncer with a learner that trains, of which far more was merged elsewhere than is leased here.
fn with_learner() -> Syncer {
    let mut syncer = syncer(SyncerConfig::default());
    let followed = Followed { merge: merge(P, part(LEARNER, 50_000_000)), led: None };
    says(&mut syncer, Input::Followed(Box::new(followed)));
    let said = says(&mut syncer, Input::Message(CONN, Message::Hello(hello())));
    let [Output::LeaderRequest(LeaderRequest::Introduce(CONN, hello))] = <[_; 1]>::try_from(said).unwrap()
    else {
        panic!("it is asked who that is");
    };
    let said = says(&mut syncer, Input::Introduced { conn: CONN, learner: LEARNER, hello });
    let welcome = said.iter().find_map(|output| match output {
        Output::Send(CONN, Message::Welcome(welcome)) => Some(welcome),
        _ => None,
    });
    assert_eq!(welcome.unwrap().merged[0], Some(Serial(1)), "it hears what was merged elsewhere");
    let layout = syncer.fragments().hash();
    says(&mut syncer, Input::Message(CONN, Message::Ready { run: RUN, layout, batch: 4 }));
    let state = LearnerState::Training;
    let (leases, tokens) = (Vec::new(), 32);
    let progress = Progress { run: RUN, leases, steps: 1, tokens, step_ms: 1_000.0, loss: 1.0, state };
    says(&mut syncer, Input::Message(CONN, Message::Progress(progress)));
    syncer
}

fn asked(round: u64) -> Input {
    Input::Asked { fragment: P, learner: LEARNER, conn: CONN, round: Round(round) }
}

/// Returns the rounds of the forwarded answers.
fn answers(said: &[Output]) -> Vec<Round> {
    let round = |output: &Output| match output {
        Output::LeaderRequest(LeaderRequest::Answer(P, LEARNER, CONN, round, _)) => Some(*round),
        _ => None,
    };
    said.iter().filter_map(round).collect()
}

/// Returns the numbers to echo.
fn numbers(said: &[Output]) -> Vec<u64> {
    let number = |output: &Output| match output {
        Output::Probe(CONN, number) => Some(*number),
        _ => None,
    };
    said.iter().filter_map(number).collect()
}

/// Goal: a learner with far more merged tokens elsewhere than leased here can count tokens from its first lease on,
/// also as a new process. Its answer belongs to the round in which it was asked.
#[test]
fn what_was_merged_elsewhere_is_no_debt_here() {
    let mut syncer = with_learner();
    says(&mut syncer, asked(8));
    let answer = update(&syncer);
    let said = says(&mut syncer, Input::Message(CONN, answer));
    let standing = said.iter().find_map(|output| match output {
        Output::LeaderRequest(LeaderRequest::Answer(
            P,
            LEARNER,
            CONN,
            Round(8),
            Answer::Update(_, standing),
        )) => Some(standing),
        _ => None,
    });
    assert!(standing.unwrap().unmerged_tokens > 0, "{standing:?}");
}

/// Goal: an answer that comes after its round is forwarded for a later one once its sender is known to be connected,
/// and for no further round.
#[test]
fn who_is_late_is_passed_on_while_it_is_here() {
    let mut syncer = with_learner();
    // Asked in one round and answered in the next.
    says(&mut syncer, asked(9));
    says(&mut syncer, asked(10));
    let answer = update(&syncer);
    let said = says(&mut syncer, Input::Message(CONN, answer));
    let [number] = numbers(&said)[..] else { panic!("{said:?}") };
    assert_eq!(answers(&said), [], "it may have left since");
    assert_eq!(answers(&says(&mut syncer, Input::Probed(ConnId(9), number))), [], "that is somebody else");
    assert_eq!(answers(&says(&mut syncer, Input::Probed(CONN, number + 1))), [], "nobody sent that");
    assert_eq!(answers(&says(&mut syncer, Input::Probed(CONN, number))), [Round(10)]);
    assert_eq!(answers(&says(&mut syncer, Input::Probed(CONN, number))), [], "it is passed on once");

    // If the round is over when the answer comes, the answer may join the next round but not the one after that.
    says(&mut syncer, asked(11));
    says(&mut syncer, Input::Over(P, Round(11)));
    let answer = update(&syncer);
    let said = says(&mut syncer, Input::Message(CONN, answer.clone()));
    let [number] = numbers(&said)[..] else { panic!("{said:?}") };
    says(&mut syncer, Input::Probed(CONN, number));
    says(&mut syncer, Input::Over(P, Round(12)));
    let said = says(&mut syncer, asked(13));
    let [number] = numbers(&said)[..] else { panic!("it has yet to show that it is here: {said:?}") };
    assert!(says(&mut syncer, asked(13)).is_empty(), "a number is on its way");
    assert_eq!(answers(&says(&mut syncer, Input::Probed(CONN, number))), [Round(13)]);
    says(&mut syncer, asked(14));
    says(&mut syncer, Input::Over(P, Round(14)));
    let said = says(&mut syncer, Input::Message(CONN, answer.clone()));
    says(&mut syncer, Input::Probed(CONN, numbers(&said)[0]));
    assert_eq!(answers(&says(&mut syncer, asked(15))), [Round(15)], "it need not wait then");

    // A learner without an update for a finished round is asked once in the next round and not again before it.
    let pass = || Input::Message(CONN, Message::NoUpdate { run: RUN, fragment: P });
    says(&mut syncer, asked(16));
    says(&mut syncer, Input::Over(P, Round(16)));
    assert!(says(&mut syncer, pass()).is_empty());
    let said = says(&mut syncer, asked(17));
    assert!(
        said.iter().any(|output| matches!(output, Output::Send(CONN, Message::Collect { .. }))),
        "{said:?}"
    );
    says(&mut syncer, Input::Over(P, Round(17)));
    says(&mut syncer, pass());

    // Waiting updates go with their connection.
    says(&mut syncer, asked(18));
    says(&mut syncer, Input::Over(P, Round(18)));
    let said = says(&mut syncer, Input::Message(CONN, answer));
    says(&mut syncer, Input::Disconnected(CONN));
    assert!(answers(&says(&mut syncer, Input::Probed(CONN, numbers(&said)[0]))).is_empty());
}

/// Goal: a gateway does not end a run that has its tokens. It tells the leaders once, and learners stay until each
/// fragment has had its last round.
#[test]
fn the_run_ends_with_the_last_round_of_the_last_fragment() {
    let mut syncer = syncer(SyncerConfig { stop_tokens: 1_000, ..SyncerConfig::default() });
    says(&mut syncer, Input::Introduced { conn: CONN, learner: LEARNER, hello: Box::new(hello()) });
    let mut followed = || {
        let followed = Followed { merge: merge(P, part(LEARNER, 50_000_000)), led: None };
        says(&mut syncer, Input::Followed(Box::new(followed)))
    };
    let is_enough = |output: &&Output| matches!(output, Output::LeaderRequest(LeaderRequest::Enough));
    assert_eq!(followed().iter().filter(is_enough).count(), 1);
    assert_eq!(followed().iter().filter(is_enough).count(), 0, "it is said once");
    let count = syncer.fragments().count();
    assert!(count > 1);
    for fragment in syncer.fragments().clone().ids() {
        assert!(!syncer.is_over(), "a last round is still to come");
        let said = says(&mut syncer, Input::Closed(fragment));
        let goes =
            |output: &Output| matches!(output, Output::Close(CONN, bye) if bye.code == CloseCode::Done);
        assert_eq!(said.iter().any(goes), fragment.0 + 1 == count, "{said:?}");
    }
    assert!(syncer.is_over());
}

/// Goal: an order of the owner about a learner holds at a gateway that the learner reaches only later.
#[test]
fn what_the_owner_said_of_a_learner_awaits_it_everywhere() {
    let mut syncer = syncer(SyncerConfig::default());
    let share = Share::new(0.25).unwrap();
    says(&mut syncer, Input::Pace { learner: LEARNER, share });
    says(&mut syncer, Input::Drop { learner: LEARNER, wait_ms: 5_000 });
    let comes = |syncer: &mut Syncer, conn: ConnId| {
        says(syncer, Input::Introduced { conn, learner: LEARNER, hello: Box::new(hello()) })
    };
    let said = comes(&mut syncer, CONN);
    let is_away =
        |output: &Output| matches!(output, Output::Close(CONN, bye) if bye.code == CloseCode::Dropped);
    assert!(said.iter().any(is_away), "{said:?}");
    says(&mut syncer, Input::Drop { learner: LEARNER, wait_ms: 0 });
    let said = comes(&mut syncer, ConnId(2));
    let shares = said.iter().find_map(|output| match output {
        Output::Send(_, Message::Welcome(welcome)) => Some(welcome.share),
        _ => None,
    });
    assert_eq!(shares, Some(share), "{said:?}");
}

/// Goal: a learner with repeated refusals from remote leaders is sent away, as with local rounds.
#[test]
fn who_is_refused_elsewhere_again_and_again_begins_afresh() {
    let mut syncer = with_learner();
    let refusals_max = SyncerConfig::default().refusals_max;
    for i in 1..=refusals_max {
        let (serial, refusal) = (Serial(i.into()), Some(Refusal::Norm));
        let unmerged = Input::Unmerged { fragment: P, learner: LEARNER, conn: CONN, serial, refusal };
        let said = says(&mut syncer, unmerged);
        let is_told = |out: &Output| {
            matches!(out, Output::Send(CONN, Message::Receipt { fate: Fate::Refused(Refusal::Norm), .. }))
        };
        assert!(said.iter().any(is_told), "{said:?}");
        let is_away = said
            .iter()
            .any(|out| matches!(out, Output::Close(CONN, bye) if bye.code == CloseCode::Untrusted));
        assert_eq!(is_away, i == refusals_max, "{i}: {said:?}");
    }
}

/// Goal: with remote rounds only Θ̂ of a fragment is kept, also after a merge.
#[test]
fn of_each_fragment_there_is_what_learners_hold() {
    let mut syncer = syncer(SyncerConfig::default());
    let is_hat = |syncer: &Syncer| {
        syncer.states().all(|state| Arc::ptr_eq(&state.theta, &state.hat) && state.momentum.is_empty())
    };
    assert!(is_hat(&syncer));
    let mut state = FragmentState::new(vec![0.3; syncer.fragments().len(P)]);
    state.version = Version(9);
    let hat = Arc::clone(&state.hat);
    let followed = Followed { merge: merge(P, part(LEARNER, 8)), led: Some((state, Vec::new())) };
    says(&mut syncer, Input::Followed(Box::new(followed)));
    assert!(is_hat(&syncer));
    assert_eq!(syncer.hat(P), Some((Version(9), hat)));
}

/// Goal: Θ̂ that do not fit the run are refused.
#[test]
fn hats_fit_the_fragments() {
    let (spec, layout) = larger();
    let whole = syncer(SyncerConfig::default());
    let mut hats: Vec<_> = whole.states().map(|state| Arc::clone(&state.hat)).collect();
    let begin = |hats| {
        Syncer::before_others(RUN, spec.clone(), SyncerConfig::default(), &layout, hats).map(|syncer| {
            let states: Vec<_> = syncer.states().cloned().collect();
            states
        })
    };
    assert_eq!(begin(hats.clone()), Ok(whole.states().cloned().collect()));
    let expected = hats[0].len();
    hats[0] = Arc::default();
    assert_eq!(begin(hats.clone()), Err(SyncerError::Fragment { fragment: P, expected, actual: 0 }));
    let count = hats.len();
    hats.pop();
    assert_eq!(begin(hats), Err(SyncerError::FragmentCount { expected: count, actual: count - 1 }));
}
