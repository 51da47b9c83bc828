//! Target for peers that send any messages to a syncer, in any order.

use std::collections::BTreeSet;

use archipelago_core::diloco::syncer::{Event, Host, Input, Syncer, SyncerConfig};
use archipelago_core::diloco::{Codec, MergeJob, checksum};
use archipelago_core::wire::{
    Bye, ConnId, FragmentId, Hello, Identity, Invite, LearnerId, LearnerState, LeaseId, Message, Millis,
    Progress, RunId, Serial, Share, Signature, Update, Version, decode, encode,
};
use archipelago_sim::world::Toy;

use crate::script::Script;

const RUN: RunId = RunId(9);
const CONNS: usize = 6;
const STEPS_MAX: usize = 400;
/// Largest magnitude of a parameter: a multiple of the largest honest norm, which no message can exceed.
const THETA_MAX: f32 = 1e6;

/// Pending outputs of the syncer.
#[derive(Default)]
struct Shell {
    open: BTreeSet<ConnId>,
    jobs: Vec<MergeJob>,
    messages: usize,
}

impl Host for Shell {
    fn send(&mut self, conns: &[ConnId], _message: Message) {
        assert!(conns.iter().all(|conn| self.open.contains(conn)), "{conns:?} of {:?}", self.open);
        self.messages += conns.len();
    }

    fn close(&mut self, conn: ConnId, _bye: Bye) {
        assert!(self.open.remove(&conn), "{conn:?} is closed that was never open");
    }

    fn merge(&mut self, job: MergeJob) {
        self.jobs.push(job);
    }

    fn note(&mut self, _syncer: &Syncer, _event: Event) {}

    fn finished(&mut self) {}
}

/// Runs a script against a syncer: connections open and close, send scripted messages, and time passes. In every case
/// the syncer answers only open connections, does bounded work for each message, and keeps its parameters finite.
pub fn run(data: &[u8]) {
    let mut script = Script(data);
    let (spec, _) = Toy::run(1, 4, 200);
    let layout = Toy::layout();
    let start = vec![0.0; layout.len()];
    let mut syncer = Syncer::new(RUN, spec, SyncerConfig::default(), &layout, &start).unwrap();
    let (mut shell, mut now) = (Shell::default(), Millis(1));
    for _ in 0..STEPS_MAX {
        if script.is_over() {
            break;
        }
        let conn = ConnId(script.below(CONNS) as u64);
        let before = shell.messages;
        if let Some(input) = input(&mut script, &mut shell, conn, &syncer, &mut now) {
            syncer.drive(now, input, &mut shell);
        }
        assert!(shell.messages - before <= 64 * CONNS, "{} messages at once", shell.messages - before);
        let theta = syncer.theta();
        assert!(theta.is_none_or(|theta| theta.iter().all(|value| value.abs() < THETA_MAX)));
    }
    // In every case, pending merges end.
    for _ in 0..STEPS_MAX {
        let Some(job) = shell.jobs.pop() else { break };
        syncer.drive(now, Input::Merged(Box::new(job.run())), &mut shell);
    }
    assert!(shell.jobs.is_empty(), "merges without end");
}

/// Returns the next input, or `None` if it does not reach the syncer.
fn input(
    script: &mut Script<'_>,
    shell: &mut Shell,
    conn: ConnId,
    syncer: &Syncer,
    now: &mut Millis,
) -> Option<Input> {
    let learner = LearnerId(script.below(8) as u32);
    let message = match script.below(12) {
        0 => {
            *now = now.after(u64::from(script.short()));
            let is_due = syncer.deadline(*now).is_some_and(|at| at <= *now);
            return is_due.then_some(Input::Timeout);
        }
        1 => return shell.open.remove(&conn).then_some(Input::Disconnected(conn)),
        2 => return shell.jobs.pop().map(|job| Input::Merged(Box::new(job.run()))),
        3 => return shell.open.contains(&conn).then_some(Input::Heard(conn)),
        4 => {
            let wait_ms = script.long() as u32;
            return Some(match script.below(4) {
                0 => Input::Hold(script.byte() % 2 == 1),
                1 => Input::Stall(script.byte() % 2 == 1),
                2 => Input::Drop { learner, wait_ms },
                _ => Input::Pace { learner, share: Share::new(f64::from(script.byte()) / 255.0).ok()? },
            });
        }
        5 => Message::Hello(hello(script)),
        6 | 7 => Message::Update(update(script, syncer)?),
        8 => Message::Progress(progress(script)),
        _ => altered(script, syncer)?,
    };
    shell.open.insert(conn);
    // As in a connection: messages that only a syncer sends are filtered out.
    message.is_for_syncers().then_some(Input::Message(conn, message))
}

/// Returns a message with some bytes changed, if it still decodes.
fn altered(script: &mut Script<'_>, syncer: &Syncer) -> Option<Message> {
    let message = match script.below(3) {
        0 => Message::Hello(hello(script)),
        1 => Message::Update(update(script, syncer)?),
        _ => Message::Progress(progress(script)),
    };
    let mut bytes = encode(&message);
    for _ in 0..=script.below(4) {
        let at = usize::from(script.short()) % bytes.len();
        bytes[at] = script.byte();
    }
    decode(&bytes).ok()
}

fn hello(script: &mut Script<'_>) -> Hello {
    Hello {
        run: (!script.byte().is_multiple_of(4)).then_some(RUN),
        layout: None,
        identity: Identity([script.byte() % 8; 32]),
        signature: Signature([script.byte(); 64]),
        invite: Some(Invite::new(script.long().to_string())),
        name: String::from_utf8_lossy(&script.bytes(64)).into_owned(),
        device: "cpu, by chance".to_owned(),
    }
}

fn update(script: &mut Script<'_>, syncer: &Syncer) -> Option<Update> {
    let fragment = FragmentId(script.below(4) as u16);
    let (version, _) = syncer.hat(fragment)?;
    let segments = syncer.fragments().segments(fragment)?;
    let len: u32 = segments.iter().map(|segment| segment.len).sum();
    let scale = f32::from_bits(u32::from(script.byte()) << 23);
    let values: Vec<f32> = (0..len).map(|at| scale * (at as f32 - len as f32 / 2.0)).collect();
    let codec = Codec::new(&syncer.spec().exchange).ok()?;
    let body = codec.encode(segments, &values);
    Some(Update {
        run: RUN,
        fragment,
        serial: Serial(script.long()),
        base: Version(version.0.wrapping_sub(u64::from(script.byte() % 4))),
        steps: script.long() as u32,
        tokens: script.long(),
        checksum: checksum(&body),
        seen: Vec::new(),
        body,
    })
}

fn progress(script: &mut Script<'_>) -> Progress {
    let states = [
        LearnerState::Joining,
        LearnerState::Training,
        LearnerState::Training,
        LearnerState::Paused,
        LearnerState::Hidden,
    ];
    let lease = |script: &mut Script<'_>| (LeaseId(u64::from(script.byte())), u32::from(script.byte()));
    Progress {
        run: RUN,
        leases: (0..script.below(4)).map(|_| lease(script)).collect(),
        steps: script.long(),
        tokens: script.long(),
        step_ms: f32::from_bits(u32::from(script.short()) << 16),
        loss: f32::from_bits(u32::from(script.short()) << 16),
        state: states[script.below(states.len())],
    }
}
