//! Learner in a Worker, with callbacks to JavaScript, and with its key and storage in the browser.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::num::NonZeroUsize;
use std::rc::Rc;

use archipelago::run::{
    Address, CacheError, Control, EngineInputs, Event, FrozenSource, Key, Report, RunConfig, SignError,
    Signer, WeightCache, run,
};
use archipelago_core::diloco::Layout;
use archipelago_core::wire::{DeviceKind, Identity, RunSpec, Signature};
use archipelago_runtime::engine::gpu::Gpu;
use archipelago_runtime::engine::{
    AnyEngine, Engine, EngineBuilder, EngineError, EngineKind, EngineOptions, Exchange, Helpers,
    OptimiserState, StepStats,
};
use archipelago_runtime::platform::Clock;
use futures::future::LocalBoxFuture;
use js_sys::{Array, Float32Array, Promise, Uint8Array};
use serde::Serialize;
use wasm_bindgen::prelude::wasm_bindgen;
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::JsFuture;

use crate::failure::describe_fallback;
use crate::helper::{Team, helpers};
use crate::options::{read, to_js};
use crate::{Failure, JoinOptions, options};

/// Maximum number of parameters for which moments are saved. Larger moments, above 256 MiB, take too long to write.
const SAVED_PARAMS_MAX: usize = 32 << 20;

/// Learner with its controls. It can run once.
#[wasm_bindgen]
#[derive(Debug, Default)]
pub struct Learner {
    control: Control,
    /// Device in use, for [`Self::lose_device`].
    gpu: Rc<RefCell<Option<Gpu>>>,
}

#[wasm_bindgen]
impl Learner {
    /// Creates a learner that does not run yet.
    #[wasm_bindgen(constructor)]
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes part in a run until it is stopped or the run ends, and resolves with the last report. `join_options` are
    /// [`JoinOptions`]; `team` starts the helpers of a CPU engine.
    ///
    /// # Errors
    /// [`Failure`], as an `Error` with a `code`.
    pub async fn run(&self, join_options: JsValue, hooks: Hooks, team: Team) -> Result<JsValue, JsValue> {
        let options: JoinOptions = read(join_options)?;
        let report = self.take_part(options, Rc::new(hooks), team).await?;
        Ok(to_js(&report))
    }

    /// Pauses training after the current step, without closing the connection.
    pub fn pause(&self) {
        self.control.pause();
    }

    /// Resumes training.
    pub fn resume(&self) {
        self.control.resume();
    }

    /// Leaves the run after the current step, with its last messages sent.
    pub fn stop(&self) {
        self.control.stop();
    }

    /// Sets whether the page is hidden.
    #[wasm_bindgen(js_name = setHidden)]
    pub fn set_hidden(&self, hidden: bool) {
        self.control.set_hidden(hidden);
    }

    /// Reconnects at once, without waiting for the backoff.
    pub fn reconnect(&self) {
        self.control.reconnect();
    }

    /// Sets the duty cycle, the fraction of time spent training.
    ///
    /// # Errors
    /// [`Failure::Options`]: `share` is not above 0 and at most 1.
    #[wasm_bindgen(js_name = setShare)]
    pub fn set_share(&self, share: f64) -> Result<(), JsValue> {
        Ok(self.control.set_duty_cycle(share).map_err(Failure::from)?)
    }

    /// Destroys the GPU device as a driver reset does, for tests and demonstrations. Returns false on the CPU.
    #[wasm_bindgen(js_name = loseDevice)]
    #[must_use]
    pub fn lose_device(&self) -> bool {
        self.gpu.borrow().as_ref().map(Gpu::lose).is_some()
    }
}

