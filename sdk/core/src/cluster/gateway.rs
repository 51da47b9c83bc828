//! State machine of a gateway for one fragment: it holds the updates of its learners until the tape has their fates.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::{GatewayId, Notice, Offer, Record, Reply, UpdateWeight};
use crate::diloco::syncer::Paces;
use crate::diloco::{Codec, PartialSum, Segment, SenderInfo, SumError, SumPlan, Verified, WeightedUpdate};
use crate::wire::{ConnId, LearnerId, Refusal, Round, Serial, Version};

/// Constant parameters of a gateway for one fragment.
#[derive(Clone, Debug)]
pub struct GatewayTerms {
    /// Id of the gateway.
    pub gateway: GatewayId,
    /// Segments of the fragment.
    pub segments: Arc<Vec<Segment>>,
    /// Codec of update bodies.
    pub codec: Codec,
}

/// Update whose fate the sender does not know yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnresolvedUpdate {
    /// Round of the update.
    pub round: Round,
    /// Serial number of the update.
    pub serial: Serial,
}

/// Input of a gateway. Inputs from one connection arrive in order.
#[derive(Clone, Debug)]
pub enum GatewayInput {
    /// A learner joined on this connection; later connections have larger numbers. The last value is an update of
    /// unknown fate that it sent earlier to this or another gateway.
    Came(LearnerId, ConnId, Option<UnresolvedUpdate>),
    /// A connection of a learner closed. The gateway holds the learner's update until the round of the update ends.
    Left(LearnerId, ConnId),
    /// A learner sent this verified update on this connection for this round. The last value is what the leader must
    /// know about the sender.
    Update(LearnerId, ConnId, Round, Verified, SenderInfo),
    /// A learner has no progress for this round.
    Pass(LearnerId, ConnId, Round),
    /// A learner waits to join until it knows the fates of updates that it sent elsewhere. Leaders treat it as a
    /// connected learner without progress, so that rounds take place and end.
    Waits(LearnerId),
    /// A learner no longer waits. Unless it has joined, it is no longer connected.
    WaitsNoMore(LearnerId),
    /// Median times of the gateway's learners.
    Pace(Paces),
    /// Notice of a leader to all gateways.
    Notice(Notice),
    /// Tape records after this number, in order.
    Records(u64, Vec<Record>),
    /// Time has passed: the gateway repeats messages that may have been lost.
    Tick,
}

/// Output of a gateway.
#[derive(Clone, Debug)]
pub enum GatewayOutput {
    /// Ask this learner for its progress for this round, only on this connection.
    Ask(LearnerId, ConnId, Round),
    /// Send a receipt on this connection. It has the version that contains the update, or `None` if the update was
    /// not merged and the learner keeps its progress.
    Receipt(LearnerId, ConnId, Serial, Option<Version>),
    /// Tell the learner on this connection that its update was refused, with the reason.
    Refused(LearnerId, ConnId, Serial, Refusal),
    /// Send this reply to the leader.
    Reply(Reply),
    /// Read the tape records after this number.
    Read(u64),
    /// Report the tape's next record and its number. Each record is reported once, in order.
    Seen(u64, Box<Record>),
}

/// Pending messages to the leader. All events since the last reply are combined into a few messages.
#[derive(Debug, Default)]
struct PendingMessages {
    is_here: bool,
    passes: BTreeSet<LearnerId>,
    offers: BTreeSet<LearnerId>,
}

