//! Tests of a replay of the tape: its losses, the model at some decision, and forks.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use archipelago_core::wire::{Message, RunId};
use syncer_server::{ForkArgs, Losses, Member, Replay, ReplayArgs, ReplayedMerge, ServeConfig, ServerError};
use syncer_server::{Form, Store, export, fork, replayed};

use crate::support::{Learner, PATIENCE, Server, config};

const MERGES_MIN: u64 = 12;

/// Trains a run of at least [`MERGES_MIN`] merges, every fifth a large one. Returns the number of merges. An update
/// that arrives while an earlier one waits replaces it, so not every update is merged.
async fn trained(dir: &Path) -> u64 {
    let server = Server::start(config(dir)).await;
    let mut learner = Learner::join(&server, 1).await;
    for update in 1..=4 * MERGES_MIN {
        let invitation = learner.collect().await;
        learner.steps += 1;
        learner.report().await;
        let update = learner.update(invitation, if update % 5 == 0 { 0.01 } else { 0.004 });
        learner.client.send(&Message::Update(update)).await;
        if server.status().await["fates"]["merged"].as_u64() >= Some(MERGES_MIN) {
            break;
        }
    }
    let merges = server.stop().await.core.fates.merged;
    assert!(merges >= MERGES_MIN, "only {merges}");
    merges
}

/// Returns the arguments of a replay of the whole tape, with about `points` measurements of the loss, if given.
pub fn args(dir: &Path, points: Option<u32>) -> ReplayArgs {
    let (losses, points) = (points.is_some(), points.unwrap_or(1));
    ReplayArgs {
        folder: dir.to_owned().into(),
        until: u64::MAX,
        merges: true,
        losses,
        points,
        plot: None,
        out: None,
        overwrite: false,
        json: false,
    }
}

fn replay(args: &ReplayArgs) -> (Replay, Vec<ReplayedMerge>) {
    let mut merges = Vec::new();
    let replay = replayed(args, |merge| merges.push(merge.clone())).unwrap();
    (replay, merges)
}

#[tokio::test]
async fn names_the_merge_that_raised_the_loss() {
    let dir = tempfile::tempdir().unwrap();
    let made = trained(dir.path()).await;

    let (plain, merges) = replay(&args(dir.path(), None));
    assert_eq!((plain.merges, merges.len() as u64), (made, made));
    assert!(plain.losses.is_none() && merges.iter().all(|merge| merge.loss.is_none()));

    // Every merge is measured.
    let (all, merges) = replay(&args(dir.path(), Some(1_000)));
    let Losses { first, least, last, every, rise } = all.losses.unwrap();
    let losses: Vec<f32> = merges.iter().map(|merge| merge.loss.unwrap()).collect();
    assert_eq!((every, last), (1, losses[losses.len() - 1]));
    assert_eq!(least, losses.iter().copied().fold(first, f32::min));
    let before = |place: usize| if place == 0 { first } else { losses[place - 1] };
    let rises = |place: usize| losses[place] - before(place);
    let steepest = (0..losses.len()).max_by(|a, b| rises(*a).total_cmp(&rises(*b))).unwrap();
    let rise = rise.expect("the large update did harm");
    assert_eq!(
        (rise.seq, rise.before, rise.after),
        (merges[steepest].seq, before(steepest), losses[steepest])
    );
    let Member { name, tokens, share, .. } = &rise.members[0];
    assert_eq!((&**name, *tokens > 0, *share, rise.members.len()), ("learner 1", true, 1.0, 1));

    // Coarse measurements, then finer ones. A rise between two measurements with an overall fall is missed.
    let mut times_found = 0;
    for points in [1, 3, 6, 8] {
        let (few, _) = replay(&args(dir.path(), Some(points)));
        let found = few.losses.unwrap();
        assert_eq!((found.first, found.last, found.every), (first, last, made.div_ceil(u64::from(points))));
        let Some(found) = found.rise else { continue };
        times_found += 1;
        let place = merges.iter().position(|merge| merge.seq == found.seq).unwrap();
        assert_eq!((found.before, found.after), (before(place), losses[place]), "{points} points");
    }
    assert!(times_found > 0, "{losses:?}");
}

#[tokio::test]
async fn draws_what_each_merge_did() {
    let dir = tempfile::tempdir().unwrap();
    trained(dir.path()).await;
    let plot = dir.path().join("merges.html");
    replay(&ReplayArgs { plot: Some(plot.clone()), ..args(dir.path(), None) });
    let page = |path| fs::read_to_string(path).unwrap();
    assert_eq!(page(&plot).matches("<svg").count(), 2, "learners and norms");
    let (found, _) = replay(&ReplayArgs { plot: Some(plot.clone()), ..args(dir.path(), Some(100)) });
    let page = page(&plot);
    assert_eq!(page.matches("<svg").count(), 3, "and the loss");
    let rise = found.losses.unwrap().rise.unwrap();
    assert!(page.contains(&format!("decision {}", rise.seq)) && page.contains("learner 1"), "{page}");
}

