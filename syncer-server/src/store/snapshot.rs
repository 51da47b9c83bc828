//! A whole syncer in one safetensors file.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use archipelago_core::bytes::{from_f32s, hex, to_f32s};
use archipelago_core::diloco::syncer::SyncerRecord;
use archipelago_core::diloco::{FragmentState, RunId, Version, halves};
use safetensors::tensor::{Dtype, SafeTensors, View};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::status::Carried;

/// Everything that a restart needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The last row of the tape that is in it.
    pub seq: u64,
    /// The syncer without its tensors.
    pub record: SyncerRecord,
    /// The fragments, in order; with a tape, each as it was then or later.
    pub states: Vec<FragmentState>,
    /// What the server adds up over all its starts.
    pub carried: Carried,
}

/// The `__metadata__` entry that holds all but the tensors; safetensors knows only texts there.
const META: &str = "archipelago";

/// The `__metadata__` entry with the checksum of that text: SHA-256, in hexadecimal. Snapshots of former versions have
/// none.
const META_SHA256: &str = "archipelago-sha256";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Meta {
    /// Snapshots of before there was a tape have none.
    #[serde(default)]
    seq: u64,
    record: SyncerRecord,
    versions: Vec<Version>,
    carried: Carried,
    /// SHA-256 of the tensors' bytes in the order of [`PARTS`] within fragments, in hexadecimal:
    /// safetensors itself notices a short file, not a changed one.
    sha256: String,
}

impl Meta {
    /// Reads the texts of the header.
    fn of<'a>(entries: impl IntoIterator<Item = (&'a String, &'a String)>) -> Result<Self, String> {
        let mut entries: BTreeMap<&str, &str> =
            entries.into_iter().map(|(key, text)| (&**key, &**text)).collect();
        let meta = entries.remove(META).ok_or_else(|| format!("no {META} entry in its header"))?;
        if entries.remove(META_SHA256).is_some_and(|sha256| sha256 != hex(&Sha256::digest(meta))) {
            return Err(format!("its {META} entry does not match its checksum"));
        }
        if let Some(entry) = entries.keys().next() {
            return Err(format!("nobody wrote the entry {entry:?} of its header"));
        }
        serde_json::from_str(meta).map_err(|error| format!("its {META} entry: {error}"))
    }
}

/// What a file of safetensors begins with, but for its tensors.
#[derive(Deserialize)]
struct Head {
    #[serde(rename = "__metadata__")]
    metadata: Option<BTreeMap<String, String>>,
}

/// The tensors of a fragment.
const PARTS: [&str; 3] = ["theta", "hat", "momentum"];

impl Snapshot {
    /// Writes the file, unsynced.
    pub(super) fn write(&self, path: &Path) -> std::io::Result<()> {
        let mut sha = Sha256::new();
        let mut tensors = Vec::new();
        for (p, state) in self.states.iter().enumerate() {
            for (part, values) in PARTS.iter().zip([&state.theta, &state.hat, &state.momentum]) {
                let values = Values { shape: [values.len()], values };
                sha.update(values.data());
                tensors.push((format!("fragment.{p}.{part}"), values));
            }
        }
        let meta = Meta {
            seq: self.seq,
            record: self.record.clone(),
            versions: self.states.iter().map(|state| state.version).collect(),
            carried: self.carried.clone(),
            sha256: hex(&sha.finalize()),
        };
        let meta = serde_json::to_string(&meta).expect("plain data");
        let sha256 = hex(&Sha256::digest(&meta));
        let meta = [(META.to_owned(), meta), (META_SHA256.to_owned(), sha256)].into_iter().collect();
        safetensors::serialize_to_file(tensors, Some(meta), path).map_err(std::io::Error::other)
    }

    /// The run of the snapshot in a file and the last row of the tape that is in it, without its tensors; the error
    /// says what is wrong.
    pub(crate) fn peek(path: &Path) -> Result<(RunId, u64), String> {
        let text = |error: std::io::Error| error.to_string();
        let mut file = File::open(path).map_err(text)?;
        let len = file.metadata().map_err(text)?.len();
        let mut length = [0; 8];
        file.read_exact(&mut length).map_err(text)?;
        let length = u64::from_le_bytes(length);
        if length > len {
            return Err("its header is longer than the file".into());
        }
        let head: Head = serde_json::from_reader(file.take(length)).map_err(|error| error.to_string())?;
        let meta = Meta::of(head.metadata.iter().flatten())?;
        Ok((meta.record.run, meta.seq))
    }

    /// Reads and checks a file; the error says what is wrong with it.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let bytes = fs::read(path).map_err(|error| error.to_string())?;
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|error| error.to_string())?;
        let Meta { seq, record, versions, carried, sha256 } = Meta::of(header.metadata().iter().flatten())?;

        let tensors = SafeTensors::deserialize(&bytes).map_err(|error| error.to_string())?;
        let mut sha = Sha256::new();
        let mut states = Vec::new();
        for (p, version) in versions.into_iter().enumerate() {
            let mut read = |part: &str| {
                let name = format!("fragment.{p}.{part}");
                let tensor = tensors.tensor(&name).map_err(|error| format!("{name}: {error}"))?;
                if tensor.dtype() != Dtype::F32 {
                    return Err(format!("{name} is not f32"));
                }
                sha.update(tensor.data());
                Ok(to_f32s(tensor.data()))
            };
            let [theta, mut hat, momentum] = [read(PARTS[0])?, read(PARTS[1])?, read(PARTS[2])?];
            // Snapshots of former versions hold one that does not fit in 16 bits.
            halves::round(&mut hat);
            let [theta, hat, momentum] = [theta, hat, momentum].map(Arc::new);
            states.push(FragmentState { version, theta, hat, momentum });
        }
        if hex(&sha.finalize()) != sha256 {
            return Err("its tensors do not match their checksum".into());
        }
        Ok(Self { seq, record, states, carried })
    }
}

/// Little-endian `f32` values of one tensor.
pub(crate) struct Values<'a> {
    /// The tensor's shape; its product is the number of values.
    pub shape: [usize; 1],
    /// The values.
    pub values: &'a [f32],
}

impl View for Values<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        from_f32s(self.values).into()
    }

    fn data_len(&self) -> usize {
        size_of_val(self.values)
    }
}
