//! A learner of a [`super::rig::Rig`], which may cheat.

use std::collections::VecDeque;

use archipelago_core::diloco::learner::LearnerConfig;
use archipelago_core::member::{Member, MemberConfig, Step, Waits};
use archipelago_core::wire::{ConnId, Identity, Message};
use futures::executor::block_on;

use super::super::cpu::CpuTrainer;
use super::super::{Engine, HostEngine, Trainer};
use crate::token;

/// The time of a step, in milliseconds.
pub const STEP_MS: u64 = 100;

/// How a learner cheats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cheat {
    /// It says that it takes steps, and takes every other one.
    SkipsSteps,
    /// It trains on other text than it says.
    OtherText,
    /// It learns what is given, too.
    LearnsAll,
    /// It changes one bit of its parameters at each step.
    OneBit,
    /// It sends another update than follows from its state.
    OtherUpdate,
    /// It does not answer.
    Silent,
    /// It says that its update stands for twice as much.
    Doubles,
    /// It does not commit any more once it did.
    Uncommitted,
    /// It begins its commitments anywhere.
    Unchained,
}

pub struct Peer {
    pub(super) member: Member,
    pub(super) engine: Option<HostEngine<CpuTrainer>>,
    pub(super) conn: Option<ConnId>,
    pub(super) down: VecDeque<Message>,
    pub(super) cheat: Option<Cheat>,
    pub(super) commits: u32,
    pub afresh: Vec<String>,
    pub reasons: Vec<String>,
}

impl Peer {
    pub(super) fn new(number: u8, cheat: Option<Cheat>) -> Self {
        let member = Member::new(MemberConfig {
            learner: LearnerConfig {
                identity: Identity([number; 32]),
                name: format!("peer {number}"),
                device: "cpu 1 thread, audited".to_owned(),
                invite: None,
                serial_first: 1_000 * u64::from(number),
            },
            contact_ms_max: None,
            reconnect_ms_max: None,
            waits: Waits::default(),
            seed: number.into(),
        });
        let (down, afresh, reasons) = (VecDeque::new(), Vec::new(), Vec::new());
        Self { member, engine: None, conn: None, down, cheat, commits: 0, afresh, reasons }
    }

    /// Takes a step, or says so.
    pub(super) fn step(&mut self, tokens: &[u32], rate: f32) -> Step {
        let engine = self.engine.as_mut().expect("it trains");
        let mut tokens = tokens.to_vec();
        match self.cheat {
            Some(Cheat::OtherText) => tokens.reverse(),
            Some(Cheat::LearnsAll) => tokens.iter_mut().for_each(|t| *t = token::id(*t)),
            Some(Cheat::OneBit) => {
                let theta = engine.trainer_mut().params_mut();
                theta[5] = f32::from_bits(theta[5].to_bits() ^ 1);
            }
            _ => {}
        }
        let busy_us = STEP_MS * 1_000;
        let (mut loss, count) = (1.0, (tokens.len() - engine.trainer_mut().batch()) as u64);
        if self.cheat != Some(Cheat::SkipsSteps) {
            loss = block_on(engine.step(&tokens, rate)).unwrap().loss;
        }
        Step { tokens: count, loss, busy_us, earlier_us: 0 }
    }
}
