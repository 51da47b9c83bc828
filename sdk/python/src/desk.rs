//! Where the learner's loop and the program that trains meet.
//!
//! The loop lays orders down in the order of its calls. The program takes them between two steps, one by one, and does
//! them to its own tensors: it copies a fragment out, adds a change, or trains on a batch. One batch lies ready while
//! the program trains on the one before, so that it need not wait for the loop.

mod measure;
mod notes;

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use archipelago::data::token;
use archipelago::run::Report;
use archipelago_runtime::engine::EngineError;
use tokio::sync::Notify;

pub use measure::Task;
pub use notes::Note;

use crate::fault::Fault;
use crate::tensors::Place;

/// What the program is to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// Train on this.
    Step(Batch),
    /// Copy these values out, in 32 bits, and give them under this number.
    Read {
        /// What [`Desk::give`] is told.
        id: u64,
        /// Where they lie.
        places: Vec<Place>,
    },
    /// Measure the loss of these values on these windows, and say what [`Desk::measured`] is to be told.
    Measure(Task),
    /// `θ = kept · θ + values` at these places.
    Change {
        /// 1 to add, 0 to overwrite.
        kept: f32,
        /// What is added, as many as the places have.
        values: Vec<f32>,
        /// Where.
        places: Vec<Place>,
    },
}

/// Tokens to train on.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// What [`Desk::done`] is told.
    pub id: u64,
    /// `[windows, context + 1]`, row-major, with the marks of [`token`] on those that are given.
    pub tokens: Vec<u32>,
    /// How many windows they are.
    pub windows: u32,
    /// By the run's schedule.
    pub learning_rate: f32,
}

/// Values that the program copied out.
#[derive(Clone, Debug, PartialEq)]
pub struct Copied {
    /// The number of their order.
    pub id: u64,
    /// The values, in the order of the places.
    pub values: Vec<f32>,
}

/// What there is for the program.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// An order, which is the program's now.
    Order(Order),
    /// Nothing yet, or nothing before the step under way is done.
    Nothing,
    /// The learner has left or the run is complete.
    Over,
}

/// The place itself.
#[derive(Debug, Default)]
pub struct Desk {
    state: Mutex<State>,
    for_program: Condvar,
    for_loop: Notify,
}

#[derive(Debug, Default)]
struct State {
    orders: VecDeque<Order>,
    id_next: u64,
    /// The batch that the program trains on.
    running: Option<Running>,
    copies: VecDeque<Copied>,
    /// What the program measured last, and the number of its order.
    measured: Option<(u64, Option<f32>)>,
    /// Of the engine there is: steps done, tokens of them that the loop does not know of, and the newest loss.
    steps: u64,
    tokens: u64,
    loss: f32,
    /// The loss by which the program said that training blew up, until there is another engine.
    blown_up: Option<f32>,
    /// What the program is to hear with its next call.
    fault: Option<Fault>,
    is_loaded: bool,
    notes: VecDeque<Note>,
    /// Why the connection is gone, until the next attempt: with the end of the run there is none.
    lost: Option<String>,
    report: Option<Report>,
    over: Option<Result<(), Fault>>,
    /// The program leaves, and trains no more.
    leaving: bool,
    /// The program is gone, and nothing will be done.
    gone: bool,
}

/// A batch that the program trains on.
#[derive(Debug)]
struct Running {
    id: u64,
    /// Tokens that it trains on, given ones among them.
    planned: u64,
    /// Whether anything in it is to be learnt.
    learns: bool,
}

impl Running {
    fn of(batch: &Batch) -> Self {
        let planned = batch.tokens.len() as u64 - u64::from(batch.windows);
        let window = batch.tokens.len().checked_div(batch.windows as usize).unwrap_or_default();
        let learns = token::learnt(&batch.tokens, window.saturating_sub(1)) > 0;
        Self { id: batch.id, planned, learns }
    }
}

