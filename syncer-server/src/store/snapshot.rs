//! Snapshots: the complete state of a syncer in one safetensors file.

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
use crate::status::RunStatistics;

/// Complete state of a syncer, from which it can restart.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Number of the last decision in the snapshot.
    pub seq: u64,
    /// State of the syncer, without the parameters.
    pub record: SyncerRecord,
    /// States of the fragments, in order. If the run has a tape, each may be newer than decision `seq`.
    pub states: Vec<FragmentState>,
    /// Statistics of the server over all its starts.
    pub statistics: RunStatistics,
}

/// Name of the byte tensor with everything except the fragments, as JSON. It is not in the safetensors header, which is
/// limited to 100 MB and might be too small for the learners of a run.
const META: &str = "archipelago";

/// Key in `__metadata__` for the SHA-256 of that JSON, in hexadecimal.
const META_SHA256: &str = "archipelago-sha256";

/// Error text for tensors that do not match their checksum.
const CHANGED: &str = "its tensors do not match their checksum";

/// Buffer size for reads that only compute checksums, in bytes.
const PIECE_BYTES: usize = 1 << 16;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Meta {
    seq: u64,
    record: SyncerRecord,
    versions: Vec<Version>,
    #[serde(rename = "carried")]
    statistics: RunStatistics,
    /// SHA-256 of the tensors' bytes, by fragment and then in the order of [`PARTS`], in hexadecimal. safetensors
    /// itself detects truncated files, but not changed bytes.
    sha256: String,
}

impl Meta {
    /// Parses `meta`, the content of the [`META`] tensor, and checks it against the `entries` of the header.
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
struct Header {
    #[serde(rename = "__metadata__")]
    metadata: Option<BTreeMap<String, String>>,
    #[serde(flatten)]
    tensors: BTreeMap<String, TensorRange>,
}

/// Location of a tensor: its byte range after the header.
#[derive(Clone, Copy, Deserialize)]
struct TensorRange {
    data_offsets: [u64; 2],
}

/// An open snapshot file, whose tensors are read only on demand.
struct Opened {
    file: File,
    head: Header,
    /// Offset of the first tensor byte in the file.
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

    /// Returns a reader of one tensor's bytes.
    fn tensor(&self, name: &str) -> Result<impl Read + use<'_>, String> {
        let range = self.head.tensors.get(name).ok_or_else(|| format!("it has no tensor {name}"))?;
        let [from, to] = range.data_offsets;
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

/// Name suffixes of the three tensors of a fragment.
const PARTS: [&str; 3] = ["theta", "hat", "momentum"];

fn name(fragment: usize, part: &str) -> String {
    format!("fragment.{fragment}.{part}")
}

impl Snapshot {
    /// Returns the total size of the fragments' tensors, in bytes.
    pub(crate) fn tensor_bytes(&self) -> u64 {
        let values =
            self.states.iter().map(|state| state.theta.len() + state.hat.len() + state.momentum.len());
        values.map(|len| (len * size_of::<f32>()) as u64).sum()
    }

    /// Writes the snapshot to `path` without syncing it. If `progress` is cancelled meanwhile, the file is incomplete.
    pub(super) fn write(&self, path: &Path, progress: &Progress) -> std::io::Result<()> {
        let mut sha = Sha256::new();
        let mut tensors = Vec::new();
        for (p, state) in self.states.iter().enumerate() {
            for (part, values) in PARTS.iter().zip([&state.theta, &state.hat, &state.momentum]) {
                let values = Values { shape: [values.len()], values, progress };
                // The checksum accounts for half of the progress, and the disk for the other half.
                sha.update(values.data());
                if progress.check().is_err() {
                    return Ok(());
                }
                tensors.push((name(p, part), TensorContent::Values(values)));
            }
        }
        let meta = Meta {
            seq: self.seq,
            record: self.record.clone(),
            versions: self.states.iter().map(|state| state.version).collect(),
            statistics: self.statistics.clone(),
            sha256: hex(&sha.finalize()),
        };
        let meta = serde_json::to_vec(&meta).expect("plain data");
        let sha256 = hex(&Sha256::digest(&meta));
        tensors.push((META.to_owned(), TensorContent::Bytes { shape: [meta.len()], bytes: &meta }));
        let entries = [(META_SHA256.to_owned(), sha256)].into_iter().collect();
        safetensors::serialize_to_file(tensors, Some(entries), path).map_err(std::io::Error::other)
    }

    /// Reads only the run and the number of the last decision from a snapshot file. The error describes the fault.
    pub(crate) fn read_header(path: &Path) -> Result<(RunId, u64), String> {
        let meta = Opened::open(path)?.meta()?;
        Ok((meta.record.run, meta.seq))
    }

    /// Checks a whole snapshot file against its checksums. Returns its run. The error describes the fault.
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

    /// Reads and checks a snapshot file. The error describes the fault.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let bytes = fs::read(path).map_err(|error| error.to_string())?;
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|error| error.to_string())?;
        let tensors = SafeTensors::deserialize(&bytes).map_err(|error| error.to_string())?;
        let meta = tensors.tensor(META).map_err(|error| format!("{META}: {error}"))?;
        let meta = Meta::of(header.metadata().iter().flatten(), meta.data())?;
        let Meta { seq, record, versions, statistics, sha256 } = meta;
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
        Ok(Self { seq, record, states, statistics })
    }
}

/// Content of one tensor to write.
enum TensorContent<'a> {
    Values(Values<'a>),
    Bytes { shape: [usize; 1], bytes: &'a [u8] },
}

impl View for TensorContent<'_> {
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

/// The `f32` values of one tensor to write.
pub(crate) struct Values<'a> {
    /// Shape of the tensor: the number of values.
    pub shape: [usize; 1],
    /// The values.
    pub values: &'a [f32],
    /// Progress of the file. safetensors requests each byte once, and the checksum once.
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
        // A cancelled file is removed, so its content does not matter.
        match self.progress.add(self.data_len() as u64 / 2) {
            Ok(()) => from_f32s(self.values).into(),
            Err(_) => Cow::default(),
        }
    }

    fn data_len(&self) -> usize {
        size_of_val(self.values)
    }
}
