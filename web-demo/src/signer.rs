//! A key that the browser holds. Its secret cannot be read, but it signs on request.

use std::fmt;
use std::rc::Rc;

use archipelago::run::{SignError, Signer};
use archipelago_core::wire::{Identity, Signature};
use futures::future::LocalBoxFuture;
use js_sys::Uint8Array;
use wasm_bindgen::JsCast;
use wasm_bindgen_futures::JsFuture;

use crate::hooks::Hooks;

/// Key whose public half is `identity`.
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