/// State machine of a gateway for one fragment.
#[derive(Debug)]
pub struct Gateway {
    terms: GatewayTerms,
    /// Connected learners and their connections.
    learners: BTreeMap<LearnerId, ConnId>,
    /// Learners that wait to join.
    waiting: BTreeSet<LearnerId>,
    /// Median times of the connected learners.
    paces: Paces,
    /// Last round in which each learner was asked, and the connection.
    asked: BTreeMap<LearnerId, (ConnId, Round)>,
    /// Learners without progress for the newest round.
    passed: BTreeSet<LearnerId>,
    /// Learners whose updates were offered in the newest round, and their number at its previous `Collect`.
    offered: BTreeSet<LearnerId>,
    offered_before: u32,
    /// Pending messages, sent once no other output is left.
    pending: PendingMessages,
    /// Number of the newest record seen.
    last: u64,
    /// Newest round that collects updates.
    round: Option<Round>,
    /// Learners invited to that round; `None` means all.
    invited: Option<BTreeSet<LearnerId>>,
    /// Updates of connected learners without a known fate.
    open: BTreeMap<LearnerId, UnresolvedUpdate>,
    /// Updates held by the gateway.
    held: BTreeMap<LearnerId, (UnresolvedUpdate, Verified, SenderInfo)>,
    /// Updates without a known fate that the leader refused.
    refused: BTreeMap<LearnerId, (UnresolvedUpdate, Refusal)>,
    orders: VecDeque<GatewayOutput>,
}

impl Gateway {
    /// Returns a gateway without learners.
    #[must_use]
    pub fn new(terms: GatewayTerms) -> Self {
        Self {
            terms,
            learners: BTreeMap::new(),
            waiting: BTreeSet::new(),
            paces: Paces::default(),
            asked: BTreeMap::new(),
            passed: BTreeSet::new(),
            offered: BTreeSet::new(),
            offered_before: 0,
            pending: PendingMessages::default(),
            last: 0,
            round: None,
            invited: None,
            open: BTreeMap::new(),
            held: BTreeMap::new(),
            refused: BTreeMap::new(),
            orders: VecDeque::new(),
        }
    }

    /// Handles one input. Call [`Self::poll`] afterwards until it returns `None`.
    pub fn handle(&mut self, input: GatewayInput) {
        match input {
            GatewayInput::Came(learner, conn, unresolved) => self.on_came(learner, conn, unresolved),
            // A connection may be reported as closed after the learner's next connection was opened.
            GatewayInput::Left(learner, conn) if self.learners.get(&learner) == Some(&conn) => {
                self.learners.remove(&learner);
                self.open.remove(&learner);
                self.asked.remove(&learner);
                self.pending.is_here = true;
            }
            GatewayInput::Left(..) => {}
            GatewayInput::Update(learner, conn, round, update, sender) => {
                // If the connection has closed, the learner's next connection resolves the fate of the update.
                if self.learners.get(&learner) == Some(&conn) {
                    self.on_update(learner, round, update, sender);
                }
            }
            GatewayInput::Pass(learner, conn, round) => {
                if self.learners.get(&learner) == Some(&conn) && self.round == Some(round) {
                    self.passed.insert(learner);
                    self.pending.passes.insert(learner);
                }
            }
            GatewayInput::Waits(learner) => {
                self.waiting.insert(learner);
                self.pending.is_here = true;
                self.pass_for_waiting();
            }
            GatewayInput::WaitsNoMore(learner) => {
                self.waiting.remove(&learner);
            }
            GatewayInput::Pace(paces) => self.paces = paces,
            GatewayInput::Notice(Notice::Collect { round, invited, heard }) => {
                self.on_collect(round, invited, &heard);
            }
            GatewayInput::Notice(Notice::Weigh { round, cancelled, plan, weights }) => {
                let mine = weights.iter().filter(|(gateway, _)| *gateway == self.terms.gateway);
                for (_, weights) in mine {
                    // If the sum cannot be computed, it is not sent, and the leader abandons the round after a
                    // timeout.
                    if let Ok(Some(sum)) = self.sum(round, &plan, weights) {
                        let (gateway, cancelled, bytes) =
                            (self.terms.gateway, cancelled.clone(), sum.to_bytes());
                        let reply = Reply::Sum { gateway, round, cancelled, bytes };
                        self.orders.push_back(GatewayOutput::Reply(reply));
                    }
                }
            }
            GatewayInput::Notice(Notice::Ended(round)) if round.0 <= self.last => {}
            GatewayInput::Notice(Notice::Ended(_)) => self.read(),
            GatewayInput::Notice(Notice::Refused { round, refused }) => {
                for (learner, serial, why) in refused {
                    let unresolved = UnresolvedUpdate { round, serial };
                    if self.open.get(&learner) == Some(&unresolved) {
                        self.refused.insert(learner, (unresolved, why));
                    }
                }
            }
            GatewayInput::Records(after, records) => self.on_records(after, &records),
            GatewayInput::Tick => {
                self.pending.is_here = true;
                self.read();
            }
        }
    }

