//! Bridge between the learner's loop and the training program.
//!
//! The loop queues requests in the order of its calls. Between two steps, the program takes them one by one and
//! carries them out on its own tensors: it copies a fragment out, adds a change, or trains on a batch. The next batch
//! is queued while the program trains on the current one, so that the program does not wait for the loop.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use archipelago::data::token;
use archipelago::run::{Doing, Event, Report, RunError};
use archipelago::wire::CloseCode;
use archipelago_runtime::engine::EngineError;
use tokio::sync::Notify;

use crate::tensors::TensorSlice;

/// Request to the program.
#[derive(Clone, Debug, PartialEq)]
pub enum ProgramRequest {
    /// Train on this batch.
    Step(Batch),
    /// Copy these values out, in 32 bits, and deliver them under this id.
    Read {
        /// Id for [`ProgramBridge::give`].
        id: u64,
        /// Slices of the values.
        places: Vec<TensorSlice>,
    },
    /// Measure the loss of these values on these windows, and return it with [`ProgramBridge::measured`].
    Measure(Task),
    /// Apply `θ = kept · θ + values` to the parameters in these slices.
    Change {
        /// Factor of the old parameters: 1 to add, 0 to overwrite.
        kept: f32,
        /// Values to add, one for each parameter in the slices.
        values: Vec<f32>,
        /// Slices of the parameters.
        places: Vec<TensorSlice>,
    },
}

/// Batch of tokens for training.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Id for [`ProgramBridge::done`].
    pub id: u64,
    /// Tokens, `[windows, context + 1]`, row-major, with masked ones marked as in [`token`].
    pub tokens: Vec<u32>,
    /// Number of windows.
    pub windows: u32,
    /// Learning rate according to the run's schedule.
    pub learning_rate: f32,
}

/// Values that the program copied out.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorCopy {
    /// Id of the request.
    pub id: u64,
    /// Values, in the order of the requested slices.
    pub values: Vec<f32>,
}

/// Next item for the program.
#[derive(Clone, Debug, PartialEq)]
pub enum NextItem {
    /// A request, removed from the queue.
    Request(ProgramRequest),
    /// There is no request, or only a batch while the current step is not done.
    Nothing,
    /// The learner has left, or the run is complete.
    Over,
}

/// Shared state of the loop and the program.
#[derive(Debug, Default)]
pub struct ProgramBridge {
    state: Mutex<BridgeState>,
    for_program: Condvar,
    for_loop: Notify,
}

#[derive(Debug, Default)]
struct BridgeState {
    requests: VecDeque<ProgramRequest>,
    id_next: u64,
    /// Batch that the program trains on.
    running: Option<ActiveBatch>,
    copies: VecDeque<TensorCopy>,
    /// Last measurement of the program, and the id of its request.
    measured: Option<(u64, Option<f32>)>,
    /// Finished steps of the current engine, their tokens since the loop last took them, and the loss of the last
    /// step.
    steps: u64,
    tokens: u64,
    loss: f32,
    /// Loss that was not finite; kept until the next engine.
    diverged_loss: Option<f32>,
    /// Fault to report at the program's next call.
    fault: Option<ProgramError>,
    is_loaded: bool,
    notes: VecDeque<Note>,
    /// Reason of the last disconnection, kept until the next attempt.
    lost: Option<String>,
    report: Option<Report>,
    over: Option<Result<(), ProgramError>>,
    /// Whether the program is leaving, so that it does not train.
    leaving: bool,
    /// Whether the program has stopped carrying out requests.
    gone: bool,
}

/// Batch that the program trains on.
#[derive(Debug)]
struct ActiveBatch {
    id: u64,
    /// Number of tokens to train on, including masked ones.
    planned: u64,
    /// Whether any token in it is a target.
    has_targets: bool,
}

impl ActiveBatch {
    fn of(batch: &Batch) -> Self {
        let planned = batch.tokens.len() as u64 - u64::from(batch.windows);
        let window = batch.tokens.len().checked_div(batch.windows as usize).unwrap_or_default();
        let has_targets = token::target_count(&batch.tokens, window.saturating_sub(1)) > 0;
        Self { id: batch.id, planned, has_targets }
    }
}

impl ProgramBridge {
    fn state(&self) -> MutexGuard<'_, BridgeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // These methods are for the program.

