//! Helpers of a CPU engine: further Workers next to the learner's Worker, without shared memory.

use archipelago_core::model::ModelSpec;
use archipelago_core::wire::RunSpec;
use archipelago_runtime::engine::cpu::CpuGradient;
use archipelago_runtime::engine::{
    EngineError, Helper, HelperError, HelperResult, Helpers, PendingResult, Task,
};
use js_sys::{Error, Float32Array, Promise, Uint32Array};
use wasm_bindgen::prelude::wasm_bindgen;
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::JsFuture;

use crate::Failure;
use crate::options::{read, to_js};

#[wasm_bindgen]
extern "C" {
    /// JavaScript object that starts helpers.
    #[derive(Clone)]
    pub type Team;
    /// Starts a helper that computes gradients for up to `windows` windows of a model.
    #[wasm_bindgen(method, catch)]
    fn start(this: &Team, model: JsValue, windows: u32) -> Result<Remote, JsValue>;

    /// Helper as seen from the learner's Worker.
    type Remote;
    /// Resolves with [`RemotePart`], or with nothing after `patience_ms` milliseconds.
    #[wasm_bindgen(method)]
    fn begin(
        this: &Remote,
        params: Float32Array,
        tokens: Uint32Array,
        count: f64,
        patience_ms: f64,
    ) -> Promise;
    #[wasm_bindgen(method)]
    fn end(this: &Remote);

    /// Result of [`Differentiator::differentiate`], with the time it took.
    type RemotePart;
    #[wasm_bindgen(method, getter)]
    fn loss(this: &RemotePart) -> f64;
    #[wasm_bindgen(method, getter)]
    fn grad(this: &RemotePart) -> Float32Array;
    #[wasm_bindgen(method, getter, js_name = busyUs)]
    fn busy_us(this: &RemotePart) -> f64;
}

/// Creates a factory that starts up to `count` helpers with `team`, or fewer if the browser refuses.
pub fn helpers(team: Team, count: u32) -> Helpers {
    Helpers::new(move |spec: &RunSpec| {
        // No engine is built for an architecture other than the decoder, so no helper is needed.
        let model = ModelSpec::of(&spec.model).ok();
        let start = |_| team.start(to_js(model.as_ref()?), spec.inner.batch).ok();
        // The learner's Worker and each helper need at least one window.
        let useful = count.min(spec.inner.batch.saturating_sub(1));
        (0..useful).map_while(start).map(|remote| Box::new(OwnedHelper(remote)) as Box<dyn Helper>).collect()
    })
}

/// Helper that ends when it is dropped.
struct OwnedHelper(Remote);

impl Drop for OwnedHelper {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Helper for OwnedHelper {
    fn begin(&mut self, task: &Task<'_>) -> PendingResult {
        let (params, tokens) = (Float32Array::from(task.params), Uint32Array::from(task.tokens));
        let patience_ms = task.patience_ms;
        let promise = self.0.begin(params, tokens, task.count as f64, patience_ms as f64);
        Box::pin(async move {
            let answer = JsFuture::from(promise).await.map_err(failed)?;
            if answer.is_undefined() {
                return Err(HelperError::Late { patience_ms });
            }
            let part: RemotePart = answer.unchecked_into();
            Ok(HelperResult { loss: part.loss(), grad: part.grad().to_vec(), busy_us: part.busy_us() as u64 })
        })
    }
}

fn failed(error: JsValue) -> HelperError {
    let reason =
        error.dyn_ref::<Error>().map_or_else(|| format!("{error:?}"), |error| error.message().into());
    HelperError::Failed { reason }
}

/// Gradient computation in a helper's Worker.
#[wasm_bindgen]
pub struct Differentiator(CpuGradient);

#[wasm_bindgen]
impl Differentiator {
    /// Creates an instance for up to `windows` windows of `model`.
    ///
    /// # Errors
    /// [`Failure`], as an `Error` with a `code`.
    #[wasm_bindgen(constructor)]
    pub fn new(model: JsValue, windows: u32) -> Result<Self, JsValue> {
        let model: ModelSpec = read(model)?;
        let gradient = CpuGradient::new(&model, windows, std::num::NonZeroUsize::MIN);
        Ok(Self(gradient.map_err(Failure::from)?))
    }

    /// Computes the gradient of some windows as [`CpuGradient::differentiate`] does. Overwrites `params` with it and
    /// returns the sum of the losses.
    ///
    /// # Errors
    /// [`Failure`], as an `Error` with a `code`.
    pub fn differentiate(
        &mut self,
        params: &Float32Array,
        tokens: Vec<u32>,
        count: f64,
    ) -> Result<f64, JsValue> {
        let (found, expected) = (params.length() as usize, self.0.grad().len());
        if found != expected {
            let error = archipelago_core::model::ModelError::Params { found, expected };
            return Err(Failure::from(EngineError::from(error)).into());
        }
        params.copy_to(self.0.params_mut());
        let sums = self.0.differentiate(&tokens, count as u64).map_err(Failure::from)?;
        params.copy_from(self.0.grad());
        Ok(sums.loss)
    }
}
