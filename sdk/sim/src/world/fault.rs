//! What can go wrong in a world.

use serde::{Deserialize, Serialize};

use super::forge::Craft;
use super::{Ailment, Damage, Lie, Loss, Rng};
use archipelago_core::wire::{Code, Message, Millis, RunId, Update, Version};

/// Something done to a world. Machines are named by their index in `WorldSpec::machines`; one that
/// does not exist, or a fault that does not apply, changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The learner's process dies (SIGKILL): its memory is gone, its sockets close.
    Kill(u32),
    /// The machine drops off the net without a word: nobody closes its sockets.
    Vanish(u32),
    /// A new process starts on the machine, with the same identity.
    Restart(u32),
    /// The learner's process stands still (SIGSTOP); its sockets stay open.
    Freeze(u32),
    /// It goes on (SIGCONT).
    Thaw(u32),
    /// Steps take this many times as long.
    Crawl(u32, f64),
    /// The machine is elsewhere: one way of its link takes this many milliseconds for all that is sent from now on.
    Move(u32, u64),
    /// The connection breaks; what is in flight on it is lost.
    Break(u32),
    /// Nothing passes between machine and syncer any more; nobody is told.
    Partition(u32),
    /// It passes again, what was held up first.
    Heal(u32),
    /// The connection is forgotten on the way, as by a router: what it carries is lost from now on, and nobody is told.
    /// A new one works.
    Swallow(u32),
    /// The owner pauses the learner, or lets it go on.
    Pause(u32, bool),
    /// The owner ends the learner politely.
    Leave(u32),
    /// From now on the learner's messages are forged in this way, or honest again.
    Poison(u32, Option<Poison>),
    /// The syncer's process dies (SIGKILL).
    CrashSyncer,
    /// The power fails: the syncer's process dies, and this becomes of what it wrote and did not sync.
    LosePower(Loss),
    /// A new syncer goes on where the tape ends.
    RestartSyncer,
    /// While no syncer runs, something is damaged of what was synced.
    Damage(Damage),
    /// The owner has the files as they were before they were damaged.
    Mend,
    /// From now on the syncer's disk fails at this, or works again.
    DiskFails(Option<Ailment>),
    /// The newest snapshot that is whole is damaged.
    TearSnapshot,
    /// The owner copies the folder of the run.
    BackUp,
    /// While no syncer runs, the owner puts the copy into its place; the copy stays.
    PutBack,
    /// The page of a machine's learner is hidden, or seen again.
    Hide(u32, bool),
    /// The owner holds the run, or lets it go on.
    Hold(bool),
    /// The owner of the run has the learner train for this share of its time, 0.001 to 1.
    Pace(u32, f64),
    /// The owner of the run sends the learner away for so many milliseconds.
    Drop(u32, u32),
    /// The owner ends the run.
    Finish,
}

impl Fault {
    /// The machine that it is done to, unless it is done to the syncer.
    pub(super) fn machine(self) -> Option<u32> {
        match self {
            Self::Kill(i)
            | Self::Vanish(i)
            | Self::Restart(i)
            | Self::Freeze(i)
            | Self::Thaw(i)
            | Self::Crawl(i, _)
            | Self::Move(i, _)
            | Self::Break(i)
            | Self::Partition(i)
            | Self::Heal(i)
            | Self::Swallow(i)
            | Self::Pause(i, _)
            | Self::Hide(i, _)
            | Self::Leave(i)
            | Self::Pace(i, _)
            | Self::Drop(i, _)
            | Self::Poison(i, _) => Some(i),
            Self::CrashSyncer
            | Self::LosePower(_)
            | Self::RestartSyncer
            | Self::Damage(_)
            | Self::Mend
            | Self::DiskFails(_)
            | Self::TearSnapshot
            | Self::BackUp
            | Self::PutBack
            | Self::Hold(_)
            | Self::Finish => None,
        }
    }
}

/// How a learner's updates are forged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Poison {
    /// A scale, or value, that is no number.
    NotFinite,
    /// The largest values that the code can carry.
    Huge,
    /// A body that is too short.
    Shape,
    /// A bit of the body flipped after the checksum was taken.
    BitFlip,
    /// Every update sent twice.
    Replay,
    /// Another run's id.
    WrongRun,
    /// A base that is not the round's.
    StaleBase,
    /// A thousand times as many tokens.
    Inflation,
    /// No steps and no tokens.
    Empty,
    /// A fragment that does not exist.
    NoFragment,
    /// Well-formed, and not true.
    Lie(Lie),
}

