//! Key of a learner, which is its identity.

use std::fmt;

use ed25519_dalek::{Signer as _, SigningKey};
use futures::future::{LocalBoxFuture, ready};

use archipelago_core::wire::{Identity, Signature};
use archipelago_runtime::platform::{RandomError, random_bytes};

/// Signs with the key of a learner. The secret may be inaccessible to this program, as with keys in browsers.
pub trait Signer: fmt::Debug {
    /// Returns the public key, which identifies the learner.
    fn identity(&self) -> Identity;

    /// Returns the Ed25519 signature of `text`.
    ///
    /// # Errors
    /// [`SignError`]: the key did not sign.
    fn sign<'a>(&'a self, text: &'a [u8]) -> LocalBoxFuture<'a, Result<Signature, SignError>>;
}

/// Failure to sign with the learner's key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the learner's key could not sign: {reason}; reload, or begin with a new one")]
pub struct SignError {
    /// Cause of the failure.
    pub reason: String,
}

/// Key in the memory of this program. Its `Debug` form shows only the public key.
#[derive(Clone)]
pub struct Key(SigningKey);

impl Key {
    /// Length of the secret, in bytes.
    pub const SECRET_BYTES: usize = 32;

    /// Returns the key with `secret`, the 32 bytes of RFC 8032. All values are valid.
    #[must_use]
    pub fn from_secret(secret: &[u8; Self::SECRET_BYTES]) -> Self {
        Self(SigningKey::from_bytes(secret))
    }

    /// Returns a new random key.
    ///
    /// # Errors
    /// [`RandomError`]: the operating system or browser provides no random bytes.
    pub fn random() -> Result<Self, RandomError> {
        Ok(Self::from_secret(&random_bytes()?))
    }

    /// Returns the secret, for storage.
    #[must_use]
    pub fn secret(&self) -> [u8; Self::SECRET_BYTES] {
        self.0.to_bytes()
    }

    /// Returns the signature of `text`.
    #[must_use]
    pub fn signature(&self, text: &[u8]) -> Signature {
        Signature(self.0.sign(text).to_bytes())
    }
}

impl Signer for Key {
    fn identity(&self) -> Identity {
        Identity(self.0.verifying_key().to_bytes())
    }

    fn sign<'a>(&'a self, text: &'a [u8]) -> LocalBoxFuture<'a, Result<Signature, SignError>> {
        Box::pin(ready(Ok(self.signature(text))))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({:?})", self.identity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8032, section 7.1, test 3.
    #[test]
    fn signs_as_the_standard_says() {
        let bytes = |hex: &str| -> Vec<u8> {
            (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
        };
        let secret = bytes("c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7");
        let key = Key::from_secret(&secret.try_into().unwrap());
        let public = bytes("fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025");
        assert_eq!(key.identity().0[..], public);
        let signature = bytes(
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac\
             18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
        );
        assert_eq!(key.signature(&[0xaf, 0x82]).0[..], signature);
    }

    #[test]
    fn a_key_comes_back_from_its_secret_and_never_shows_it() {
        let key = Key::random().unwrap();
        assert_eq!(Key::from_secret(&key.secret()).identity(), key.identity());
        assert_ne!(Key::random().unwrap().identity(), key.identity());
        let shown = format!("{key:?}");
        assert!(shown.starts_with("Key(Identity(") && shown.len() < 40, "{shown}");
    }
}
