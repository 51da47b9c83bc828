//! Storage of a run's frozen weights.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use archipelago_core::model::{FrozenWeights, ModelSpec, add_adapters};
use archipelago_core::wire::RunSpec;

use super::{Store, decoder, disk, is_there, write_file};
use crate::errors::ServerError;

/// File with the frozen weights. `run.json` has the checksum of each of their parts.
const FILE: &str = "frozen.bin";

impl Store {
    /// Returns the path of the file with the frozen weights.
    #[must_use]
    pub fn frozen_path(&self) -> PathBuf {
        self.dir.join(FILE)
    }

    /// Stores `weights`, unless the file already holds the weights that `spec` describes.
    ///
    /// # Errors
    /// `Disk`: the file cannot be written.
    pub fn keep_frozen(&self, spec: &RunSpec, weights: &FrozenWeights) -> Result<(), ServerError> {
        if self.frozen(spec).is_ok_and(|kept| kept.is_some()) {
            return Ok(());
        }
        write_file(&self.frozen_path(), weights.bytes())
    }

    /// Stores `read`, weights that the caller has read, and returns them. Without `read`, returns the stored weights. A
    /// new run calls this before it writes `run.json`, because adapters are useless without these weights.
    ///
    /// # Errors
    /// Those of [`Self::frozen`] and [`Self::keep_frozen`].
    pub fn frozen_or(
        &self,
        spec: &RunSpec,
        read: Option<Arc<FrozenWeights>>,
    ) -> Result<Option<Arc<FrozenWeights>>, ServerError> {
        let Some(read) = read else { return Ok(self.frozen(spec)?.map(Arc::new)) };
        self.keep_frozen(spec, &read)?;
        Ok(Some(read))
    }

    /// Loads the frozen weights of a run with `spec`. Returns `None` if the run trains all weights.
    ///
    /// # Errors
    /// - `Disk`: the file cannot be read.
    /// - `DirCorrupt`: the file is missing, or its weights do not match `spec`.
    /// - `Internal`: `spec` has no valid decoder.
    pub fn frozen(&self, spec: &RunSpec) -> Result<Option<FrozenWeights>, ServerError> {
        let Some(said) = &spec.frozen else { return Ok(None) };
        let path = self.frozen_path();
        let corrupt = |why: String| ServerError::DirCorrupt {
            path: path.clone(),
            why: format!(
                "{why}: restore the file from a copy of the folder, or give --init the same model again"
            ),
        };
        if !is_there(&path)? {
            return Err(corrupt("it is missing, but the run's adapters need its weights".into()));
        }
        let bytes = fs::read(&path).map_err(disk("read", &path))?;
        if bytes.len() as u64 != said.bytes {
            return Err(corrupt(format!("it has {} bytes instead of {}", bytes.len(), said.bytes)));
        }
        let parts = bytes.chunks(said.part_bytes.max(1) as usize);
        if let Some((part, _)) = (0..).zip(parts).find(|(part, bytes)| !said.is_part(*part, bytes)) {
            return Err(corrupt(format!(
                "it is damaged: part {part} does not match its checksum in run.json"
            )));
        }
        let no_model = |error: &dyn std::fmt::Display| ServerError::Internal {
            what: format!("the run's frozen weights cannot be used: {error}"),
        };
        let decoder = decoder(&spec.model)?.ok_or_else(|| no_model(&"it is not a decoder"))?;
        FrozenWeights::from_bytes(&decoder, said.form, bytes).map(Some).map_err(|error| no_model(&error))
    }

    /// Returns all weights of a run with `spec`, in the layout of [`ModelSpec::base`]. The model is `decoder`, and
    /// `theta` are its trained parameters. If the run trains adapters, they are merged into the frozen weights;
    /// otherwise all weights are `theta`.
    ///
    /// # Errors
    /// - Those of [`Self::frozen`].
    /// - `Internal`: `theta` does not fit the model.
    pub fn whole(
        &self,
        spec: &RunSpec,
        decoder: &ModelSpec,
        theta: Vec<f32>,
    ) -> Result<Vec<f32>, ServerError> {
        let Some(frozen) = self.frozen(spec)? else { return Ok(theta) };
        let mut whole = vec![0.0; frozen.layout().len()];
        frozen.read(0..whole.len(), &mut whole);
        let added = add_adapters(decoder, &mut whole, &theta);
        added.map(|()| whole).map_err(|error| ServerError::Internal {
            what: format!("the run's adapters do not fit its weights: {error}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use archipelago_core::model::{FrozenForm, LoraSpec, LoraTargets, Preset, init};
    use archipelago_core::wire::{DataSpec, Frozen};

    use super::*;
    use crate::config::{ServeConfig, run_spec};

    /// Returns a run with adapters on a small model, and its frozen weights in parts of 64 KiB.
    fn run(form: FrozenForm) -> (RunSpec, FrozenWeights) {
        let lora = Some(LoraSpec { rank: 2, alpha: 4.0, targets: LoraTargets::ALL });
        let model = ModelSpec { lora, ..Preset::Tiny.model(256) };
        let weights = FrozenWeights::quantised(&model, &init(&model.base(), 1).unwrap(), form).unwrap();
        let data = DataSpec { token_bytes: 2, masks: false, shards: vec![] };
        let mut spec = run_spec(&ServeConfig::default(), model.into(), data).unwrap();
        let sha256 = weights.bytes().chunks(1 << 16).flat_map(|part| Frozen::of(form, part).sha256).collect();
        spec.frozen = Some(Frozen { form, bytes: weights.bytes().len() as u64, part_bytes: 1 << 16, sha256 });
        (spec, weights)
    }

    #[test]
    fn weights_come_back_whole() {
        for form in FrozenForm::ALL {
            let (spec, weights) = run(form);
            let dir = tempfile::tempdir().unwrap();
            let store = Store::open(dir.path()).unwrap();
            store.keep_frozen(&spec, &weights).unwrap();
            assert_eq!(store.frozen(&spec).unwrap().as_ref(), Some(&weights));
            let said = spec.frozen.clone().unwrap();
            assert!(said.parts() > 1);
            assert_eq!(store.frozen(&RunSpec { frozen: None, ..spec }).unwrap(), None);
        }
    }

    #[test]
    fn damaged_or_missing_weights_are_reported() {
        let (spec, weights) = run(FrozenForm::F16);
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let check = |part: &str| {
            let error = store.frozen(&spec).unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
            assert!(error.to_string().contains("frozen.bin"), "{error}");
        };
        check("it is missing");
        let mut bytes = weights.bytes().to_vec();
        bytes[70_000] ^= 1;
        fs::write(store.frozen_path(), &bytes).unwrap();
        check("part 1 does not match its checksum");
        fs::write(store.frozen_path(), &bytes[..500]).unwrap();
        check("500 bytes instead of");
        // A start that has the weights replaces the file.
        store.keep_frozen(&spec, &weights).unwrap();
        assert_eq!(store.frozen(&spec).unwrap(), Some(weights));
    }
}
