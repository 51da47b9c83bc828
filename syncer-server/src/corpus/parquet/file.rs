//! Description of a Parquet file, and access to its columns.

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};

use super::ParquetError;
use super::pages::{Codec, Column};
use super::rows::Rows;
use super::schema::{Node, columns};
use super::thrift::Thrift;

/// First and last bytes of a file.
pub const MAGIC: &[u8] = b"PAR1";

/// Last bytes of a file with an encrypted description.
const ENCRYPTED: &[u8] = b"PARE";

/// Bytes of the end of a file: the length of the description, and [`MAGIC`].
const END_BYTES: u64 = 8;

/// Maximum size of the description in bytes. In memory it takes up to thirty times its size.
const DESCRIPTION_BYTES_MAX: u64 = 16 << 20;

/// Limits of the memory for a row group.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum size of a row in bytes.
    pub row_bytes: u64,
    /// Maximum size of the unpacked pages of all columns together in bytes.
    pub page_bytes: u64,
}

/// An opened file.
pub struct Table<F> {
    file: F,
    /// Bytes of the file before its description.
    data_bytes: u64,
    columns: Vec<Node>,
    groups: Vec<Group>,
}

/// Row group of a file.
struct Group {
    rows: u64,
    chunks: Vec<Chunk>,
}

/// Pages of a column in a row group.
struct Chunk {
    codec: i64,
    start: u64,
    bytes: u64,
}

impl<F: Read + Seek> Table<F> {
    /// Reads the description of `file`.
    pub fn open(mut file: F) -> Result<Self, ParquetError> {
        let bytes = file.seek(SeekFrom::End(0))?;
        if bytes < MAGIC.len() as u64 + END_BYTES {
            return Err(ParquetError::Damaged("it is too short"));
        }
        let end = read_at(&mut file, bytes - END_BYTES, END_BYTES)?;
        let (length, magic) = end.split_at(4);
        match magic {
            MAGIC => {}
            ENCRYPTED => return Err(ParquetError::Unsupported("it is encrypted".to_owned())),
            _ => return Err(ParquetError::Damaged("its end is missing")),
        }
        let length = u64::from(u32::from_le_bytes(length.try_into().unwrap_or_default()));
        if length > DESCRIPTION_BYTES_MAX {
            return Err(ParquetError::Unsupported(format!("its description has {length} bytes")));
        }
        let start = (bytes - END_BYTES).checked_sub(length);
        let data_bytes = start.ok_or(ParquetError::Damaged("its description is longer than the file"))?;
        let description = read_at(&mut file, data_bytes, length)?;
        let (description, _) = Thrift::read(&description)?;
        let groups = description.list(4).iter().map(Group::read).collect::<Result<_, _>>()?;
        Ok(Self { file, data_bytes, columns: columns(description.list(2))?, groups })
    }

    /// Returns the columns.
    pub fn columns(&self) -> &[Node] {
        &self.columns
    }

    /// Passes each row to `take`, as a JSON object with the columns of these indices under these names. `check` is
    /// called with the size of the pages of each row group before they are read. `limits` hold for each row group.
    ///
    /// # Errors
    /// Those of `take` and `check`, and a [`ParquetError`].
    pub fn rows<E: From<ParquetError>>(
        &mut self,
        wanted: &[(usize, &str)],
        limits: Limits,
        check: &mut dyn FnMut(u64) -> Result<(), E>,
        take: &mut dyn FnMut(&str) -> Result<(), E>,
    ) -> Result<(), E> {
        let Self { file, data_bytes, columns, groups } = self;
        let nodes: Vec<(&Node, &str)> =
            wanted.iter().filter_map(|(at, name)| Some((columns.get(*at)?, *name))).collect();
        let mut leaves = Vec::new();
        nodes.iter().for_each(|(node, _)| node.leaves(&mut |leaf| leaves.push(leaf)));
        let page_bytes_max = limits.page_bytes / leaves.len().max(1) as u64;
        // A group without rows may have places outside of the data.
        for group in groups.iter().filter(|group| group.rows > 0) {
            let chunk = |column: usize| {
                group.chunks.get(column).ok_or(ParquetError::Damaged("a row group lacks a column"))
            };
            let mut bytes = 0_u64;
            for leaf in &leaves {
                bytes = bytes.saturating_add(chunk(leaf.column)?.bytes);
            }
            check(bytes.min(*data_bytes))?;
            let mut readers = BTreeMap::new();
            for leaf in &leaves {
                let Chunk { codec, start, bytes } = *chunk(leaf.column)?;
                if start.checked_add(bytes).is_none_or(|end| end > *data_bytes) {
                    return Err(ParquetError::Damaged("a column ends after the file").into());
                }
                let pages = read_at(file, start, bytes)?;
                readers.insert(leaf.column, Column::new(leaf, Codec::of(codec)?, pages, page_bytes_max)?);
            }
            let (mut rows, mut row) = (Rows::new(readers, limits.row_bytes), String::new());
            for _ in 0..group.rows {
                row.clear();
                rows.row(&nodes, &mut row)?;
                take(&row)?;
            }
        }
        Ok(())
    }
}

impl Group {
    fn read(group: &Thrift<'_>) -> Result<Self, ParquetError> {
        let rows = group.int(3).and_then(|rows| u64::try_from(rows).ok());
        let rows = rows.ok_or(ParquetError::Damaged("a row group has no valid number of rows"))?;
        let chunks = group.list(1).iter().map(Chunk::read).collect::<Result<_, _>>()?;
        Ok(Self { rows, chunks })
    }
}

impl Chunk {
    fn read(chunk: &Thrift<'_>) -> Result<Self, ParquetError> {
        let damaged = || ParquetError::Damaged("a column has no valid description");
        if chunk.text(1).is_some() {
            return Err(ParquetError::Unsupported("its columns are in other files".to_owned()));
        }
        let found = chunk.field(3).ok_or_else(damaged)?;
        let place = |id| found.int(id).and_then(|place| u64::try_from(place).ok());
        let data = place(9).ok_or_else(damaged)?;
        // Some writers set 0 for a column without a dictionary.
        let start = place(11).filter(|place| *place > 0).map_or(data, |place| place.min(data));
        Ok(Self { codec: found.int(4).ok_or_else(damaged)?, start, bytes: place(7).ok_or_else(damaged)? })
    }
}

/// Reads `count` bytes from the place `start` of a file, which are within it.
fn read_at(file: &mut (impl Read + Seek), start: u64, count: u64) -> Result<Vec<u8>, ParquetError> {
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(count).read_to_end(&mut bytes)?;
    match bytes.len() as u64 == count {
        true => Ok(bytes),
        false => Err(ParquetError::Damaged("its end is missing")),
    }
}
