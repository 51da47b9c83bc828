//! Text generation in a Worker with the run's model.

use archipelago::run::Address;
use archipelago_core::diloco::{FragmentId, Fragments, binary16};
use archipelago_core::model::{ModelSpec, layout};
use archipelago_runtime::engine::cpu;
use serde::Serialize;
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;

use crate::Failure;
use crate::options::{read, to_js};

/// Base address of a syncer and invite, for code that fetches from the syncer.
#[derive(Serialize)]
struct SyncerLocation {
    /// Base address of the syncer's routes, with a final slash.
    base: String,
    /// Invite in the link, if there is one.
    invite: Option<String>,
}

/// Parses `link` as learners do, and returns the base address of its syncer and its invite.
///
/// # Errors
/// [`Failure::Options`]: `link` is not the address of a syncer.
#[wasm_bindgen(js_name = placeOf, unchecked_return_type = "{ base: string; invite: string | null }")]
pub fn place_of(link: &str) -> Result<JsValue, JsValue> {
    let address: Address = link.parse().map_err(Failure::from)?;
    let invite = address.invite().map(|invite| invite.expose().to_owned());
    Ok(to_js(&SyncerLocation { base: address.http_url("/"), invite }))
}

/// Text generator with parameters that the caller loads.
#[wasm_bindgen(js_name = Writer)]
pub struct TextGenerator {
    fragments: Fragments,
    inner: cpu::Writer<Vec<f32>>,
}

#[wasm_bindgen(js_class = Writer)]
impl TextGenerator {
    /// Creates a generator for a run that exchanges `model` in `fragments` fragments. The parameters are 0 until each
    /// fragment is loaded.
    ///
    /// # Errors
    /// [`Failure::Options`]: there are no fragments, or `model` cannot be read. [`Failure::Engine`]: the model is
    /// invalid.
    #[wasm_bindgen(constructor)]
    pub fn new(model: JsValue, fragments: u16) -> Result<Self, JsValue> {
        let model: ModelSpec = read(model)?;
        let count = fragments.try_into();
        let count = count.map_err(|_| Failure::Options("a run has at least one fragment".into()))?;
        let layout = layout(&model).map_err(|error| Failure::Engine(error.into()))?;
        let inner = cpu::Writer::new(&model, vec![0.0; layout.len()]).map_err(Failure::Engine)?;
        Ok(Self { fragments: Fragments::plan(&layout, count), inner })
    }

    /// Loads the parameters of a fragment: 16-bit floats, little-endian. Discards the current text.
    ///
    /// # Errors
    /// [`Failure::Options`]: there is no such fragment, or `body` has another length.
    pub fn load(&mut self, fragment: u16, body: &[u8]) -> Result<(), JsValue> {
        let id = FragmentId(fragment);
        let expected = self.fragments.segments(id).map(|_| self.fragments.len(id) * binary16::BYTES);
        if expected != Some(body.len()) {
            let found = body.len();
            let why = format!("fragment {fragment} has {found} bytes: fetch it again completely");
            return Err(Failure::Options(why).into());
        }
        self.fragments.scatter(id, &binary16::from_bytes(body), self.inner.params_mut());
        Ok(())
    }

    /// Begins a text with `prompt`. The model reads only the last tokens of it that fit its context.
    ///
    /// # Errors
    /// [`Failure::Engine`]: the prompt is empty or has a token outside the vocabulary.
    pub fn begin(&mut self, prompt: &[u32], temperature: f32, seed: u32) -> Result<(), JsValue> {
        Ok(self.inner.begin(prompt, temperature, seed.into()).map_err(Failure::Engine)?)
    }

    /// Returns the next token, or `None` if no text was begun.
    #[wasm_bindgen(js_name = next)]
    pub fn write(&mut self) -> Option<u32> {
        self.inner.next()
    }
}
