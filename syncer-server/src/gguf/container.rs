//! Layout of a GGUF file: header, metadata, descriptions of tensors, and their data.

use std::io::{BufWriter, Write};

use super::tensors::GgufTensor;

/// First bytes of a file.
const MAGIC: &[u8] = b"GGUF";

/// Version of the format.
const VERSION: u32 = 3;

/// Alignment of each tensor's data, the default of the format.
const ALIGNMENT: u64 = 32;

/// Value of a metadata entry.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A whole number.
    U32(u32),
    /// A number.
    F32(f32),
    /// True or false.
    Bool(bool),
    /// A text.
    Text(String),
    /// A list of whole numbers.
    Numbers(Vec<i32>),
    /// A list of texts.
    Texts(Vec<String>),
}

impl Value {
    /// Number of the type of lists.
    const LIST: u32 = 9;

    /// Returns the format's number of the type of this value, or of its elements.
    fn kind(&self) -> u32 {
        match self {
            Self::U32(_) => 4,
            Self::Numbers(_) => 5,
            Self::F32(_) => 6,
            Self::Bool(_) => 7,
            Self::Text(_) | Self::Texts(_) => 8,
        }
    }

    /// Appends the type and the value.
    fn encode(&self, out: &mut Vec<u8>) {
        let mut list = |len: usize| {
            out.extend(Self::LIST.to_le_bytes());
            out.extend(self.kind().to_le_bytes());
            out.extend((len as u64).to_le_bytes());
        };
        match self {
            Self::Numbers(values) => {
                list(values.len());
                out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
                return;
            }
            Self::Texts(values) => {
                list(values.len());
                values.iter().for_each(|value| text(value, out));
                return;
            }
            _ => out.extend(self.kind().to_le_bytes()),
        }
        match self {
            Self::U32(value) => out.extend(value.to_le_bytes()),
            Self::F32(value) => out.extend(value.to_le_bytes()),
            Self::Bool(value) => out.push((*value).into()),
            Self::Text(value) => text(value, out),
            Self::Numbers(_) | Self::Texts(_) => {}
        }
    }
}

/// Appends a text: its length in bytes, and its bytes.
fn text(value: &str, out: &mut Vec<u8>) {
    out.extend((value.len() as u64).to_le_bytes());
    out.extend(value.as_bytes());
}

/// Returns the number of zero bytes that follow `bytes` bytes up to the next aligned place.
fn padding(bytes: u64) -> usize {
    (bytes.next_multiple_of(ALIGNMENT) - bytes) as usize
}

/// Writes a file with these entries and tensors, row by row.
///
/// # Errors
/// The operating system's error.
pub(super) fn write(
    file: impl Write,
    metadata: &[(String, Value)],
    tensors: &[GgufTensor<'_>],
) -> std::io::Result<()> {
    let mut header = MAGIC.to_vec();
    header.extend(VERSION.to_le_bytes());
    header.extend((tensors.len() as u64).to_le_bytes());
    header.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        text(key, &mut header);
        value.encode(&mut header);
    }
    let mut offset = 0_u64;
    for tensor in tensors {
        text(&tensor.name, &mut header);
        header.extend((tensor.dims.len() as u32).to_le_bytes());
        header.extend(tensor.dims.iter().flat_map(|size| size.to_le_bytes()));
        header.extend(tensor.kind.ggml_type().to_le_bytes());
        header.extend(offset.to_le_bytes());
        offset = (offset + tensor.bytes()).next_multiple_of(ALIGNMENT);
    }
    header.resize(header.len() + padding(header.len() as u64), 0);

    let mut file = BufWriter::new(file);
    file.write_all(&header)?;
    let mut row_bytes = Vec::new();
    for tensor in tensors {
        for row in tensor.rows() {
            row_bytes.clear();
            tensor.kind.encode(row, &mut row_bytes);
            file.write_all(&row_bytes)?;
        }
        file.write_all(&[0; ALIGNMENT as usize][..padding(tensor.bytes())])?;
    }
    file.flush()
}
