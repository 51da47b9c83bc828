//! Current round of a leader: collecting offers, weighting updates, and adding up the gateways' sums.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::statistics::Measured;
use super::{GatewayId, LeaderTerms, Notice, Offer, Reply, UpdateWeight};
use crate::diloco::{Decision, Launch, MergeEntry, MergeError, MergeFailure, MergeJob, PartialSum, Rounds};
use crate::wire::{Fate, LearnerId, Millis, Refusal, Round, Serial};

/// State of the current round.
#[derive(Debug)]
pub(super) struct ActiveRound {
    round: Round,
    /// Invited learners; `None` means all.
    invited: Option<BTreeSet<LearnerId>>,
    /// Gateway and serial number of each accepted offer, by learner.
    offered: BTreeMap<LearnerId, (GatewayId, Serial)>,
    /// Learners whose offers arrived, accepted or not, by gateway.
    heard: BTreeMap<GatewayId, BTreeSet<LearnerId>>,
    /// Refused updates with their reasons, by learner.
    refused: BTreeMap<LearnerId, (Serial, Refusal)>,
    is_refusal_sent: bool,
    /// Pending merge; `None` while the round collects offers.
    summing: Option<Summing>,
    /// Time of the last notice to gateways.
    notified: Option<Millis>,
    notice: Option<Notice>,
}

/// Merge that waits for sums.
#[derive(Debug)]
struct Summing {
    job: MergeJob,
    /// Segments on which directions cancelled out.
    cancelled: Vec<u32>,
    empty: PartialSum,
    sum: PartialSum,
    /// Gateways whose sums are missing.
    missing: BTreeSet<GatewayId>,
    weights: Arc<Vec<(GatewayId, Vec<UpdateWeight>)>>,
    since: Millis,
}

/// Result of a finished round.
#[derive(Debug)]
pub(super) enum Ended {
    /// The fragment has a new version.
    Merged(Box<MergeEntry>),
    /// The round ended without a merge.
    Abandoned,
}

impl ActiveRound {
    /// Launches a round. If `is_sample`, only the learners invited by `launch` take part; otherwise all do.
    pub(super) fn launch(now: Millis, rounds: &mut Rounds, launch: Launch, is_sample: bool) -> Self {
        let round = launch.round;
        let invited = is_sample.then(|| launch.invited.clone());
        rounds.launch(now, launch);
        Self {
            round,
            invited,
            offered: BTreeMap::new(),
            heard: BTreeMap::new(),
            refused: BTreeMap::new(),
            is_refusal_sent: true,
            summing: None,
            notified: None,
            notice: None,
        }
    }

    /// Returns the next notice to gateways.
    pub(super) fn poll(&mut self) -> Option<Notice> {
        if !std::mem::replace(&mut self.is_refusal_sent, true) {
            let refused = self.refused.iter().map(|(learner, (serial, why))| (*learner, *serial, *why));
            return Some(Notice::Refused { round: self.round, refused: refused.collect() });
        }
        self.notice.take()
    }

    /// Handles a gateway's reply.
    pub(super) fn take(&mut self, now: Millis, rounds: &mut Rounds, reply: Reply) {
        match reply {
            Reply::Here { .. } => {}
            Reply::Pass { round, learners } => {
                if round == self.round && self.summing.is_none() {
                    for learner in learners {
                        rounds.pass(now, learner);
                    }
                }
            }
            Reply::Offers { gateway, round, offers } => {
                if round == self.round && self.summing.is_none() {
                    self.heard.entry(gateway).or_default().extend(offers.iter().map(|offer| offer.learner));
                    offers.into_iter().for_each(|offer| self.take_offer(now, rounds, gateway, offer));
                }
            }
            Reply::Sum { gateway, round, cancelled, bytes } => {
                let Some(summing) = self.summing.as_mut().filter(|_| round == self.round) else { return };
                // An invalid sum is treated as missing.
                if cancelled == summing.cancelled && summing.missing.contains(&gateway) {
                    summing.add(gateway, &bytes);
                }
            }
        }
    }

    fn take_offer(&mut self, now: Millis, rounds: &mut Rounds, gateway: GatewayId, offer: Offer) {
        let Offer { learner, update, sender } = offer;
        let serial = update.serial;
        if self.offered.contains_key(&learner) || !rounds.is_of_fragment(&update) {
            return;
        }
        match rounds.answer(now, learner, update, &sender) {
            Ok(_) => drop(self.offered.insert(learner, (gateway, serial))),
            // The record of the round shows that the update was not merged. Only the leader knows the reason.
            Err(Fate::Refused(why)) if why.is_of_content() => {
                self.is_refusal_sent = false;
                self.refused.insert(learner, (serial, why));
            }
            Err(_) => {}
        }
    }