impl Learner {
    async fn take_part(&self, options: JoinOptions, hooks: Rc<Hooks>, team: Team) -> Result<Report, Failure> {
        self.control.set_duty_cycle(options.share)?;
        let address: Address = options.syncer.parse()?;
        let (half, batch) = (options::half(&options.identity)?, options::batch(options.batch)?);
        let signer: Rc<dyn Signer> = match options.browser_signs {
            true => Rc::new(BrowserKey { identity: Identity(half), hooks: Rc::clone(&hooks) }),
            false => Rc::new(Key::from_secret(&half)),
        };
        let kind = options::engine(&options.engine)?;
        let mut builder = open(kind, helpers(team, options.helpers)).await?;
        let device = builder.gpu().map_or_else(|| DeviceKind::Browser.describe("cpu"), describe);
        let config = RunConfig {
            address,
            signer,
            name: options.name.clone(),
            device,
            contact_ms_max: options.contact_ms_max,
            reconnect_ms_max: None,
            run_ms_max: None,
            batch,
            weight_cache: options
                .keeps
                .then(|| Rc::new(BrowserStorage { hooks: Rc::clone(&hooks) }) as Rc<dyn WeightCache>),
            frozen: FrozenSource::Syncer,
        };
        let observe = |event: &Event| hooks.event(to_js(event));
        let first = Cell::new(true);
        let build = async |spec: &RunSpec, EngineInputs { moments, frozen }: EngineInputs| {
            let kept = if first.replace(false) { restore(&hooks, spec).await } else { None };
            let restored = kept.is_some();
            if let Some(frozen) = frozen {
                builder.frozen(frozen);
            }
            let engine = builder.build(spec, moments.or(kept)).await?;
            self.gpu.replace(builder.gpu().cloned());
            hooks.event(to_js(&LearnerNotice::Engine {
                engine: engine.kind().name(),
                device: builder.gpu().map_or_else(|| engine.describe(), describe),
                fallback: builder.fallback().map(describe_fallback),
                restored,
            }));
            let hooks = Rc::clone(&hooks);
            let save = move |moments: &OptimiserState| {
                let vectors = moments.vectors.iter().map(|vector| Float32Array::from(&vector[..]));
                hooks.save(moments.steps as f64, vectors.collect());
            };
            let every = if engine.layout().len() > SAVED_PARAMS_MAX { 0 } else { options.save_steps };
            Ok::<_, EngineError>(MomentSaver::new(engine, every, Box::new(save)))
        };
        Ok(run(config, &self.control, build, observe).await?)
    }
}

/// Returns a description of a GPU for display. Browsers reveal little about it.
pub(crate) fn describe(gpu: &Gpu) -> String {
    match gpu.facts().name.as_str() {
        "" => DeviceKind::Browser.describe("WebGPU"),
        name => DeviceKind::Browser.describe(&format!("WebGPU, {name}")),
    }
}

/// Opens a builder of engines of `kind`. Its CPU engines use `helpers`.
pub(crate) async fn open(kind: EngineKind, helpers: Helpers) -> Result<EngineBuilder, Failure> {
    let clock = Clock::start();
    let options = EngineOptions {
        kind,
        adapter: None,
        half_weights: false,
        whole_products: false,
        gpu_mib_max: None,
        threads: NonZeroUsize::MIN,
        free_mib: || None,
        tunings: Vec::new(),
    };
    let mut builder = EngineBuilder::open(options, Rc::new(move || clock.now_us())).await?;
    helpers.help(&mut builder);
    Ok(builder)
}

/// Returns the moments of this model that an earlier page saved; `None` if they are missing or unreadable.
async fn restore(hooks: &Hooks, spec: &RunSpec) -> Option<OptimiserState> {
    let params = Layout::of(&spec.model).ok()?.len();
    let kept = JsFuture::from(hooks.restore(params as f64)).await.ok()?;
    if kept.is_null() || kept.is_undefined() {
        return None;
    }
    let kept: StoredMoments = kept.unchecked_into();
    let steps = kept.steps();
    let vectors = kept.vectors().iter().map(|vector| Float32Array::new(&vector).to_vec()).collect();
    // The engine checks whether the vectors belong to this model and its optimiser.
    (0.0..=u32::MAX.into()).contains(&steps).then_some(OptimiserState { steps: steps as u64, vectors })
}

#[wasm_bindgen]
extern "C" {
    /// JavaScript callbacks of a learner in its Worker.
    pub type Hooks;
    /// Receives an event of the learner.
    #[wasm_bindgen(method)]
    pub(crate) fn event(this: &Hooks, event: JsValue);
    /// Saves the optimiser's moments after `steps` steps.
    #[wasm_bindgen(method)]
    pub(crate) fn save(this: &Hooks, steps: f64, vectors: Array);
    /// Resolves with the Ed25519 signature of `text` by the key that the browser holds.
    #[wasm_bindgen(method)]
    pub(crate) fn sign(this: &Hooks, text: Uint8Array) -> Promise;
    /// Resolves with the saved moments of a model with `params` parameters, or with nothing.
    #[wasm_bindgen(method)]
    pub(crate) fn restore(this: &Hooks, params: f64) -> Promise;
    /// Resolves with the part of frozen weights that is stored as `name`, or with nothing.
    #[wasm_bindgen(method, js_name = takeKept)]
    pub(crate) fn take_kept(this: &Hooks, name: &str) -> Promise;
    /// Stores a part of frozen weights as `name`.
    #[wasm_bindgen(method)]
    pub(crate) fn keep(this: &Hooks, name: &str, bytes: Uint8Array) -> Promise;

    /// Result of [`Hooks::restore`].
    pub type StoredMoments;
    #[wasm_bindgen(method, getter)]
    pub(crate) fn steps(this: &StoredMoments) -> f64;
    #[wasm_bindgen(method, getter)]
    pub(crate) fn vectors(this: &StoredMoments) -> Array;
}

