//! Initial parameters of a run.

use archipelago_core::bytes::{from_f32s, hex};
use archipelago_core::model;
use sha2::{Digest, Sha256};

use super::{Initial, Manifest, Store, disk, or_remove, publish, temporary};
use crate::errors::ServerError;
use crate::llama::{Precision, Tensors, write_tensors};

/// File of initial parameters that do not follow from the seed.
const FILE: &str = "initial.safetensors";

impl Initial {
    /// Returns the SHA-256 of the parameters `theta`, `[len]`, in the form of [`Self::sha256`].
    #[must_use]
    pub fn digest(theta: &[f32]) -> String {
        let mut sha = Sha256::new();
        for piece in theta.chunks(1 << 18) {
            sha.update(from_f32s(piece));
        }
        hex(&sha.finalize())
    }
}

impl Store {
    /// Returns the initial parameters of the run of `manifest`, flat: the stored ones, or those that follow from its
    /// seed.
    ///
    /// # Errors
    /// - `DirCorrupt`: the stored parameters are missing, or are not those that the run began with.
    /// - `Internal`: the run has no model.
    pub fn initial(&self, manifest: &Manifest) -> Result<Vec<f32>, ServerError> {
        let Some(initial) = &manifest.init else {
            let none = || ServerError::Internal {
                what: "a run with a model of its own has no stored parameters".into(),
            };
            let theta = model::init(&manifest.decoder()?.ok_or_else(none)?, manifest.spec.seed);
            return theta.map_err(|error| ServerError::Internal { what: error.to_string() });
        };
        let corrupt = |why: String| ServerError::DirCorrupt {
            path: self.dir.join(FILE),
            why: format!("{why}: restore the file from a copy of the folder, or give --dir another one"),
        };
        let layout = manifest.layout()?;
        let read = Tensors::open(&self.dir, vec![FILE.to_owned()]).and_then(|tensors| tensors.read(&layout));
        let theta = read.map_err(|error| corrupt(error.to_string()))?;
        match Initial::digest(&theta) == initial.sha256 {
            true => Ok(theta),
            false => Err(corrupt("these are not the run's initial parameters".into())),
        }
    }

    /// Stores `theta`, `[len]`, if it does not follow from the seed of `manifest`.
    pub(super) fn keep_initial(&self, manifest: &Manifest, theta: &[f32]) -> Result<(), ServerError> {
        if manifest.init.is_none() {
            return Ok(());
        }
        let layout = manifest.layout()?;
        let path = self.dir.join(FILE);
        let partial = temporary::partial(&path);
        let written =
            write_tensors(&partial, &layout, theta, Precision::F32).map_err(disk("write", &partial));
        or_remove(written.and_then(|()| publish(&partial, &path)), &partial)
    }
}