impl Desk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // The program's side.

    /// The next order, awaited for `wait` at most. A batch is given only while none is under way.
    ///
    /// # Errors
    /// [`Fault`]: what went wrong since the last call; the end of the loop comes again each time.
    pub fn next(&self, wait: Duration) -> Result<Next, Fault> {
        let (mut state, _) = self
            .for_program
            .wait_timeout_while(self.state(), wait, |state| !state.has_news())
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(fault) = state.fault.take() {
            return Err(fault);
        }
        match &state.over {
            Some(Ok(())) => return Ok(Next::Over),
            Some(Err(fault)) => return Err(fault.clone()),
            None => {}
        }
        if !state.has_news() {
            return Ok(Next::Nothing);
        }
        let order = loop {
            match state.orders.pop_front() {
                Some(Order::Step(_)) if state.leaving => self.for_loop.notify_one(),
                Some(order) => break order,
                None => return Ok(Next::Nothing),
            }
        };
        if let Order::Step(batch) = &order {
            state.running = Some(Running::of(batch));
            // There is room for the next one.
            self.for_loop.notify_one();
        }
        Ok(Next::Order(order))
    }

    /// The step on the batch `id` is done, with this mean loss in nats per token, on so many tokens,
    /// or as many as the batch has. A batch of an engine that is gone is nobody's. Where nothing was to be learnt there
    /// is no loss, and a mean over nothing is no number: the loss stays that of the step before.
    ///
    /// # Errors
    /// [`Fault`]: what went wrong since the last call, or that the loss is not finite.
    pub fn done(&self, id: u64, loss: f32, tokens: Option<u64>) -> Result<(), Fault> {
        let mut state = self.state();
        if let Some(fault) = state.fault.take() {
            return Err(fault);
        }
        let Some(batch) = state.running.take_if(|running| running.id == id) else { return Ok(()) };
        let loss = if batch.learns { loss } else { state.loss };
        if !loss.is_finite() {
            state.orders.clear();
            state.blown_up = Some(loss);
            self.for_loop.notify_one();
            return Err(Fault::NotFinite { what: format!("the loss, {loss},") });
        }
        state.steps += 1;
        state.tokens = state.tokens.saturating_add(tokens.unwrap_or(batch.planned));
        state.loss = loss;
        // Only the first one is waited for: who is woken for nothing takes time from the training.
        if state.steps == 1 {
            self.for_loop.notify_one();
        }
        Ok(())
    }

    /// Hands over what was asked for under `id`.
    pub fn give(&self, id: u64, values: Vec<f32>) {
        self.state().copies.push_back(Copied { id, values });
        self.for_loop.notify_one();
    }

    /// Whether every fragment was loaded, and all of that is done.
    #[must_use]
    pub fn is_loaded(&self) -> bool {
        let state = self.state();
        state.is_loaded && !state.orders.iter().any(|order| matches!(order, Order::Change { .. }))
    }

    /// How things stand, once there is something to say.
    #[must_use]
    pub fn report(&self) -> Option<Report> {
        self.state().report.clone()
    }

    /// The program trains no more, and does what else is asked for until the end.
    pub fn leave(&self) {
        self.state().leaving = true;
        self.for_loop.notify_one();
    }

    /// The program does nothing more at all.
    pub fn let_go(&self) {
        self.state().gone = true;
        self.for_loop.notify_one();
    }

    // The loop's side.

    /// Waits until something was done at the desk since this was last called.
    pub async fn changed(&self) {
        self.for_loop.notified().await;
    }

    /// Whether the program trains no more.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.state().leaving
    }

    /// Begins with another engine: what lies here is nobody's any more.
    pub fn clear(&self) {
        let mut state = self.state();
        state.orders.clear();
        state.copies.clear();
        (state.running, state.blown_up) = (None, None);
        (state.steps, state.tokens, state.loss) = (0, 0, 0.0);
        state.is_loaded = false;
    }

    /// Asks for a copy; the number that it will come under.
    pub fn read(&self, places: Vec<Place>) -> u64 {
        let mut state = self.state();
        let id = state.id();
        state.orders.push_back(Order::Read { id, places });
        self.for_program.notify_all();
        id
    }

    /// Asks for a change. If one of the same places lies there last, the two become one: most changes of a fragment are
    /// a pair, its own update taken out and what was merged put in.
    pub fn change(&self, kept: f32, values: Vec<f32>, places: Vec<Place>) {
        let mut state = self.state();
        match state.orders.back_mut() {
            Some(Order::Change { kept: before, values: sum, places: same }) if *same == places => {
                *before *= kept;
                sum.iter_mut().zip(&values).for_each(|(sum, value)| *sum = kept * *sum + value);
            }
            _ => state.orders.push_back(Order::Change { kept, values, places }),
        }
        self.for_program.notify_all();
    }

    /// Every fragment was loaded.
    pub fn loaded(&self) {
        self.state().is_loaded = true;
        self.for_program.notify_all();
    }

    /// Lays a batch of so many windows down; false if one lies there that was not begun.
    ///
    /// # Errors
    /// [`EngineError::NotFinite`]: training blew up; [`EngineError::Thread`]: the program is gone.
    pub fn offer(&self, tokens: &[u32], windows: u32, learning_rate: f32) -> Result<bool, EngineError> {
        let mut state = self.state();
        state.check()?;
        if state.orders.iter().any(|order| matches!(order, Order::Step(_))) {
            return Ok(false);
        }
        let id = state.id();
        state.orders.push_back(Order::Step(Batch { id, tokens: tokens.to_vec(), windows, learning_rate }));
        self.for_program.notify_all();
        Ok(true)
    }

    /// How many steps were done, the newest loss, and the tokens that were trained on since the last call.
    ///
    /// # Errors
    /// As [`Self::offer`].
    pub fn take_steps(&self) -> Result<(u64, f32, u64), EngineError> {
        let mut state = self.state();
        state.check()?;
        Ok((state.steps, state.loss, std::mem::take(&mut state.tokens)))
    }

    /// The next copy that came.
    ///
    /// # Errors
    /// [`EngineError::Thread`]: the program is gone.
    pub fn take_copy(&self) -> Result<Option<Copied>, EngineError> {
        let mut state = self.state();
        state.check_here()?;
        Ok(state.copies.pop_front())
    }

    /// Has the program hear of this with its next call; the engine there is does nothing more.
    pub fn tell(&self, fault: Fault) {
        let mut state = self.state();
        state.orders.clear();
        state.running = None;
        state.fault = Some(fault);
        self.for_program.notify_all();
    }

    /// The loop is over.
    pub fn end(&self, end: Result<Report, Fault>) {
        let mut state = self.state();
        state.over = Some(end.map(|report| state.report = Some(report)));
        self.for_program.notify_all();
    }
}

impl State {
    fn id(&mut self) -> u64 {
        self.id_next += 1;
        self.id_next
    }

    /// Whether the program has something to do or to hear.
    fn has_news(&self) -> bool {
        let has_order = match self.orders.front() {
            Some(Order::Step(_)) => self.running.is_none() || self.leaving,
            order => order.is_some(),
        };
        has_order || self.fault.is_some() || self.over.is_some()
    }

    /// Whether steps can be taken.
    fn check(&self) -> Result<(), EngineError> {
        if let Some(loss) = self.blown_up {
            return Err(EngineError::NotFinite { loss, grad_norm: 0.0 });
        }
        self.check_here()
    }

    fn check_here(&self) -> Result<(), EngineError> {
        match self.gone {
            true => Err(EngineError::Thread(std::io::Error::other("the program let go of its learner"))),
            false => Ok(()),
        }
    }
}