/// Notice that a page may show. As JSON it has its name under `event`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS), ts(rename = "Notice"))]
#[serde(tag = "event", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum LearnerNotice {
    /// An engine was chosen and built.
    Engine {
        /// Kind of engine: "gpu" or "cpu".
        engine: &'static str,
        /// Engine and device, for display.
        device: String,
        /// Reason for a CPU engine, if a GPU was wanted.
        fallback: Option<String>,
        /// Whether the engine continues with moments that an earlier page saved.
        restored: bool,
    },
}

/// Function that passes moments to their storage without waiting.
pub type Save = Box<dyn Fn(&OptimiserState)>;

/// [`AnyEngine`] that saves its moments regularly.
pub struct MomentSaver {
    engine: AnyEngine,
    save: Save,
    /// Number of steps between two saves; 0 for never.
    every: u32,
    since: u32,
}

impl MomentSaver {
    /// Creates an engine that saves its moments every `every` steps, or never if that is 0.
    pub fn new(engine: AnyEngine, every: u32, save: Save) -> Self {
        Self { engine, save, every, since: 0 }
    }
}

impl Engine for MomentSaver {
    fn exchange(&self) -> &dyn Exchange {
        self.engine.exchange()
    }

    fn exchange_mut(&mut self) -> &mut dyn Exchange {
        self.engine.exchange_mut()
    }

    fn describe(&self) -> String {
        self.engine.describe()
    }

    async fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError> {
        let stats = self.engine.step(tokens, lr).await?;
        self.since += 1;
        if self.since == self.every {
            self.since = 0;
            if let Some(moments) = self.engine.saved_moments() {
                (self.save)(&moments);
            }
        }
        Ok(stats)
    }

    async fn rehearse(&mut self, tokens: &[u32]) -> Result<bool, EngineError> {
        self.engine.rehearse(tokens).await
    }

    async fn synchronise(&mut self) -> Result<(), EngineError> {
        self.engine.synchronise().await
    }

    fn is_busy(&self) -> bool {
        self.engine.is_busy()
    }

    fn saved_moments(&mut self) -> Option<OptimiserState> {
        self.engine.saved_moments()
    }

    fn take_expert_counts(&mut self) -> Vec<u64> {
        self.engine.take_expert_counts()
    }
}

/// Browser storage of frozen weights, behind `hooks`. JavaScript limits its size.
pub(crate) struct BrowserStorage {
    pub(crate) hooks: Rc<Hooks>,
}

impl WeightCache for BrowserStorage {
    /// Returns true, because a browser reports a lack of space only when data is stored.
    fn has_room(&self, _bytes: u64) -> bool {
        true
    }

    fn take<'a>(&'a self, name: &'a str) -> LocalBoxFuture<'a, Result<Option<Vec<u8>>, CacheError>> {
        Box::pin(async move {
            let kept = await_promise(self.hooks.take_kept(name)).await?;
            Ok((!kept.is_undefined()).then(|| Uint8Array::new(&kept).to_vec()))
        })
    }

    fn keep<'a>(&'a self, name: &'a str, bytes: &'a [u8]) -> LocalBoxFuture<'a, Result<(), CacheError>> {
        Box::pin(async move { await_promise(self.hooks.keep(name, Uint8Array::from(bytes))).await.map(drop) })
    }
}

async fn await_promise(promise: Promise) -> Result<JsValue, CacheError> {
    JsFuture::from(promise).await.map_err(|error| {
        let message = js_sys::Reflect::get(&error, &"message".into()).ok().and_then(|text| text.as_string());
        CacheError { reason: format!("the browser's storage failed: {}", message.unwrap_or_default()) }
    })
}

impl fmt::Debug for BrowserStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BrowserShelf")
    }
}

/// Key that the browser holds. `identity` is its public half.
pub(crate) struct BrowserKey {
    pub(crate) identity: Identity,
    pub(crate) hooks: Rc<Hooks>,
}

impl Signer for BrowserKey {
    fn identity(&self) -> Identity {
        self.identity
    }

    fn sign<'a>(&'a self, text: &'a [u8]) -> LocalBoxFuture<'a, Result<Signature, SignError>> {
        Box::pin(async move {
            let signed = JsFuture::from(self.hooks.sign(Uint8Array::from(text))).await;
            let failed = |reason: String| SignError { reason };
            let bytes = signed.map_err(|error| failed(format!("{error:?}")))?;
            let bytes = bytes.dyn_into::<Uint8Array>().map_err(|_| failed("no bytes came".to_owned()))?;
            let signature = <[u8; 64]>::try_from(bytes.to_vec())
                .map_err(|bytes| failed(format!("{} bytes came instead of 64", bytes.len())))?;
            Ok(Signature(signature))
        })
    }
}

impl fmt::Debug for BrowserKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BrowserKey({:?})", self.identity)
    }
}
