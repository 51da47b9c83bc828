//! Complete state of a syncer in one safetensors file.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use archipelago_core::bytes::{from_f32s, hex, to_f32s};
use archipelago_core::diloco::syncer::SyncerRecord;
use archipelago_core::diloco::{FragmentState, RunId, Version};
use safetensors::tensor::{Dtype, SafeTensors, View};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::progress::Progress;
use crate::status::Carried;

/// Complete state for a restart.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Last row of the tape included in the snapshot.
    pub seq: u64,
    /// State of the syncer without its tensors.
    pub record: SyncerRecord,
    /// Fragments in order. With a tape, each is in its state at row `seq` or later.
    pub states: Vec<FragmentState>,
    /// Server totals over all starts.
    pub carried: Carried,
}

/// Byte tensor with all state except the fragments, as JSON. A safetensors header is limited to 100 MB, and a run may
/// have too many contributors for that.
const META: &str = "archipelago";

/// Key in `__metadata__` of the checksum of that JSON: SHA-256, in hexadecimal.
const META_SHA256: &str = "archipelago-sha256";

/// Error text for changed bytes in the fragments.
const CHANGED: &str = "its tensors do not match their checksum";

/// Buffer size in bytes for reads that only compute checksums.
const PIECE_BYTES: usize = 1 << 16;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Meta {
    seq: u64,
    record: SyncerRecord,
    versions: Vec<Version>,
    carried: Carried,
    /// SHA-256 of the tensors' bytes, ordered by fragment and then as in [`PARTS`], in hexadecimal. safetensors itself
    /// detects a short file but no changed bytes.
    sha256: String,
}

impl Meta {
    /// Parses the bytes `meta` of its tensor, and checks them against the `entries` of the header.
    fn of<'a>(
        entries: impl IntoIterator<Item = (&'a String, &'a String)>,
        meta: &[u8],
    ) -> Result<Self, String> {
        let mut entries: BTreeMap<&str, &str> =
            entries.into_iter().map(|(key, text)| (&**key, &**text)).collect();
        if entries.remove(META_SHA256) != Some(&*hex(&Sha256::digest(meta))) {
            return Err(format!("its {META} tensor does not match its checksum"));
        }
        if let Some(entry) = entries.keys().next() {
            return Err(format!("its header has an unknown entry {entry:?}"));
        }
        serde_json::from_slice(meta).map_err(|error| format!("its {META} tensor: {error}"))
    }
}

/// Header of a safetensors file.
#[derive(Deserialize)]
struct Head {
    #[serde(rename = "__metadata__")]
    metadata: Option<BTreeMap<String, String>>,
    #[serde(flatten)]
    tensors: BTreeMap<String, Place>,
}

/// Byte range of a tensor after the header.
#[derive(Clone, Copy, Deserialize)]
struct Place {
    data_offsets: [u64; 2],
}

/// Open file whose tensors are read only on demand.
struct Opened {
    file: File,
    head: Head,
    /// Offset of the tensors in bytes.
    start: u64,
}

impl Opened {
    fn open(path: &Path) -> Result<Self, String> {
        let mut file = File::open(path).map_err(text)?;
        let len = file.metadata().map_err(text)?.len();
        let mut length = [0; 8];
        file.read_exact(&mut length).map_err(text)?;
        let length = u64::from_le_bytes(length);
        if length > len {
            return Err("its header is longer than the file".into());
        }
        let head = serde_json::from_reader((&file).take(length)).map_err(|error| error.to_string())?;
        Ok(Self { file, head, start: size_of::<u64>() as u64 + length })
    }

    /// Returns a reader of the bytes of a tensor.
    fn tensor(&self, name: &str) -> Result<impl Read + use<'_>, String> {
        let place = self.head.tensors.get(name).ok_or_else(|| format!("it has no tensor {name}"))?;
        let [from, to] = place.data_offsets;
        let mut file = &self.file;
        file.seek(SeekFrom::Start(self.start.saturating_add(from))).map_err(text)?;
        Ok(file.take(to.saturating_sub(from)))
    }

    fn meta(&self) -> Result<Meta, String> {
        let mut bytes = Vec::new();
        self.tensor(META)?.read_to_end(&mut bytes).map_err(text)?;
        Meta::of(self.head.metadata.iter().flatten(), &bytes)
    }
}

fn text(error: std::io::Error) -> String {
    error.to_string()
}

/// Names of a fragment's tensors.
const PARTS: [&str; 3] = ["theta", "hat", "momentum"];

fn name(fragment: usize, part: &str) -> String {
    format!("fragment.{fragment}.{part}")
}

impl Snapshot {
    /// Returns the size of the tensors in bytes.
    pub(crate) fn tensor_bytes(&self) -> u64 {
        let values =
            self.states.iter().map(|state| state.theta.len() + state.hat.len() + state.momentum.len());
        values.map(|len| (len * size_of::<f32>()) as u64).sum()
    }