    /// Returns the next output. Replies to the leader come last, so that one reply covers all inputs handled before
    /// the poll.
    pub fn poll(&mut self) -> Option<GatewayOutput> {
        self.orders.pop_front().or_else(|| self.next_reply().map(GatewayOutput::Reply))
    }

    /// Returns the number of updates held, including those of disconnected learners.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.len()
    }

    fn on_came(&mut self, learner: LearnerId, conn: ConnId, unresolved: Option<UnresolvedUpdate>) {
        if self.learners.get(&learner).is_some_and(|newest| *newest >= conn) {
            return;
        }
        self.learners.insert(learner, conn);
        self.waiting.remove(&learner);
        if let Some(unresolved) = unresolved {
            self.open.insert(learner, unresolved);
            // The record of the update may be an old one.
            let before = unresolved.round.0.saturating_sub(1).min(self.last);
            self.orders.push_back(GatewayOutput::Read(before));
        } else {
            // Any update that was open here was resolved at another gateway.
            self.open.remove(&learner);
            if let Some(round) = self.round.filter(|_| self.is_invited(learner)) {
                self.ask(learner, conn, round);
            }
        }
        self.pending.is_here = true;
    }

    fn on_update(&mut self, learner: LearnerId, round: Round, update: Verified, sender: SenderInfo) {
        let unresolved = UnresolvedUpdate { round, serial: update.serial };
        self.open.insert(learner, unresolved);
        if self.round != Some(round) {
            // The update is too late for its round. The tape will show that it was not merged.
            self.orders.push_back(GatewayOutput::Read(round.0.saturating_sub(1).min(self.last)));
            return;
        }
        // Only the first update of a round is used, because it may have been weighed already.
        if self.held.get(&learner).is_none_or(|(held, ..)| held.round != round) {
            self.held.insert(learner, (unresolved, update, sender));
        }
        self.offer(learner);
    }

    fn on_collect(
        &mut self,
        round: Round,
        invited: Option<BTreeSet<LearnerId>>,
        heard: &BTreeMap<GatewayId, u32>,
    ) {
        let is_over = round.0 <= self.last || self.round.is_some_and(|newest| round < newest);
        if is_over {
            return;
        }
        if self.round.replace(round) != Some(round) {
            self.passed.clear();
            self.offered.clear();
            self.offered_before = 0;
        }
        self.invited = invited;
        let is_free = |learner| self.is_invited(learner) && !self.open.contains_key(&learner);
        let free = self.learners.iter().filter(|(learner, _)| is_free(**learner));
        let free: Vec<(LearnerId, ConnId)> = free.map(|(learner, conn)| (*learner, *conn)).collect();
        free.into_iter().for_each(|(learner, conn)| self.ask(learner, conn, round));
        // If the leader received fewer offers than were sent before the previous `Collect`, some were lost. The
        // leader ignores duplicates.
        let heard = heard.get(&self.terms.gateway).copied().unwrap_or(0);
        if heard < self.offered_before {
            self.pending.offers.extend(&self.offered);
        }
        self.offered_before = u32::try_from(self.offered.len()).unwrap_or(u32::MAX);
        self.pass_for_waiting();
    }

    fn is_invited(&self, learner: LearnerId) -> bool {
        self.invited.as_ref().is_none_or(|invited| invited.contains(&learner))
    }

    /// Asks a learner once in each round, because messages are not lost while a connection lasts.
    fn ask(&mut self, learner: LearnerId, conn: ConnId, round: Round) {
        if self.asked.insert(learner, (conn, round)) != Some((conn, round)) {
            self.orders.push_back(GatewayOutput::Ask(learner, conn, round));
        }
    }

    /// Reports, possibly again, that waiting learners and learners that passed have no progress for the round.
    fn pass_for_waiting(&mut self) {
        let nothing = self.waiting.union(&self.passed);
        let nothing = nothing.filter(|learner| !self.held.contains_key(learner));
        let nothing: Vec<LearnerId> = nothing.copied().collect();
        self.pending.passes.extend(nothing);
    }

    fn on_records(&mut self, after: u64, records: &[Record]) {
        for (record, seq) in records.iter().zip(after + 1..) {
            let ends = |unresolved: &UnresolvedUpdate| unresolved.round.0 == seq;
            for (learner, unresolved) in self.open.extract_if(.., |_, unresolved| ends(unresolved)) {
                // Learners with an open update are connected.
                let Some(&conn) = self.learners.get(&learner) else { continue };
                let serial = unresolved.serial;
                let merged = record.has_merged(learner, serial).then_some(Version(seq));
                let refused = self.refused.get(&learner).filter(|(refused, _)| *refused == unresolved);
                self.orders.push_back(match refused {
                    // A new leader may have accepted the update after all.
                    Some((_, why)) if merged.is_none() => GatewayOutput::Refused(learner, conn, serial, *why),
                    _ => GatewayOutput::Receipt(learner, conn, serial, merged),
                });
            }
            self.held.retain(|_, (unresolved, ..)| !ends(unresolved));
            self.refused.retain(|_, (unresolved, _)| unresolved.round.0 > seq);
            if seq > self.last {
                self.orders.push_back(GatewayOutput::Seen(seq, Box::new(record.clone())));
                self.last = seq;
                self.round.take_if(|round| round.0 <= seq);
            }
        }
    }

    /// Returns the weighted sum of these updates for `round`, or `None` if the gateway lacks one of them.
    fn sum(
        &self,
        round: Round,
        plan: &Arc<SumPlan>,
        weights: &[UpdateWeight],
    ) -> Result<Option<PartialSum>, SumError> {
        let GatewayTerms { segments, codec, .. } = &self.terms;
        let mut sum = PartialSum::new(Arc::clone(plan), *codec, Arc::clone(segments))?;
        for UpdateWeight { learner, serial, weight, experts, steps } in weights {
            let Some((unresolved, update, _)) = self.held.get(learner) else { return Ok(None) };
            let Some(body) = update.body() else { return Ok(None) };
            if *unresolved != (UnresolvedUpdate { round, serial: *serial }) {
                return Ok(None);
            }
            let (experts, body) = (experts.clone(), body.clone());
            sum.add(&WeightedUpdate { learner: *learner, weight: *weight, experts, steps: *steps, body })?;
        }
        Ok(Some(sum))
    }

    fn offer(&mut self, learner: LearnerId) {
        self.pending.offers.insert(learner);
    }

    /// Returns the next reply to the leader.
    fn next_reply(&mut self) -> Option<Reply> {
        let gateway = self.terms.gateway;
        if std::mem::take(&mut self.pending.is_here) {
            let learners = self.learners.keys().chain(&self.waiting).copied().collect();
            let waits = !self.waiting.is_empty();
            return Some(Reply::Here { gateway, learners, waits, paces: self.paces });
        }
        let (passes, offers) =
            (std::mem::take(&mut self.pending.passes), std::mem::take(&mut self.pending.offers));
        // If no round collects, there is no reply to send.
        let round = self.round?;
        if !passes.is_empty() {
            self.pending.offers = offers;
            return Some(Reply::Pass { round, learners: passes });
        }
        let of_round = |learner: LearnerId| {
            let (unresolved, update, sender) = self.held.get(&learner)?;
            let (update, sender) = (update.without_bytes(), *sender);
            (unresolved.round == round).then_some(Offer { learner, update, sender })
        };
        let offers: Vec<Offer> = offers.into_iter().filter_map(of_round).collect();
        self.offered.extend(offers.iter().map(|offer| offer.learner));
        (!offers.is_empty()).then_some(Reply::Offers { gateway, round, offers })
    }

    /// Requests the records from the oldest round with an open update on.
    fn read(&mut self) {
        let oldest = self.open.values().map(|unresolved| unresolved.round.0.saturating_sub(1)).min();
        let after = oldest.map_or(self.last, |oldest| oldest.min(self.last));
        self.orders.push_back(GatewayOutput::Read(after));
    }
}