    /// Advances the round as far as possible. Returns its result once it has ended.
    pub(super) fn advance(
        &mut self,
        now: Millis,
        terms: &LeaderTerms,
        measured: &mut Measured,
        rounds: &mut Rounds,
    ) -> Option<Ended> {
        if self.summing.is_none() {
            if let Some(quorum) = rounds.reach_quorum(now) {
                measured.note_quorum(quorum.after_ms);
            }
            match rounds.decide(now, measured.timing())?.decision {
                Decision::AwaitQuorum { .. } | Decision::AwaitGrace { .. } => {
                    // A gateway has at most `u32::MAX` learners.
                    let count = |heard: &BTreeSet<_>| u32::try_from(heard.len()).unwrap_or(u32::MAX);
                    let heard = self.heard.iter().map(|(gateway, heard)| (*gateway, count(heard))).collect();
                    let (round, invited) = (self.round, self.invited.clone());
                    self.notify(now, terms.again_ms, Notice::Collect { round, invited, heard });
                    return None;
                }
                Decision::Abandon { .. } => {
                    rounds.abandon();
                    return Some(Ended::Abandoned);
                }
                Decision::Merge { .. } => {
                    let job = rounds.merge(now, measured.outer(terms), true)?;
                    match Summing::of(now, job, &self.offered, Vec::new()) {
                        Ok(summing) => self.summing = Some(summing),
                        Err(failure) => return give_up(rounds, *failure),
                    }
                    self.notified = None;
                }
            }
        }
        let mut summing = self.summing.take()?;
        if summing.missing.is_empty() {
            let cancelled = summing.sum.cancelled();
            if cancelled.is_empty() || !summing.cancelled.is_empty() {
                return match summing.job.finish(&summing.sum) {
                    Ok(outcome) => {
                        let merge = rounds.merged(now, outcome)?;
                        measured.note_merged(merge.sync_ms);
                        Some(Ended::Merged(Box::new(merge.entry)))
                    }
                    Err(failure) => give_up(rounds, *failure),
                };
            }
            match Summing::of(now, summing.job, &self.offered, cancelled) {
                Ok(again) => summing = again,
                Err(failure) => return give_up(rounds, *failure),
            }
            self.notified = None;
        }
        if now.since(summing.since) > terms.sums_ms {
            let (expected, actual) = (summing.job.updates.len(), summing.sum.learners().len());
            return give_up(rounds, *failure(summing.job, MergeError::Sum { expected, actual }));
        }
        let notice = summing.notice(self.round);
        self.summing = Some(summing);
        self.notify(now, terms.again_ms, notice);
        None
    }

    fn notify(&mut self, now: Millis, again_ms: u64, notice: Notice) {
        if self.notified.is_none_or(|notified| now.since(notified) >= again_ms) {
            self.notified = Some(now);
            self.notice = Some(notice);
        }
    }
}

impl Summing {
    fn of(
        now: Millis,
        mut job: MergeJob,
        offered: &BTreeMap<LearnerId, (GatewayId, Serial)>,
        cancelled: Vec<u32>,
    ) -> Result<Self, Box<MergeFailure>> {
        let plan = match job.plan() {
            Ok(plan) => Arc::new(plan.after_cancelling(&cancelled)),
            Err(error) => return Err(failure(job, error)),
        };
        let empty = match PartialSum::new(plan, job.codec, Arc::new(job.segments.clone())) {
            Ok(empty) => empty,
            Err(_) => return Err(failure(job, MergeError::Unread)),
        };
        let mut weights: BTreeMap<GatewayId, Vec<UpdateWeight>> = BTreeMap::new();
        for update in &job.updates {
            // Every update of the job was offered.
            let Some(&(gateway, serial)) = offered.get(&update.learner) else { continue };
            let (learner, weight, experts, steps) =
                (update.learner, update.weight, update.experts.clone(), update.steps);
            weights.entry(gateway).or_default().push(UpdateWeight {
                learner,
                serial,
                weight,
                experts,
                steps,
            });
        }
        let missing = weights.keys().copied().collect();
        let (weights, sum) = (Arc::new(weights.into_iter().collect()), empty.clone());
        Ok(Self { job, cancelled, empty, sum, missing, weights, since: now })
    }

    fn add(&mut self, gateway: GatewayId, bytes: &[u8]) {
        let mut part = self.empty.clone();
        if part.read(bytes).is_ok() && self.sum.join(&part).is_ok() {
            self.missing.remove(&gateway);
        }
    }

    fn notice(&self, round: Round) -> Notice {
        let (plan, cancelled) = (Arc::clone(self.empty.shared_plan()), self.cancelled.clone());
        Notice::Weigh { round, cancelled, plan, weights: Arc::clone(&self.weights) }
    }
}

fn failure(job: MergeJob, error: MergeError) -> Box<MergeFailure> {
    let MergeJob { round, fragment, state, .. } = job;
    Box::new(MergeFailure { round, fragment, state, error })
}

/// Returns the state to `rounds` and abandons the round. The updates stay with their senders.
fn give_up(rounds: &mut Rounds, failure: MergeFailure) -> Option<Ended> {
    rounds.failed(failure).map(|_| Ended::Abandoned)
}