#[tokio::test]
async fn the_beginning_is_kept_while_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let made = trained(dir.path()).await;
    let often = ServeConfig { snapshot_every: "100ms".parse().unwrap(), ..config(dir.path()) };
    let server = Server::start(often).await;
    // Wait until neither of the two kept snapshots is of the beginning.
    let kept = || fs::read_dir(dir.path().join("snapshots")).unwrap().map(|entry| entry.unwrap().file_name());
    let until = tokio::time::Instant::now() + PATIENCE;
    while kept().any(|name| *name.to_string_lossy() < *"00000004") {
        assert!(tokio::time::Instant::now() < until, "{:?}", kept().collect::<Vec<_>>());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    server.stop().await;
    let (found, _) = replay(&args(dir.path(), None));
    assert_eq!((found.first, found.merges), (1, made));
}

#[tokio::test]
async fn gives_the_model_of_any_moment() {
    let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    trained(dir.path()).await;
    let model = |name: &str| fs::read(out.path().join(name).join("model.safetensors")).unwrap();
    let at = |until: u64, name: &str| ReplayArgs {
        until,
        out: Some(out.path().join(name)),
        ..args(dir.path(), None)
    };
    let (_, merges) = replay(&args(dir.path(), None));
    export(dir.path(), &out.path().join("now"), Form::default(), false).unwrap();
    let last = replay(&at(u64::MAX, "last")).0;
    assert_eq!(last.exported.unwrap().tokens_merged, last.tokens_merged);
    assert!(model("last") == model("now"), "the tape leads to the newest snapshot");
    let middle = replay(&at(merges[5].seq, "middle")).0;
    assert_eq!((middle.merges, middle.last), (6, merges[5].seq));
    assert!(model("middle") != model("now"));
}

#[tokio::test]
async fn a_fork_begins_where_the_run_was() {
    let (dir, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    trained(dir.path()).await;
    let (_, merges) = replay(&args(dir.path(), None));
    let forked_at =
        |at: u64, to: PathBuf| fork(&ForkArgs { folder: dir.path().to_owned().into(), at, to, json: false });
    let tape = fs::read(dir.path().join("tape.sqlite")).unwrap();

    let to = place.path().join("fork");
    let forked = forked_at(merges[5].seq, to.clone()).unwrap();
    assert_eq!((forked.at, forked.tokens_merged), (merges[5].seq, merges[5].clock_tokens));
    assert!(matches!(forked_at(merges[5].seq, to.clone()), Err(ServerError::DirTaken { .. })));
    let beyond = forked_at(u64::from(u32::MAX), place.path().join("beyond"));
    assert!(
        matches!(&beyond, Err(ServerError::Config { why }) if why.contains("decisions up to")),
        "{beyond:?}"
    );
    assert!(!place.path().join("beyond").exists());

    let was = Store::look(dir.path()).manifest().unwrap().unwrap().run;
    assert_eq!(forked.of, RunId::to_string(&was));
    let server = Server::start(config(&to)).await;
    let status = server.status().await;
    assert_eq!(status["run"], *forked.run);
    assert_ne!(status["run"], *forked.of);
    assert_eq!(status["tokensMerged"], forked.tokens_merged);
    let mut learner = Learner::join(&server, 1).await;
    learner.merge().await;
    server.stop().await;
    // The fork continues from the same parameters, and has its own tape.
    let (own, _) = replay(&args(&to, None));
    assert_eq!(own.merges, 1);
    assert!(fs::read(dir.path().join("tape.sqlite")).unwrap() == tape, "the run itself is as it was");

    // A fork that fails halfway leaves nothing behind, and neither does one whose program was killed.
    let count = || fs::read_dir(place.path()).unwrap().count();
    let before = count();
    let last = place.path().join("last");
    let held_out = dir.path().join("held-out.json");
    let whole = fs::read(&held_out).unwrap();
    fs::write(&held_out, "damaged").unwrap();
    assert!(forked_at(merges[5].seq, last.clone()).is_err());
    assert_eq!(count(), before, "half a fork is left");
    fs::write(&held_out, whole).unwrap();
    forked_at(merges[5].seq, last).unwrap();

    // The run continues without its bodies. New bodies do not reuse the numbers of missing ones.
    fs::remove_dir_all(dir.path().join("bodies")).unwrap();
    let server = Server::start(config(dir.path())).await;
    Learner::join(&server, 1).await.merge().await;
    server.stop().await;
    assert!(!dir.path().join("bodies/00000001.bodies").exists());
    assert!(dir.path().join("bodies/00000002.bodies").exists());
}