    /// Writes the file without syncing it. If `progress` is cancelled in the meantime, the file is incomplete.
    pub(super) fn write(&self, path: &Path, progress: &Progress) -> std::io::Result<()> {
        let mut sha = Sha256::new();
        let mut tensors = Vec::new();
        for (p, state) in self.states.iter().enumerate() {
            for (part, values) in PARTS.iter().zip([&state.theta, &state.hat, &state.momentum]) {
                let values = Values { shape: [values.len()], values, progress };
                // Half of the progress counts for the checksum, and half for the disk.
                sha.update(values.data());
                if progress.check().is_err() {
                    return Ok(());
                }
                tensors.push((name(p, part), Kept::Values(values)));
            }
        }
        let meta = Meta {
            seq: self.seq,
            record: self.record.clone(),
            versions: self.states.iter().map(|state| state.version).collect(),
            carried: self.carried.clone(),
            sha256: hex(&sha.finalize()),
        };
        let meta = serde_json::to_vec(&meta).expect("plain data");
        let sha256 = hex(&Sha256::digest(&meta));
        tensors.push((META.to_owned(), Kept::Bytes { shape: [meta.len()], bytes: &meta }));
        let entries = [(META_SHA256.to_owned(), sha256)].into_iter().collect();
        safetensors::serialize_to_file(tensors, Some(entries), path).map_err(std::io::Error::other)
    }

    /// Reads the run and the last row of the tape from a snapshot file, without its tensors. The error describes the
    /// fault.
    pub(crate) fn peek(path: &Path) -> Result<(RunId, u64), String> {
        let meta = Opened::open(path)?.meta()?;
        Ok((meta.record.run, meta.seq))
    }

    /// Checks a whole file against its checksums without keeping it. Returns its run, or a description of the fault.
    pub(super) fn check(path: &Path) -> Result<RunId, String> {
        let opened = Opened::open(path)?;
        let meta = opened.meta()?;
        let mut sha = Sha256::new();
        let mut piece = vec![0; PIECE_BYTES];
        for p in 0..meta.versions.len() {
            for part in PARTS {
                let mut tensor = opened.tensor(&name(p, part))?;
                loop {
                    match tensor.read(&mut piece).map_err(text)? {
                        0 => break,
                        len => sha.update(&piece[..len]),
                    }
                }
            }
        }
        if hex(&sha.finalize()) == meta.sha256 { Ok(meta.record.run) } else { Err(CHANGED.into()) }
    }

    /// Reads and checks a file. The error describes the fault.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let bytes = fs::read(path).map_err(|error| error.to_string())?;
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|error| error.to_string())?;
        let tensors = SafeTensors::deserialize(&bytes).map_err(|error| error.to_string())?;
        let meta = tensors.tensor(META).map_err(|error| format!("{META}: {error}"))?;
        let meta = Meta::of(header.metadata().iter().flatten(), meta.data())?;
        let Meta { seq, record, versions, carried, sha256 } = meta;
        let mut sha = Sha256::new();
        let mut states = Vec::new();
        for (p, version) in versions.into_iter().enumerate() {
            let mut read = |part: &str| {
                let name = name(p, part);
                let tensor = tensors.tensor(&name).map_err(|error| format!("{name}: {error}"))?;
                if tensor.dtype() != Dtype::F32 {
                    return Err(format!("{name} is not f32"));
                }
                sha.update(tensor.data());
                Ok(to_f32s(tensor.data()))
            };
            let [theta, hat, momentum] = [read(PARTS[0])?, read(PARTS[1])?, read(PARTS[2])?].map(Arc::new);
            states.push(FragmentState { version, theta, hat, momentum });
        }
        if hex(&sha.finalize()) != sha256 {
            return Err(CHANGED.into());
        }
        Ok(Self { seq, record, states, carried })
    }
}

/// Content of one tensor in the file.
enum Kept<'a> {
    Values(Values<'a>),
    Bytes { shape: [usize; 1], bytes: &'a [u8] },
}

impl View for Kept<'_> {
    fn dtype(&self) -> Dtype {
        match self {
            Self::Values(values) => values.dtype(),
            Self::Bytes { .. } => Dtype::U8,
        }
    }

    fn shape(&self) -> &[usize] {
        match self {
            Self::Values(values) => values.shape(),
            Self::Bytes { shape, .. } => shape,
        }
    }

    fn data(&self) -> Cow<'_, [u8]> {
        match self {
            Self::Values(values) => values.data(),
            Self::Bytes { bytes, .. } => (*bytes).into(),
        }
    }

    fn data_len(&self) -> usize {
        match self {
            Self::Values(values) => values.data_len(),
            Self::Bytes { bytes, .. } => bytes.len(),
        }
    }
}

/// Little-endian `f32` values of one tensor.
pub(crate) struct Values<'a> {
    /// The tensor's shape; its product is the number of values.
    pub shape: [usize; 1],
    /// The values.
    pub values: &'a [f32],
    /// Progress of the file. Each byte is requested twice.
    pub progress: &'a Progress,
}

impl View for Values<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        // A cancelled file is thrown away, so its bytes do not matter.
        match self.progress.add(self.data_len() as u64 / 2) {
            Ok(()) => from_f32s(self.values).into(),
            Err(_) => Cow::default(),
        }
    }

    fn data_len(&self) -> usize {
        size_of_val(self.values)
    }
}
