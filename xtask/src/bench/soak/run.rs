//! The run itself: processes, kills, and periodic samples.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::thread;
use std::time::{Duration, Instant};

use archipelago_demo::Process;
use serde_json::Value;

use super::gauge::{Held, Look, disk_bytes, held, larger};
use crate::bench::processes::{Programs, all_live, empty_folder, number, status};
use crate::bench::proof::{Receipt, receipts};

const LEARNERS: usize = 3;
/// Duty cycle of each learner: enough for thousands of merges between two kills.
const DUTY_CYCLE: &str = "0.15";
/// Maximum bytes of updates kept for replay. The value is small, so that much is removed within the hour.
const KEEP_BYTES: u64 = 16 << 20;
/// Interval of kills of the syncer, and of samples.
const KILL_EVERY: Duration = Duration::from_secs(1_200);
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Time without kills at the end, so that the end is like the beginning.
const CALM: Duration = Duration::from_secs(120);

/// Complete record of the benchmark.
pub struct Seen {
    pub looks: Vec<Look>,
    pub restarts: u32,
    pub params: u64,
    pub keep_bytes: u64,
    pub merges: u64,
    /// Number of decisions still on the tape.
    pub updates_kept: u64,
    /// Number of receipts for merged updates that are recent enough to be on the tape, and the number of those missing
    /// there.
    pub told: u64,
    pub acked_lost: u64,
}

/// Runs learners for `length`.
///
/// # Errors
/// A message if a program could not be started, the syncer did not come back, or a learner ended.
pub fn run(programs: &Programs, length: Duration) -> Result<Seen, String> {
    let folder = empty_folder("soak")?;
    let flags = ["--keep", &KEEP_BYTES.to_string(), "--total-tokens", "400000000"].map(OsString::from);
    let serve =
        |listen: &str, life: u32| programs.serve("tiny", listen, &folder, &format!("syncer-{life}"), &flags);
    let (mut syncer, address) = serve("127.0.0.1:0", 1)?;
    let join = |number: usize| {
        programs.join(address, &folder, &format!("learner-{number}"), &["--duty-cycle", DUTY_CYCLE])
    };
    let mut learners = (1..=LEARNERS).map(join).collect::<Result<Vec<_>, _>>()?;
    all_live(address, &mut syncer, LEARNERS)?;
    let (began, mut killed, mut life, mut looks) = (Instant::now(), Instant::now(), 1, Vec::new());
    while began.elapsed() < length {
        thread::sleep(LOOK_EVERY);
        if killed.elapsed() >= KILL_EVERY && began.elapsed() + CALM < length {
            syncer.kill();
            life += 1;
            (syncer, _) = serve(&address.to_string(), life)?;
            all_live(address, &mut syncer, LEARNERS)?;
            killed = Instant::now();
            println!("   {:>4} s: killed, and all are live again", began.elapsed().as_secs());
        }
        let now = status(address)?;
        let look = Look {
            at_s: began.elapsed().as_secs_f64(),
            syncer: held(&syncer),
            learner: learners.iter().map(held).fold(Held::default(), larger),
            disk_bytes: disk_bytes(&folder.join("store")),
            bytes_up: number(&now, "/bytesUp"),
            merges: number(&now, "/rounds"),
            life,
        };
        // Every sample is printed, so that the time of a growth is visible.
        println!(
            "   {:>5.0} s: syncer {} KiB, learner {} KiB, disk {} KiB",
            look.at_s,
            look.syncer.rss_bytes >> 10,
            look.learner.rss_bytes >> 10,
            look.disk_bytes >> 10
        );
        looks.push(look);
        let ended = learners.iter_mut().find_map(|one| one.exit_code().map(|_| one.last_words()));
        if let Some(words) = ended {
            return Err(format!("a learner ended: {words}"));
        }
    }
    let last = status(address)?;
    syncer.kill();
    learners.iter_mut().for_each(Process::kill);
    let told: Vec<Receipt> = learners.iter().flat_map(|learner| receipts(&learner.stdout())).collect();
    let replay = programs.replay(&folder)?;
    let kept = kept(&replay);
    let is_young = |(_, fragment, version): &&Receipt| {
        let oldest = kept.keys().filter(|key| key.1 == *fragment).map(|key| key.2).min();
        version.parse::<u64>().is_ok_and(|version| oldest.is_some_and(|oldest| version >= oldest))
    };
    let young: Vec<&Receipt> = told.iter().filter(is_young).collect();
    let is_there = |(learner, fragment, version): &Receipt| {
        version.parse().is_ok_and(|version| kept.contains_key(&(*learner, *fragment, version)))
    };
    Ok(Seen {
        looks,
        restarts: life - 1,
        params: number(&last, "/params"),
        keep_bytes: KEEP_BYTES,
        merges: number(&last, "/rounds"),
        updates_kept: kept.values().sum(),
        told: young.len() as u64,
        acked_lost: young.iter().filter(|receipt| !is_there(receipt)).count() as u64,
    })
}

/// Counts each update in the merges of `replay`, by learner, fragment and version.
fn kept(replay: &[Value]) -> BTreeMap<(u64, u64, u64), u64> {
    let mut kept = BTreeMap::new();
    for merge in replay {
        let version = merge["version"].as_str().and_then(|version| version.parse().ok());
        for part in merge["members"].as_array().into_iter().flatten() {
            let (learner, fragment) = (part["learner"].as_u64(), merge["fragment"].as_u64());
            if let (Some(learner), Some(fragment), Some(version)) = (learner, fragment, version) {
                *kept.entry((learner, fragment, version)).or_default() += 1;
            }
        }
    }
    kept
}