    /// Returns the next request, waiting at most `wait`. A batch is returned only if the step on the previous batch
    /// is done.
    ///
    /// # Errors
    /// [`ProgramError`]: a fault since the last call, or the loop's end by a fault, which is returned at every call.
    pub fn next(&self, wait: Duration) -> Result<NextItem, ProgramError> {
        let (mut state, _) = self
            .for_program
            .wait_timeout_while(self.state(), wait, |state| !state.has_item())
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(fault) = state.fault.take() {
            return Err(fault);
        }
        match &state.over {
            Some(Ok(())) => return Ok(NextItem::Over),
            Some(Err(fault)) => return Err(fault.clone()),
            None => {}
        }
        if !state.has_item() {
            return Ok(NextItem::Nothing);
        }
        let request = loop {
            match state.requests.pop_front() {
                Some(ProgramRequest::Step(_)) if state.leaving => self.for_loop.notify_one(),
                Some(request) => break request,
                None => return Ok(NextItem::Nothing),
            }
        };
        if let ProgramRequest::Step(batch) = &request {
            state.running = Some(ActiveBatch::of(batch));
            // The queue can take the next batch.
            self.for_loop.notify_one();
        }
        Ok(NextItem::Request(request))
    }

    /// Reports the end of the step on the batch `id`, with its mean loss in nats per token. `tokens` is the number of
    /// trained tokens; by default, it is that of the batch. Batches of earlier engines are ignored. If the batch has
    /// no targets, its mean loss is NaN, and the loss of the previous step is kept.
    ///
    /// # Errors
    /// [`ProgramError`]: a fault since the last call, or a loss that is not finite.
    pub fn done(&self, id: u64, loss: f32, tokens: Option<u64>) -> Result<(), ProgramError> {
        let mut state = self.state();
        if let Some(fault) = state.fault.take() {
            return Err(fault);
        }
        let Some(batch) = state.running.take_if(|running| running.id == id) else { return Ok(()) };
        let loss = if batch.has_targets { loss } else { state.loss };
        if !loss.is_finite() {
            state.requests.clear();
            state.diverged_loss = Some(loss);
            self.for_loop.notify_one();
            return Err(ProgramError::NotFinite { what: format!("the loss, {loss},") });
        }
        state.steps += 1;
        state.tokens = state.tokens.saturating_add(tokens.unwrap_or(batch.planned));
        state.loss = loss;
        // The loop waits only for the first step. Needless wake-ups would slow training down.
        if state.steps == 1 {
            self.for_loop.notify_one();
        }
        Ok(())
    }

    /// Delivers the values requested under `id`.
    pub fn give(&self, id: u64, values: Vec<f32>) {
        self.state().copies.push_back(TensorCopy { id, values });
        self.for_loop.notify_one();
    }

    /// Returns true if every fragment was loaded and all changes are carried out.
    #[must_use]
    pub fn is_loaded(&self) -> bool {
        let state = self.state();
        state.is_loaded
            && !state.requests.iter().any(|request| matches!(request, ProgramRequest::Change { .. }))
    }

    /// Returns the last report, if there is one.
    #[must_use]
    pub fn report(&self) -> Option<Report> {
        self.state().report.clone()
    }

    /// Stops training. The program still carries out all other requests until the loop ends.
    pub fn leave(&self) {
        self.state().leaving = true;
        self.for_loop.notify_one();
    }

    /// Stops carrying out requests of all kinds.
    pub fn let_go(&self) {
        self.state().gone = true;
        self.for_loop.notify_one();
    }

    // These methods are for the loop.

    /// Waits until the program has reported or delivered something since the last call.
    pub async fn changed(&self) {
        self.for_loop.notified().await;
    }

