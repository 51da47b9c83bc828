//! Browser storage for the frozen weights of a run.

use std::fmt;
use std::rc::Rc;

use archipelago::run::{ShelfError, WeightCache};
use futures::future::LocalBoxFuture;
use js_sys::{Promise, Uint8Array};
use wasm_bindgen::JsValue;
use wasm_bindgen_futures::JsFuture;

use crate::hooks::Hooks;

/// Storage behind `hooks`, which limits its own size.
pub(crate) struct BrowserShelf {
    pub(crate) hooks: Rc<Hooks>,
}

impl WeightCache for BrowserShelf {
    /// Returns true. A browser shows its free space only when data is stored.
    fn has_room(&self, _bytes: u64) -> bool {
        true
    }

    fn take<'a>(&'a self, name: &'a str) -> LocalBoxFuture<'a, Result<Option<Vec<u8>>, ShelfError>> {
        Box::pin(async move {
            let kept = settled(self.hooks.take_kept(name)).await?;
            Ok((!kept.is_undefined()).then(|| Uint8Array::new(&kept).to_vec()))
        })
    }

    fn keep<'a>(&'a self, name: &'a str, bytes: &'a [u8]) -> LocalBoxFuture<'a, Result<(), ShelfError>> {
        Box::pin(async move { settled(self.hooks.keep(name, Uint8Array::from(bytes))).await.map(drop) })
    }
}

async fn settled(promise: Promise) -> Result<JsValue, ShelfError> {
    JsFuture::from(promise).await.map_err(|error| {
        let message = js_sys::Reflect::get(&error, &"message".into()).ok().and_then(|text| text.as_string());
        ShelfError { reason: format!("the browser's storage failed: {}", message.unwrap_or_default()) }
    })
}

impl fmt::Debug for BrowserShelf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BrowserShelf")
    }
}
