//! The updates of the learners of one gateway, of one fragment.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::{GatewayId, Notice, Offer, Record, Reply, Weighing};
use crate::diloco::syncer::Paces;
use crate::diloco::{Codec, PartialSum, Segment, Standing, SumError, SumPlan, Verified, Weighted};
use crate::wire::{ConnId, LearnerId, Refusal, Round, Serial, Version};

/// What a gateway knows of the fragment.
#[derive(Clone, Debug)]
pub struct GatewayTerms {
    /// Its number.
    pub gateway: GatewayId,
    /// The fragment's segments.
    pub segments: Arc<Vec<Segment>>,
    /// How bodies are coded.
    pub codec: Codec,
}

/// An update of which its sender does not know yet what became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsettled {
    /// The round that it was sent for.
    pub round: Round,
    /// As its sender numbered it.
    pub serial: Serial,
}

/// What a gateway is told; what came by one connection, in its order.
#[derive(Clone, Debug)]
pub enum GatewayInput {
    /// A learner came by this connection, later ones having larger numbers, with what it does not know of an update
    /// that it sent before, here or elsewhere.
    Came(LearnerId, ConnId, Option<Unsettled>),
    /// A connection of a learner is gone. What it sent is held until its round has ended.
    Left(LearnerId, ConnId),
    /// An update of a learner by this connection, looked into, for this round, and what is known of the learner.
    Update(LearnerId, ConnId, Round, Verified, Standing),
    /// A learner has by this connection nothing to report in this round.
    Pass(LearnerId, ConnId, Round),
    /// A learner came that has yet to hear what became of its updates elsewhere. Rounds go on as if it were there, so
    /// that each of them ends, and it has nothing to report in any.
    Waits(LearnerId),
    /// It waits no more, and is gone if it did not come.
    WaitsNoMore(LearnerId),
    /// How fast its learners are.
    Pace(Paces),
    /// What an owner tells all gateways.
    Notice(Notice),
    /// The records of the tape after this number, in order.
    Records(u64, Vec<Record>),
    /// Time has passed: what was lost on the way is sent again.
    Tick,
}

/// What a gateway asks for.
#[derive(Clone, Debug)]
pub enum GatewayOrder {
    /// Ask this learner for its progress, for this round, by this connection and no other.
    Ask(LearnerId, ConnId, Round),
    /// Tell this learner by this connection what became of its update: the version that it was merged to, or `None` if
    /// it was not merged and its progress stays its own.
    Receipt(LearnerId, ConnId, Serial, Option<Version>),
    /// Tell this learner by this connection that its update was not merged, for what is wrong with it.
    Refused(LearnerId, ConnId, Serial, Refusal),
    /// Say this to the owner.
    Reply(Reply),
    /// Read the records after this number.
    Read(u64),
    /// This record of this number is the next one on the tape; each comes once, in order.
    Seen(u64, Box<Record>),
}

/// What is to be said to the owner. However much happened since the last time, it is a few messages.
#[derive(Debug, Default)]
struct Unsaid {
    is_here: bool,
    passes: BTreeSet<LearnerId>,
    offers: BTreeSet<LearnerId>,
}

/// Holds the updates of its learners until the tape says what became of them.
#[derive(Debug)]
pub struct Gateway {
    terms: GatewayTerms,
    /// Who is connected, and by which connection.
    learners: BTreeMap<LearnerId, ConnId>,
    /// Who waits to be.
    waiting: BTreeSet<LearnerId>,
    /// How fast those are who are connected.
    paces: Paces,
    /// In which round each was asked last, and by which connection.
    asked: BTreeMap<LearnerId, (ConnId, Round)>,
    /// Who has nothing to report in the newest round.
    passed: BTreeSet<LearnerId>,
    /// Whose updates were offered in the newest round, and how many of them the last time that it was asked for.
    offered: BTreeSet<LearnerId>,
    offered_before: u32,
    /// What is to be said, all at once, as soon as nothing else is to be done.
    unsaid: Unsaid,
    /// The newest record that was seen.
    last: u64,
    /// The newest round that collects.
    round: Option<Round>,
    /// Whom it asks, if not everybody.
    invited: Option<BTreeSet<LearnerId>>,
    /// Of whose update it is not known what became of it; all of them are connected.
    open: BTreeMap<LearnerId, Unsettled>,
    /// The updates that are here.
    held: BTreeMap<LearnerId, (Unsettled, Verified, Standing)>,
    /// What the owner says is wrong with some of those that are open.
    refused: BTreeMap<LearnerId, (Unsettled, Refusal)>,
    orders: VecDeque<GatewayOrder>,
}

