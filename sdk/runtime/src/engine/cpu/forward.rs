//! Forward passes of the model: held-out loss and logits.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use super::matmul::Products;
use super::network::{Network, Pass};
use super::pool::Pool;
use super::workspace::Workspace;
use super::{THREADS_MAX, describe};
use crate::engine::EngineError;
use crate::model::{FrozenWeights, ModelError, ModelSpec, check_len, check_vocab, layout, windows};
use crate::token;

/// Forward passes of a model on the processor: held-out loss and logits. [`super::Writer`] generates text.
pub struct CpuModel {
    network: Network,
    pool: Pool,
    /// One workspace for each thread.
    workspaces: Vec<Workspace>,
}

impl CpuModel {
    /// Creates a model of this shape. Each call receives the parameters.
    ///
    /// # Errors
    /// - [`EngineError::Model`]: `spec` is invalid.
    /// - [`EngineError::Thread`]: the system provides no more threads.
    /// - [`EngineError::Frozen`]: `spec` has adapters, see [`Self::on`].
    pub fn new(spec: &ModelSpec, threads: NonZeroUsize) -> Result<Self, EngineError> {
        Self::with(spec, threads, Products::FASTEST, None)
    }

    /// Does the same as [`Self::new`], on the weights `frozen` if `spec` has adapters. Only the adapters are parameters
    /// then.
    ///
    /// # Errors
    /// Those of [`Self::new`], and [`EngineError::FrozenUnfit`]: the weights belong to another model.
    pub fn on(
        frozen: Option<Arc<FrozenWeights>>,
        spec: &ModelSpec,
        threads: NonZeroUsize,
    ) -> Result<Self, EngineError> {
        Self::with(spec, threads, Products::FASTEST, frozen)
    }

    /// Does the same as [`Self::new`] on one thread, with the same bits on every machine: see
    /// [`super::CpuTrainer::fixed`].
    ///
    /// # Errors
    /// Those of [`Self::new`].
    pub fn fixed(spec: &ModelSpec) -> Result<Self, EngineError> {
        Self::with(spec, NonZeroUsize::MIN, Products::FIXED, None)
    }

    fn with(
        spec: &ModelSpec,
        threads: NonZeroUsize,
        products: Products,
        frozen: Option<Arc<FrozenWeights>>,
    ) -> Result<Self, EngineError> {
        layout(spec)?;
        let network = Network::new(spec, products, frozen)?;
        let pool = Pool::new(threads.min(THREADS_MAX))?;
        let workspace = |_| Workspace::new(&network.dims, network.windows_at_once(usize::MAX, 1), false);
        Ok(Self { workspaces: (0..pool.threads()).map(workspace).collect(), network, pool })
    }

    /// Returns a description of the hardware in use, for people: "cpu avx512 2 threads".
    #[must_use]
    pub fn describe(&self) -> String {
        describe(&self.pool)
    }

    /// Returns the mean loss of the learnt tokens among `tokens`, `[n, context + 1]`, in nats per token. It is 0 if no
    /// token is learnt, and not finite if the model is not.
    ///
    /// # Errors
    /// - [`EngineError::Model`]: `params` or `tokens` does not fit the model.
    pub fn loss(&mut self, params: &[f32], tokens: &[u32]) -> Result<f32, EngineError> {
        let network = &self.network;
        check_len(params.len(), &network.slots)?;
        let len = network.dims.context;
        windows(tokens, &network.dims)?;
        let count = token::learnt(tokens, len).max(1);
        let batches = tokens.chunks(network.windows_at_once(usize::MAX, 1) * (len + 1));
        let mut losses = vec![0.0; batches.len()];
        let queue = Mutex::new(batches.zip(&mut losses));
        let next = || queue.lock().expect("no thread panics with the lock").next();
        self.pool.each(&mut self.workspaces, |work| {
            while let Some((tokens, loss)) = next() {
                let rows = tokens.len() / (len + 1) * len;
                let windows = tokens.chunks_exact(len + 1);
                let pass = Pass { network, params, past: 0, len, rows };
                let inputs = windows.clone().flat_map(|window| &window[..len]);
                pass.forward(inputs.map(|&token| token::id(token)), work);
                let targets: Vec<u32> = windows.flat_map(|window| &window[1..]).copied().collect();
                *loss = pass.loss(&targets, work);
            }
        });
        Ok((losses.iter().sum::<f64>() / count as f64) as f32)
    }

    /// Returns the logits `[t, V]` after each of the `t` tokens of one sequence, on one thread.
    ///
    /// # Errors
    /// - [`EngineError::Model`]: `params` or `tokens` does not fit the model.
    pub fn logits(&mut self, params: &[f32], tokens: &[u32]) -> Result<Vec<f32>, EngineError> {
        self.run(params, tokens)?;
        let vocab = self.network.dims.vocab;
        let (pass, work) = self.after(params, tokens.len());
        let mut logits = Vec::with_capacity(tokens.len() * vocab);
        for first in (0..tokens.len()).step_by(work.chunk) {
            let rows = work.chunk.min(tokens.len() - first);
            pass.logits(first, rows, work);
            logits.extend_from_slice(&work.logits[..rows * vocab]);
        }
        Ok(logits)
    }

    /// Runs one sequence up to the last norm, in the first workspace.
    fn run(&mut self, params: &[f32], tokens: &[u32]) -> Result<(), EngineError> {
        let dims = &self.network.dims;
        check_len(params.len(), &self.network.slots)?;
        check_vocab(tokens, dims)?;
        if tokens.is_empty() || tokens.len() > dims.context {
            return Err(ModelError::Sequence { found: tokens.len(), context: dims.context }.into());
        }
        let pass = Pass { network: &self.network, params, past: 0, len: tokens.len(), rows: tokens.len() };
        pass.forward(tokens.iter().copied(), &mut self.workspaces[0]);
        Ok(())
    }

    /// Returns the pass and the workspace with the results of [`Self::run`].
    fn after<'a>(&'a mut self, params: &'a [f32], len: usize) -> (Pass<'a>, &'a mut Workspace) {
        (Pass { network: &self.network, params, past: 0, len, rows: len }, &mut self.workspaces[0])
    }
}