    /// Returns true if the program no longer trains.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.state().leaving
    }

    /// Drops all requests and results of the previous engine.
    pub fn clear(&self) {
        let mut state = self.state();
        state.requests.clear();
        state.copies.clear();
        (state.running, state.diverged_loss) = (None, None);
        (state.steps, state.tokens, state.loss) = (0, 0, 0.0);
        state.is_loaded = false;
    }

    /// Requests a copy of the values in `places`, and returns its id.
    pub fn read(&self, places: Vec<TensorSlice>) -> u64 {
        let mut state = self.state();
        let id = state.id();
        state.requests.push_back(ProgramRequest::Read { id, places });
        self.for_program.notify_all();
        id
    }

    /// Requests a change. If the last queued request is a change of the same slices, both are combined. Most changes
    /// of a fragment are such a pair: the learner's own update is subtracted, and the merged one is added.
    pub fn change(&self, kept: f32, values: Vec<f32>, places: Vec<TensorSlice>) {
        let mut state = self.state();
        match state.requests.back_mut() {
            Some(ProgramRequest::Change { kept: before, values: sum, places: same }) if *same == places => {
                *before *= kept;
                sum.iter_mut().zip(&values).for_each(|(sum, value)| *sum = kept * *sum + value);
            }
            _ => state.requests.push_back(ProgramRequest::Change { kept, values, places }),
        }
        self.for_program.notify_all();
    }

    /// Records that every fragment was loaded.
    pub fn loaded(&self) {
        self.state().is_loaded = true;
        self.for_program.notify_all();
    }

    /// Queues a batch of `windows` windows. Returns false if an earlier batch is still queued.
    ///
    /// # Errors
    /// [`EngineError::NotFinite`]: training diverged; [`EngineError::Thread`]: the program has stopped.
    pub fn offer(&self, tokens: &[u32], windows: u32, learning_rate: f32) -> Result<bool, EngineError> {
        let mut state = self.state();
        state.check()?;
        if state.requests.iter().any(|request| matches!(request, ProgramRequest::Step(_))) {
            return Ok(false);
        }
        let id = state.id();
        state.requests.push_back(ProgramRequest::Step(Batch {
            id,
            tokens: tokens.to_vec(),
            windows,
            learning_rate,
        }));
        self.for_program.notify_all();
        Ok(true)
    }

    /// Returns the number of finished steps, the last loss, and the number of tokens trained since the last call.
    ///
    /// # Errors
    /// Those of [`Self::offer`].
    pub fn take_steps(&self) -> Result<(u64, f32, u64), EngineError> {
        let mut state = self.state();
        state.check()?;
        Ok((state.steps, state.loss, std::mem::take(&mut state.tokens)))
    }

    /// Returns the next delivered copy, if there is one.
    ///
    /// # Errors
    /// [`EngineError::Thread`]: the program has stopped.
    pub fn take_copy(&self) -> Result<Option<TensorCopy>, EngineError> {
        let mut state = self.state();
        state.check_here()?;
        Ok(state.copies.pop_front())
    }

    /// Stores a fault for the program's next call, and drops all requests of the current engine.
    pub fn report_fault(&self, fault: ProgramError) {
        let mut state = self.state();
        state.requests.clear();
        state.running = None;
        state.fault = Some(fault);
        self.for_program.notify_all();
    }

    /// Records the end of the loop.
    pub fn end(&self, end: Result<Report, ProgramError>) {
        let mut state = self.state();
        state.over = Some(end.map(|report| state.report = Some(report)));
        self.for_program.notify_all();
    }
}

impl BridgeState {
    fn id(&mut self) -> u64 {
        self.id_next += 1;
        self.id_next
    }

    /// Returns true if [`ProgramBridge::next`] has a request, a fault or the end of the loop to return.
    fn has_item(&self) -> bool {
        let has_request = match self.requests.front() {
            Some(ProgramRequest::Step(_)) => self.running.is_none() || self.leaving,
            request => request.is_some(),
        };
        has_request || self.fault.is_some() || self.over.is_some()
    }

    /// Checks that training did not diverge and that the program carries out requests.
    fn check(&self) -> Result<(), EngineError> {
        if let Some(loss) = self.diverged_loss {
            return Err(EngineError::NotFinite { loss, grad_norm: 0.0 });
        }
        self.check_here()
    }

    fn check_here(&self) -> Result<(), EngineError> {
        match self.gone {
            true => Err(EngineError::Thread(std::io::Error::other("the program dropped its learner"))),
            false => Ok(()),
        }
    }
}

/// Request for the loss of some parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// Id for [`ProgramBridge::measured`].
    pub id: u64,
    /// Parameters, in the order of the slices.
    pub values: Vec<f32>,
    /// Slices of the parameters.
    pub places: Vec<TensorSlice>,
    /// Tokens, `[windows, context + 1]`, row-major.
    pub tokens: Vec<u32>,
    /// Number of windows.
    pub windows: u32,
}

