//! The learner's shell: executes the member's effects, and trains in between.

use std::sync::Arc;

use super::Trace;
use super::World;
use super::forge::Craft;
use super::happening::Happening;
use super::host::REQUEST_BYTES;
use super::link::Way;
use super::payload::Payload;
use super::process::Effect;
use archipelago_core::driver::Input;
use archipelago_core::wire::{FragmentId, Message, Millis, Version};

impl World {
    /// Executes all pending effects of a learner's member, then continues its training.
    pub(super) fn drive_learner(&mut self, machine: u32) {
        self.drain_learner(machine);
        self.begin_step(machine);
        self.drain_learner(machine);
        self.plan_wake(machine);
        let process = self.machines[machine as usize].process.as_ref();
        if process.is_some_and(|process| process.leaving && process.stopped.is_some()) {
            self.kill_process(machine, true);
        }
    }

    fn drain_learner(&mut self, machine: u32) {
        let now = self.now;
        loop {
            let make = &mut self.make;
            let Some(process) = &mut self.machines[machine as usize].process else { return };
            let Some(effect) = process.poll(now, &mut || make(machine)) else { return };
            match effect {
                Effect::Connect(attempt) => self.dial(machine, attempt),
                Effect::Send(message) => self.send_up(machine, *message),
                Effect::Fetch(fragment) => self.fetch(machine, fragment),
                Effect::FetchShard(shard) => self.fetch_shard(machine, shard),
                Effect::Applied(fragment) => {
                    self.note_trace(|| Some(Trace::Applied { machine, fragment, at: now }));
                }
                Effect::Close => self.close_from_learner(machine),
            }
        }
    }

    fn send_up(&mut self, machine: u32, message: Message) {
        let is_overheard = self.machines.iter().any(|machine| machine.forged);
        let there = &mut self.machines[machine as usize];
        let (life, memory) = (there.life, &mut there.memory);
        let Some(process) = &mut there.process else { return };
        let Some(id) = process.conn else { return };
        let messages = match process.poison {
            Some(poison) => {
                let (run, overheard) = (&self.spec.run_spec, &self.overheard);
                poison.forge(message, Craft { run, fragments: process.fragments(), overheard, memory })
            }
            None => {
                if let (Message::Update(update), Some(ghosts)) = (&message, &process.ghosts) {
                    self.audit.on_update_sent(machine, life, update, ghosts);
                    if is_overheard {
                        self.overheard.insert(update.fragment, update.body.clone());
                    }
                }
                vec![message]
            }
        };
        for message in messages {
            let payload = Payload::new(message.clone(), self.spec.shell.encode);
            self.ship_message(machine, Way::Up, id, &message, payload);
        }
        let waiting_bytes = self.machines[machine as usize].link.lane(Way::Up).waiting_bytes();
        if waiting_bytes > self.spec.shell.queue_bytes_max {
            self.close_from_learner(machine);
            let reason = "the network is too slow for what is sent".to_owned();
            self.learner_input(machine, Input::Closed { code: None, reason });
        }
    }

    fn close_from_learner(&mut self, machine: u32) {
        let process = self.machines[machine as usize].process.as_mut();
        if let Some(id) = process.and_then(|process| process.conn.take()) {
            self.end_at_learner(id, false);
        }
    }

    fn fetch(&mut self, machine: u32, fragment: FragmentId) {
        let there = &self.machines[machine as usize];
        let life = there.life;
        let downloads = there.process.as_ref().map_or(0, |process| process.downloads);
        let ask = Happening::AskFragment { machine, life, downloads, fragment };
        self.ship_http(machine, Way::Up, REQUEST_BYTES, ask, None);
    }

    pub(super) fn fragment_came(
        &mut self,
        machine: u32,
        life: u32,
        downloads: u32,
        fragment: FragmentId,
        answer: Option<(Version, Arc<Vec<f32>>)>,
    ) {
        let process = self.machines[machine as usize].alive(life);
        if process.is_none_or(|process| process.downloads != downloads) {
            return;
        }
        let input = match answer {
            Some((version, values)) => Input::Fetched { fragment, version, values: values.to_vec() },
            None => Input::FetchFailed { fragment, reason: "the syncer is down".to_owned() },
        };
        self.learner_input(machine, input);
    }

    fn fetch_shard(&mut self, machine: u32, shard: u32) {
        let (now, life) = (self.now, self.machines[machine as usize].life);
        let Some(process) = &mut self.machines[machine as usize].process else { return };
        match self.spec.shards.get(shard as usize).filter(|_| self.spec.shell.shards_at_hand) {
            Some(bytes) => process.take_now(now, Input::Shard { shard, bytes: Ok(bytes.to_vec()) }),
            None => {
                let ask = Happening::AskShard { machine, life, shard };
                self.ship_http(machine, Way::Up, REQUEST_BYTES, ask, None);
            }
        }
    }

    pub(super) fn shard_came(&mut self, machine: u32, life: u32, shard: u32, here: bool) {
        if self.machines[machine as usize].alive(life).is_none() {
            return;
        }
        let bytes = self.spec.shards.get(shard as usize).filter(|_| here);
        let bytes = bytes.map(|bytes| bytes.to_vec()).ok_or_else(|| "the syncer is down".to_owned());
        self.learner_input(machine, Input::Shard { shard, bytes });
    }

    fn begin_step(&mut self, index: u32) {
        let (now, machine) = (self.now, &mut self.machines[index as usize]);
        let Some(process) = machine.process.as_mut().filter(|process| !process.is_stepping()) else { return };
        if process.begin_step(now) {
            let (step_ms, life) = (machine.step_ms(), machine.life);
            let until = now.after(step_ms);
            self.queue.plan(until, Happening::StepDone { machine: index, life, step_ms });
            self.note_trace(|| Some(Trace::Step { machine: index, from: now, until }));
        }
    }

    pub(super) fn step_done(&mut self, machine: u32, life: u32, step_ms: u64) {
        let now = self.now;
        let Some(process) = self.machines[machine as usize].alive(life) else { return };
        process.end_step(now, step_ms);
        loop {
            self.drain_learner(machine);
            let Some(process) = self.machines[machine as usize].alive(life) else { return };
            if !process.next_input(now) {
                break;
            }
        }
        self.learner_input(machine, Input::Timeout);
    }

    pub(super) fn wake_learner(&mut self, machine: u32, life: u32, at: Millis) {
        let Some(process) = self.machines[machine as usize].alive(life) else { return };
        if process.wake != Some(at) {
            return;
        }
        process.wake = None;
        // During a step, the deadline is checked at the end of the step.
        if !process.is_stepping() {
            self.learner_input(machine, Input::Timeout);
        }
    }

    fn plan_wake(&mut self, machine: u32) {
        let (now, life) = (self.now, self.machines[machine as usize].life);
        let Some(process) = &mut self.machines[machine as usize].process else { return };
        let deadline = process.deadline(now).filter(|_| !process.is_stepping());
        let deadline = deadline.map(|at| at.max(now.after(1)));
        if process.wake != deadline {
            process.wake = deadline;
            if let Some(at) = deadline {
                self.queue.plan(at, Happening::WakeLearner { machine, life, at });
            }
        }
    }
}
