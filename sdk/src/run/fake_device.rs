//! A device for tests: it delivers coded bodies late, and is lost on cue.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::mem;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use super::Control;
use super::fake_run::Toy;
use archipelago_core::wire::{FragmentId, RunSpec, Serial};
use archipelago_runtime::engine::{
    Encoded, Engine, EngineError, Exchange, HostEngine, OptimiserState, StepStats,
};
use archipelago_runtime::platform::yield_now;

/// Time that the device works on after a step's call returned, in milliseconds.
pub(super) const SETTLE_MS: u64 = 5;

/// Behaviour of one engine.
#[derive(Clone, Copy, Debug)]
pub(super) enum Plan {
    /// The device is lost before the engine is ready.
    Stillborn,
    /// There is not enough memory.
    Oversized,
    /// It delivers a body after `late_steps` further steps and is lost after `life_steps` in all; `None` means never.
    Alive { late_steps: Option<u64>, life_steps: Option<u64> },
}

/// State shared by all engines on one device.
#[derive(Default)]
pub(super) struct Device {
    /// Plans of the next engines; the last one applies to all further engines.
    pub(super) plans: VecDeque<Plan>,
    /// Moments passed to each engine.
    pub(super) given: Vec<Option<OptimiserState>>,
    /// Batch requested for each engine, including failed ones.
    pub(super) batches: Vec<u32>,
    /// Step time for each window, in milliseconds.
    pub(super) window_ms: u64,
    /// Number of rehearsed steps.
    pub(super) rehearsals: u32,
    /// Steps of each engine that was ready.
    pub(super) steps: Vec<u64>,
    /// Number of waits for steps.
    pub(super) settled: u64,
    /// Ends the run once a body was begun.
    pub(super) leave_at_body: Option<Control>,
    standing: u32,
}

impl Device {
    pub(super) fn new(plans: &[Plan]) -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(Self { plans: plans.iter().copied().collect(), ..Self::default() }))
    }
}

/// Trains in host memory; only the timing is that of a device.
pub(super) struct DeviceEngine {
    host: HostEngine<Toy>,
    device: Rc<RefCell<Device>>,
    index: usize,
    /// Steps of the initial moments.
    steps_before: u64,
    late_steps: Option<u64>,
    life_steps: Option<u64>,
    /// Bodies in progress, and the step at which each is delivered.
    coding: VecDeque<(Option<u64>, Encoded)>,
    stepped: bool,
}

impl DeviceEngine {
    pub(super) async fn open(
        device: &Rc<RefCell<Device>>,
        spec: &RunSpec,
        moments: Option<OptimiserState>,
    ) -> Result<Self, EngineError> {
        yield_now().await;
        let mut state = device.borrow_mut();
        assert_eq!(state.standing, 0, "the engine before still stands");
        let plan = if state.plans.len() > 1 { state.plans.pop_front() } else { state.plans.front().copied() };
        let steps_before = moments.as_ref().map_or(0, |moments| moments.steps);
        state.given.push(moments);
        state.batches.push(spec.inner.batch);
        let (late_steps, life_steps) = match plan.unwrap() {
            Plan::Stillborn => return Err(lost()),
            Plan::Oversized => return Err(EngineError::HostMemory { needed_mib: 2, available_mib: 1 }),
            Plan::Alive { late_steps, life_steps } => (late_steps, life_steps),
        };
        let host = HostEngine::new(spec, Toy::new())?;
        state.standing += 1;
        state.steps.push(0);
        let (index, device) = (state.steps.len() - 1, Rc::clone(device));
        let coding = VecDeque::new();
        Ok(Self { host, device, index, steps_before, late_steps, life_steps, coding, stepped: false })
    }

    fn steps(&self) -> u64 {
        self.device.borrow().steps[self.index]
    }

    /// Takes as long as a step on `tokens`.
    fn work(&self, tokens: &[u32]) {
        let state = self.device.borrow();
        let windows = tokens.len() as u64 / 5;
        assert_eq!(
            windows,
            state.batches[state.batches.len() - 1].into(),
            "another batch than it was built for"
        );
        thread::sleep(Duration::from_millis(state.window_ms * windows));
    }
}

impl Drop for DeviceEngine {
    fn drop(&mut self) {
        self.device.borrow_mut().standing -= 1;
    }
}

impl Engine for DeviceEngine {
    fn exchange(&self) -> &dyn Exchange {
        self.host.exchange()
    }

    fn exchange_mut(&mut self) -> &mut dyn Exchange {
        self.host.exchange_mut()
    }

    fn describe(&self) -> String {
        "device".to_owned()
    }

    async fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError> {
        yield_now().await;
        if self.life_steps == Some(self.steps()) {
            return Err(lost());
        }
        self.stepped = true;
        self.work(tokens);
        self.device.borrow_mut().steps[self.index] += 1;
        self.host.step(tokens, lr).await
    }

    async fn rehearse(&mut self, tokens: &[u32]) -> Result<bool, EngineError> {
        yield_now().await;
        assert_eq!(self.steps(), 0, "it trains already");
        self.device.borrow_mut().rehearsals += 1;
        self.work(tokens);
        Ok(true)
    }

    fn encode(&mut self, serial: Serial, fragment: FragmentId) -> Result<(), EngineError> {
        if let Some(control) = &self.device.borrow().leave_at_body {
            control.stop();
        }
        self.exchange_mut().encode(serial, fragment)?;
        let at_step = self.late_steps.map(|late_steps| self.steps() + late_steps);
        let encoded = self.exchange_mut().encoded()?;
        self.coding.extend(encoded.map(|encoded| (at_step, encoded)));
        Ok(())
    }

    fn encoded(&mut self) -> Result<Option<Encoded>, EngineError> {
        let steps = self.steps();
        let out = self.coding.front().is_some_and(|(at_step, _)| at_step.is_some_and(|at| at <= steps));
        Ok(self.coding.pop_front_if(|_| out).map(|(_, encoded)| encoded))
    }

    async fn settle(&mut self) -> Result<(), EngineError> {
        yield_now().await;
        thread::sleep(Duration::from_millis(SETTLE_MS));
        self.device.borrow_mut().settled += u64::from(mem::take(&mut self.stepped));
        for (at_step, _) in &mut self.coding {
            *at_step = Some(0);
        }
        Ok(())
    }

    fn is_busy(&self) -> bool {
        self.stepped || !self.coding.is_empty()
    }

    fn salvage(&mut self) -> Option<OptimiserState> {
        let (steps, len) = (self.steps_before + self.steps(), self.layout().len());
        Some(OptimiserState::of_adamw(steps, vec![steps as f32; len], vec![0.0; len]))
    }
}

fn lost() -> EngineError {
    EngineError::Lost { reason: "the test says so".to_owned() }
}