impl Gateway {
    /// One with nobody there.
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
            unsaid: Unsaid::default(),
            last: 0,
            round: None,
            invited: None,
            open: BTreeMap::new(),
            held: BTreeMap::new(),
            refused: BTreeMap::new(),
            orders: VecDeque::new(),
        }
    }

    /// Takes in what happened; then [`Self::poll`] until there is nothing more.
    pub fn handle(&mut self, input: GatewayInput) {
        match input {
            GatewayInput::Came(learner, conn, unsettled) => self.on_came(learner, conn, unsettled),
            // Word of a connection that is gone may come after that of the next one.
            GatewayInput::Left(learner, conn) if self.learners.get(&learner) == Some(&conn) => {
                self.learners.remove(&learner);
                self.open.remove(&learner);
                self.asked.remove(&learner);
                self.unsaid.is_here = true;
            }
            GatewayInput::Left(..) => {}
            GatewayInput::Update(learner, conn, round, update, standing) => {
                // What came by a connection that is gone is settled by what the next one says is open.
                if self.learners.get(&learner) == Some(&conn) {
                    self.on_update(learner, round, update, standing);
                }
            }
            GatewayInput::Pass(learner, conn, round) => {
                if self.learners.get(&learner) == Some(&conn) && self.round == Some(round) {
                    self.passed.insert(learner);
                    self.unsaid.passes.insert(learner);
                }
            }
            GatewayInput::Waits(learner) => {
                self.waiting.insert(learner);
                self.unsaid.is_here = true;
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
                    // A sum that cannot be made is not sent: the owner's patience ends the round.
                    if let Ok(Some(sum)) = self.sum(round, &plan, weights) {
                        let (gateway, cancelled, bytes) =
                            (self.terms.gateway, cancelled.clone(), sum.to_bytes());
                        let reply = Reply::Sum { gateway, round, cancelled, bytes };
                        self.orders.push_back(GatewayOrder::Reply(reply));
                    }
                }
            }
            GatewayInput::Notice(Notice::Ended(round)) if round.0 <= self.last => {}
            GatewayInput::Notice(Notice::Ended(_)) => self.read(),
            GatewayInput::Notice(Notice::Refused { round, refused }) => {
                for (learner, serial, why) in refused {
                    let unsettled = Unsettled { round, serial };
                    if self.open.get(&learner) == Some(&unsettled) {
                        self.refused.insert(learner, (unsettled, why));
                    }
                }
            }
            GatewayInput::Records(after, records) => self.on_records(after, &records),
            GatewayInput::Tick => {
                self.unsaid.is_here = true;
                self.read();
            }
        }
    }

    /// The next thing to do. What is said to the owner comes last, so that whoever takes in several things before
    /// asking has all of it said at once.
    pub fn poll(&mut self) -> Option<GatewayOrder> {
        self.orders.pop_front().or_else(|| self.say().map(GatewayOrder::Reply))
    }

    /// The updates that it holds, of whoever is connected or not.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.len()
    }

    fn on_came(&mut self, learner: LearnerId, conn: ConnId, unsettled: Option<Unsettled>) {
        if self.learners.get(&learner).is_some_and(|newest| *newest >= conn) {
            return;
        }
        self.learners.insert(learner, conn);
        self.waiting.remove(&learner);
        if let Some(unsettled) = unsettled {
            self.open.insert(learner, unsettled);
            // Its record may be an old one.
            let before = unsettled.round.0.saturating_sub(1).min(self.last);
            self.orders.push_back(GatewayOrder::Read(before));
        } else {
            // Of whatever was open here, another gateway has told it.
            self.open.remove(&learner);
            if let Some(round) = self.round.filter(|_| self.is_invited(learner)) {
                self.ask(learner, conn, round);
            }
        }
        self.unsaid.is_here = true;
    }

    fn on_update(&mut self, learner: LearnerId, round: Round, update: Verified, standing: Standing) {
        let unsettled = Unsettled { round, serial: update.serial };
        self.open.insert(learner, unsettled);
        if self.round != Some(round) {
            // Too late for its round, of which the tape will say that it was not merged.
            self.orders.push_back(GatewayOrder::Read(round.0.saturating_sub(1).min(self.last)));
            return;
        }
        // Of one round only the first counts, which may have been weighed.
        if self.held.get(&learner).is_none_or(|(held, ..)| held.round != round) {
            self.held.insert(learner, (unsettled, update, standing));
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
        // What was offered before it was last asked for and is not heard by now was lost; what is heard is taken once.
        let heard = heard.get(&self.terms.gateway).copied().unwrap_or(0);
        if heard < self.offered_before {
            self.unsaid.offers.extend(&self.offered);
        }
        self.offered_before = u32::try_from(self.offered.len()).unwrap_or(u32::MAX);
        self.pass_for_waiting();
    }

    fn is_invited(&self, learner: LearnerId) -> bool {
        self.invited.as_ref().is_none_or(|invited| invited.contains(&learner))
    }

    /// Asks a learner, once in a round: what is said on a connection is not lost as long as that lasts.
    fn ask(&mut self, learner: LearnerId, conn: ConnId, round: Round) {
        if self.asked.insert(learner, (conn, round)) != Some((conn, round)) {
            self.orders.push_back(GatewayOrder::Ask(learner, conn, round));
        }
    }

    /// Says of those who wait, and once more of those who said so, that they have nothing to report.
    fn pass_for_waiting(&mut self) {
        let nothing = self.waiting.union(&self.passed);
        let nothing = nothing.filter(|learner| !self.held.contains_key(learner));
        let nothing: Vec<LearnerId> = nothing.copied().collect();
        self.unsaid.passes.extend(nothing);
    }

    fn on_records(&mut self, after: u64, records: &[Record]) {
        for (record, seq) in records.iter().zip(after + 1..) {
            let ends = |unsettled: &Unsettled| unsettled.round.0 == seq;
            for (learner, unsettled) in self.open.extract_if(.., |_, unsettled| ends(unsettled)) {
                // Whose update is open is connected.
                let Some(&conn) = self.learners.get(&learner) else { continue };
                let serial = unsettled.serial;
                let merged = record.has_merged(learner, serial).then_some(Version(seq));
                let refused = self.refused.get(&learner).filter(|(refused, _)| *refused == unsettled);
                self.orders.push_back(match refused {
                    // Another owner may have taken over meanwhile, and have seen nothing wrong.
                    Some((_, why)) if merged.is_none() => GatewayOrder::Refused(learner, conn, serial, *why),
                    _ => GatewayOrder::Receipt(learner, conn, serial, merged),
                });
            }
            self.held.retain(|_, (unsettled, ..)| !ends(unsettled));
            self.refused.retain(|_, (unsettled, _)| unsettled.round.0 > seq);
            if seq > self.last {
                self.orders.push_back(GatewayOrder::Seen(seq, Box::new(record.clone())));
                self.last = seq;
                self.round.take_if(|round| round.0 <= seq);
            }
        }
    }

    /// The sum of these updates for `round`; `None` if one of them is not here.
    fn sum(
        &self,
        round: Round,
        plan: &Arc<SumPlan>,
        weights: &[Weighing],
    ) -> Result<Option<PartialSum>, SumError> {
        let GatewayTerms { segments, codec, .. } = &self.terms;
        let mut sum = PartialSum::new(Arc::clone(plan), *codec, Arc::clone(segments))?;
        for Weighing { learner, serial, weight, experts, steps } in weights {
            let Some((unsettled, update, _)) = self.held.get(learner) else { return Ok(None) };
            let Some(body) = update.body() else { return Ok(None) };
            if *unsettled != (Unsettled { round, serial: *serial }) {
                return Ok(None);
            }
            let (experts, body) = (experts.clone(), body.clone());
            sum.add(&Weighted { learner: *learner, weight: *weight, experts, steps: *steps, body })?;
        }
        Ok(Some(sum))
    }

    fn offer(&mut self, learner: LearnerId) {
        self.unsaid.offers.insert(learner);
    }

    /// The next thing that the owner is to hear.
    fn say(&mut self) -> Option<Reply> {
        let gateway = self.terms.gateway;
        if std::mem::take(&mut self.unsaid.is_here) {
            let learners = self.learners.keys().chain(&self.waiting).copied().collect();
            let waits = !self.waiting.is_empty();
            return Some(Reply::Here { gateway, learners, waits, paces: self.paces });
        }
        let (passes, offers) =
            (std::mem::take(&mut self.unsaid.passes), std::mem::take(&mut self.unsaid.offers));
        // Of a round that is over nobody waits for anything.
        let round = self.round?;
        if !passes.is_empty() {
            self.unsaid.offers = offers;
            return Some(Reply::Pass { round, learners: passes });
        }
        let of_round = |learner: LearnerId| {
            let (unsettled, update, standing) = self.held.get(&learner)?;
            let (update, standing) = (update.without_bytes(), *standing);
            (unsettled.round == round).then_some(Offer { learner, update, standing })
        };
        let offers: Vec<Offer> = offers.into_iter().filter_map(of_round).collect();
        self.offered.extend(offers.iter().map(|offer| offer.learner));
        (!offers.is_empty()).then_some(Reply::Offers { gateway, round, offers })
    }

    /// Reads on from the oldest record that somebody waits for.
    fn read(&mut self) {
        let oldest = self.open.values().map(|unsettled| unsettled.round.0.saturating_sub(1)).min();
        let after = oldest.map_or(self.last, |oldest| oldest.min(self.last));
        self.orders.push_back(GatewayOrder::Read(after));
    }
}