impl ProgramBridge {
    /// Delivers the loss requested under `id`, in nats per token, or `None` if it could not be measured.
    pub fn measured(&self, id: u64, loss: Option<f32>) {
        self.state().measured = Some((id, loss));
        self.for_loop.notify_one();
    }

    /// Requests the loss of the parameters `values` in `places` on `windows` windows. Returns the id of the request.
    pub fn request_measurement(
        &self,
        values: Vec<f32>,
        places: Vec<TensorSlice>,
        tokens: &[u32],
        windows: u32,
    ) -> u64 {
        let mut state = self.state();
        let id = state.id();
        let task = Task { id, values, places, tokens: tokens.to_vec(), windows };
        state.requests.push_back(ProgramRequest::Measure(task));
        self.for_program.notify_all();
        id
    }

    /// Returns the result of the request `id` once it is delivered; the inner `None` means that it could not be
    /// measured.
    ///
    /// # Errors
    /// [`EngineError::NotFinite`]: training diverged; [`EngineError::Thread`]: the program has stopped.
    pub fn take_measured(&self, id: u64) -> Result<Option<Option<f32>>, EngineError> {
        let mut state = self.state();
        state.check()?;
        Ok(state.measured.take_if(|(of, _)| *of == id).map(|(_, loss)| loss))
    }
}

/// Maximum number of notes that wait for the program; the oldest are dropped.
const NOTES_MAX: usize = 64;

/// Entry for the program's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Whether it is a warning.
    pub is_warning: bool,
    /// Text, one sentence.
    pub text: String,
}

impl ProgramBridge {
    /// Returns the notes since the last call.
    #[must_use]
    pub fn take_notes(&self) -> Vec<Note> {
        self.state().notes.drain(..).collect()
    }

    /// Stores an event as a note or a report, if it is worth showing.
    pub fn record_event(&self, event: &Event) {
        let mut state = self.state();
        let (is_warning, text) = match event {
            Event::Progress(report) => {
                state.report = Some((**report).clone());
                return;
            }
            Event::Disconnected { reason, .. } => {
                state.lost = Some(reason.clone());
                return;
            }
            Event::Connecting { .. } => match state.lost.take() {
                Some(reason) => (true, format!("the connection was lost because {reason}; connecting again")),
                None => return,
            },
            Event::Welcomed { run, learner, params, batch, .. } => {
                // The next report follows within half a second, and the program may ask for the state before.
                if let Some(report) = state.report.as_mut().filter(|report| report.doing == Doing::Connecting)
                {
                    report.doing = Doing::Joining;
                }
                let text = format!(
                    "admitted to run {run} as learner {learner}: {params} parameters, {batch} windows a step"
                );
                (false, text)
            }
            Event::Afresh { reason } => (true, format!("joining as a newcomer: {reason}")),
            Event::Trouble { reason } => (true, reason.clone()),
            _ => return,
        };
        if state.notes.len() == NOTES_MAX {
            state.notes.pop_front();
        }
        state.notes.push_back(Note { is_warning, text });
    }
}

/// Error that the program gets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// A value is infinite or NaN. The learner continues with the parameters of the run.
    #[error(
        "{what} is not finite; nothing of it was sent, and the parameters are reset to those of the run: reset the \
         optimiser and continue, or stop"
    )]
    NotFinite {
        /// Name of the value that is not finite.
        what: String,
    },
    /// The run did not answer within the time limit, or does not exist.
    #[error("{0}")]
    Unreachable(String),
    /// The tensors are not those of the run.
    #[error("{0}")]
    Layout(String),
    /// The run refuses this learner.
    #[error("{0}")]
    Refused(String),
    /// The loop ended for another reason.
    #[error("{0}")]
    Failed(String),
}

impl From<RunError> for ProgramError {
    fn from(error: RunError) -> Self {
        let text = error.to_string();
        match error {
            RunError::Unreachable { .. } | RunError::NoRun { .. } => Self::Unreachable(text),
            RunError::Build(EngineError::Unfit(reason)) => Self::Layout(reason),
            RunError::Refused { code: CloseCode::Layout, .. } => Self::Layout(text),
            RunError::Refused { .. } => Self::Refused(text),
            RunError::Build(_) | RunError::Frozen { .. } | RunError::Engine(_) | RunError::Random(_) => {
                Self::Failed(text)
            }
        }
    }
}