impl Poison {
    /// All of them that come to light by their form.
    pub const ALL: [Self; 10] = [
        Self::NotFinite,
        Self::Huge,
        Self::Shape,
        Self::BitFlip,
        Self::Replay,
        Self::WrongRun,
        Self::StaleBase,
        Self::Inflation,
        Self::Empty,
        Self::NoFragment,
    ];

    /// What a learner sends in place of `message`.
    pub(super) fn forge(self, message: Message, mut craft: Craft<'_>) -> Vec<Message> {
        let code = craft.run.exchange.code;
        if let Self::Lie(lie) = self {
            return craft.tell(lie, message).into_iter().collect();
        }
        let Message::Update(mut update) = message else { return vec![message] };
        let honest = update.clone();
        match self {
            Self::NotFinite => fill_first(&mut update, code, [0x80, 0x7f]),
            // 2⁶⁰ as bfloat16.
            Self::Huge => fill_first(&mut update, code, [0x80, 0x5d]),
            Self::Shape => {
                update.body.pop();
                update.checksum = archipelago_core::diloco::checksum(&update.body);
            }
            Self::BitFlip => {
                if let Some(last) = update.body.last_mut() {
                    *last ^= 1;
                }
            }
            Self::Replay => return vec![Message::Update(honest.clone()), Message::Update(honest)],
            Self::WrongRun => update.run = RunId(update.run.0 ^ 1),
            Self::StaleBase => update.base = Version(update.base.0 ^ 1),
            Self::Inflation => update.tokens = update.tokens.saturating_mul(1_000),
            Self::Empty => (update.steps, update.tokens) = (0, 0),
            Self::NoFragment => update.fragment.0 = u16::MAX,
            Self::Lie(_) => {}
        }
        vec![Message::Update(update)]
    }
}

/// Overwrites the first scale of the body, or where values travel as they are the first value, with a bfloat16.
fn fill_first(update: &mut Update, code: Code, [low, high]: [u8; 2]) {
    // A bfloat16 is the upper half of an `f32`, so the last two of its bytes in little endian.
    let forged: &[u8] = if code == Code::F32 { &[0, 0, low, high] } else { &[low, high] };
    if let Some(first) = update.body.get_mut(..forged.len()) {
        first.copy_from_slice(forged);
    }
    update.checksum = archipelago_core::diloco::checksum(&update.body);
}

/// How often things go wrong, each followed by its repair.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Storm {
    /// Faults in an hour, over all machines together.
    pub faults_per_h: f64,
    /// Shortest time until the repair, in milliseconds.
    pub repair_ms_min: u64,
    /// Longest time until the repair, in milliseconds.
    pub repair_ms_max: u64,
    /// Whether the syncer crashes too.
    pub syncer: bool,
}

impl Storm {
    /// A plan for `machines` machines over `from..until`, by time. Gaps are exponential; nothing is
    /// planned after `until`, so that repairs may come later than that only by `repair_ms_max`.
    #[must_use]
    pub fn plan(&self, seed: u64, machines: u32, from: Millis, until: Millis) -> Vec<(Millis, Fault)> {
        let mut rng = Rng::stream(seed, 0x5707);
        let mut plan = Vec::new();
        let mut at = from;
        loop {
            // Casting saturates: a rate of 0 plans nothing.
            at = at.after((rng.exponential() * 3_600_000.0 / self.faults_per_h).max(1.0) as u64);
            if at >= until || machines == 0 {
                break;
            }
            let machine = rng.below(u64::from(machines)) as u32;
            let repaired = at.after(rng.between(self.repair_ms_min, self.repair_ms_max));
            let (fault, repair) = match rng.below(if self.syncer { 7 } else { 6 }) {
                0 => (Fault::Kill(machine), Fault::Restart(machine)),
                1 => (Fault::Vanish(machine), Fault::Restart(machine)),
                2 => (Fault::Freeze(machine), Fault::Thaw(machine)),
                3 => (Fault::Crawl(machine, rng.between(2, 20) as f64), Fault::Crawl(machine, 1.0)),
                4 => (Fault::Break(machine), Fault::Break(machine)),
                5 => (Fault::Partition(machine), Fault::Heal(machine)),
                _ => (Fault::CrashSyncer, Fault::RestartSyncer),
            };
            plan.push((at, fault));
            plan.push((repaired, repair));
        }
        plan.sort_by_key(|(at, _)| *at);
        plan
    }
}
