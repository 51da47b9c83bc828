//! A learner in a Worker.

use std::cell::{Cell, RefCell};
use std::num::NonZeroUsize;
use std::rc::Rc;

use archipelago::run::{Address, Basis, Control, Event, Key, Report, RunConfig, Signer, WeightCache, run};
use archipelago_core::diloco::Layout;
use archipelago_core::wire::{DeviceKind, Identity, RunSpec};
use archipelago_runtime::engine::gpu::Gpu;
use archipelago_runtime::engine::{
    Engine, EngineBuilder, EngineError, EngineKind, EngineOptions, Helpers, OptimiserState,
};
use archipelago_runtime::platform::Clock;
use js_sys::Float32Array;
use wasm_bindgen::prelude::wasm_bindgen;
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::JsFuture;

use crate::convert::{read, to_js};
use crate::failure::told;
use crate::helper::{Team, helpers};
use crate::hooks::{Hooks, Kept};
use crate::saving::Saving;
use crate::shelf::BrowserShelf;
use crate::signer::BrowserKey;
use crate::{Failure, JoinOptions, Notice, options};

/// Maximum number of parameters for which moments are saved. Moments above 256 MiB are too large to write often.
const SAVED_PARAMS_MAX: usize = 32 << 20;

/// A learner and its control. Runs once.
#[wasm_bindgen]
#[derive(Debug, Default)]
pub struct Learner {
    control: Control,
    /// The device in use, for a deliberate loss.
    gpu: Rc<RefCell<Option<Gpu>>>,
}

#[wasm_bindgen]
impl Learner {
    /// Creates a learner that has not started.
    #[wasm_bindgen(constructor)]
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes part in a run until it is stopped or the run ends; resolves with the last report. `join_options` are
    /// [`JoinOptions`]; `team` starts the helpers of a CPU engine.
    ///
    /// # Errors
    /// [`Failure`], as an `Error` with a `code`.
    pub async fn run(&self, join_options: JsValue, hooks: Hooks, team: Team) -> Result<JsValue, JsValue> {
        let options: JoinOptions = read(join_options)?;
        let report = self.take_part(options, Rc::new(hooks), team).await?;
        Ok(to_js(&report))
    }

    /// Pauses training after the current step; the connection stays.
    pub fn pause(&self) {
        self.control.pause();
    }

    /// Resumes training.
    pub fn resume(&self) {
        self.control.resume();
    }

    /// Leaves the run properly after the current step.
    pub fn stop(&self) {
        self.control.stop();
    }

    /// Sets whether the page is hidden.
    #[wasm_bindgen(js_name = setHidden)]
    pub fn set_hidden(&self, hidden: bool) {
        self.control.set_hidden(hidden);
    }

    /// Reconnects at once instead of at the planned time.
    pub fn reconnect(&self) {
        self.control.reconnect();
    }

    /// Sets the share of time in which the learner computes.
    ///
    /// # Errors
    /// [`Failure::Options`]: `share` is not above 0 and at most 1.
    #[wasm_bindgen(js_name = setShare)]
    pub fn set_share(&self, share: f64) -> Result<(), JsValue> {
        Ok(self.control.set_duty_cycle(share).map_err(Failure::from)?)
    }

    /// Destroys the GPU device, as a driver reset would, for tests and lessons. Returns false on the CPU.
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
            shelf: options
                .keeps
                .then(|| Rc::new(BrowserShelf { hooks: Rc::clone(&hooks) }) as Rc<dyn WeightCache>),
            takes_adapters: true,
        };
        let observe = |event: &Event| hooks.event(to_js(event));
        let first = Cell::new(true);
        let build = async |spec: &RunSpec, Basis { moments, frozen }: Basis| {
            let kept = if first.replace(false) { restore(&hooks, spec).await } else { None };
            let restored = kept.is_some();
            if let Some(frozen) = frozen {
                builder.frozen(frozen);
            }
            let engine = builder.build(spec, moments.or(kept)).await?;
            self.gpu.replace(builder.gpu().cloned());
            hooks.event(to_js(&Notice::Engine {
                engine: engine.kind().name(),
                device: builder.gpu().map_or_else(|| engine.describe(), describe),
                fallback: builder.fallback().map(told),
                restored,
            }));
            let hooks = Rc::clone(&hooks);
            let save = move |moments: &OptimiserState| {
                let vectors = moments.vectors.iter().map(|vector| Float32Array::from(&vector[..]));
                hooks.save(moments.steps as f64, vectors.collect());
            };
            let every = if engine.layout().len() > SAVED_PARAMS_MAX { 0 } else { options.save_steps };
            Ok::<_, EngineError>(Saving::new(engine, every, Box::new(save)))
        };
        Ok(run(config, &self.control, build, observe).await?)
    }
}

/// Returns a description of a GPU for people. Browsers reveal little about it.
pub(crate) fn describe(gpu: &Gpu) -> String {
    match gpu.facts().name.as_str() {
        "" => DeviceKind::Browser.describe("WebGPU"),
        name => DeviceKind::Browser.describe(&format!("WebGPU, {name}")),
    }
}

/// Opens a builder of engines of `kind`. CPU engines use `helpers`.
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

/// Returns the moments of this model that an earlier page saved. Any problem with them is ignored, so that training can
/// start.
async fn restore(hooks: &Hooks, spec: &RunSpec) -> Option<OptimiserState> {
    let params = Layout::of(&spec.model).ok()?.len();
    let kept = JsFuture::from(hooks.restore(params as f64)).await.ok()?;
    if kept.is_null() || kept.is_undefined() {
        return None;
    }
    let kept: Kept = kept.unchecked_into();
    let steps = kept.steps();
    let vectors = kept.vectors().iter().map(|vector| Float32Array::new(&vector).to_vec()).collect();
    // The engine checks whether they belong to this model and its optimiser.
    (0.0..=u32::MAX.into()).contains(&steps).then_some(OptimiserState { steps: steps as u64, vectors })
}
