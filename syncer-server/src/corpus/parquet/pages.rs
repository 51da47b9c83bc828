//! Pages of a column, and the values in them.

use std::io::Read;

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;

use super::ParquetError;
use super::bits::{Runs, Slice, deltas};
use super::schema::{Leaf, Physical};
use super::thrift::Thrift;

/// Maximum size of an unpacked page in bytes. Writers aim at 1 MiB, and a page holds one value at least.
const PAGE_BYTES_MAX: u64 = 256 << 20;

/// Compression of the pages of a column.
#[derive(Clone, Copy, Debug)]
pub enum Codec {
    /// No compression.
    None,
    /// Snappy.
    Snappy,
    /// Gzip.
    Gzip,
    /// LZ4 in one block.
    Lz4,
    /// Zstandard.
    Zstd,
}

impl Codec {
    /// Returns the compression with Parquet's number `id`.
    pub fn of(id: i64) -> Result<Self, ParquetError> {
        match id {
            0 => Ok(Self::None),
            1 => Ok(Self::Snappy),
            2 => Ok(Self::Gzip),
            6 => Ok(Self::Zstd),
            7 => Ok(Self::Lz4),
            other => {
                let name = match other {
                    3 => "LZO",
                    4 => "Brotli",
                    5 => "LZ4 of Hadoop",
                    _ => "an unknown method",
                };
                Err(ParquetError::Unsupported(format!("its pages are packed by {name}")))
            }
        }
    }

    /// Unpacks a page of `length` bytes.
    fn unpack(self, bytes: &[u8], length: usize) -> Result<Vec<u8>, ParquetError> {
        let damaged = || ParquetError::Damaged("a page cannot be unpacked");
        let read = |reader: &mut dyn Read| {
            let mut out = Vec::new();
            reader.take(length as u64 + 1).read_to_end(&mut out).map(|_| out).map_err(|_| damaged())
        };
        let unpacked = match self {
            Self::None => bytes.to_vec(),
            Self::Snappy => {
                if snap::raw::decompress_len(bytes).map_err(|_| damaged())? != length {
                    return Err(damaged());
                }
                snap::raw::Decoder::new().decompress_vec(bytes).map_err(|_| damaged())?
            }
            Self::Gzip => read(&mut MultiGzDecoder::new(bytes))?,
            Self::Lz4 => lz4_flex::block::decompress(bytes, length).map_err(|_| damaged())?,
            Self::Zstd => read(&mut StreamingDecoder::new(bytes).map_err(|_| damaged())?)?,
        };
        if unpacked.len() == length { Ok(unpacked) } else { Err(damaged()) }
    }
}

/// A value of a column, with the levels that place it in its row.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    /// Repetition level: 0 at the begin of a row.
    pub rep: u32,
    /// Definition level: how much of the path to the value is there.
    pub def: u32,
    /// The value, if it is there.
    pub value: Scalar,
}

/// A single value.
#[derive(Clone, Debug, Default)]
pub enum Scalar {
    /// No value.
    #[default]
    Null,
    /// True or false.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number with a fraction.
    Float(f64),
    /// A text.
    Text(String),
}

/// Reader of the values of a column in one row group, page by page.
pub struct Column<'a> {
    leaf: &'a Leaf,
    codec: Codec,
    /// Pages that are not read yet.
    chunk: Vec<u8>,
    at: usize,
    page_bytes_max: u64,
    dictionary: Option<Dictionary>,
    page: Option<Page>,
    next: Option<Cell>,
}

/// Values of a page.
struct Page {
    left: u64,
    reps: Runs,
    defs: Runs,
    values: Values,
}

/// Distinct values of a column.
struct Dictionary {
    values: Slice,
    /// Places of texts in `values`; empty for values of fixed size.
    texts: Vec<(u32, u32)>,
}

/// Values of a page that are not null, one after the other.
enum Values {
    Plain(Slice),
    /// Bits, and the index of the next one.
    Bits(Slice, usize),
    Indices(Runs),
    Bools(Runs),
    Ints(std::vec::IntoIter<i64>),
    /// Lengths of texts, and their bytes.
    Lengths(std::vec::IntoIter<i64>, Slice),
    /// As before, and the length of the part that each text shares with the one before it.
    Prefixes(std::vec::IntoIter<i64>, std::vec::IntoIter<i64>, Slice, Vec<u8>),
}

/// Returns the number of bits of levels up to `max`.
fn width(max: u32) -> u32 {
    u32::BITS - max.leading_zeros()
}

fn text(bytes: &[u8]) -> Result<Scalar, ParquetError> {
    let text = str::from_utf8(bytes).map_err(|_| ParquetError::Damaged("a text is not UTF-8"))?;
    Ok(Scalar::Text(text.to_owned()))
}

/// Reads the next value of fixed size, or of a size that precedes it.
fn plain(physical: Physical, slice: &mut Slice) -> Result<Scalar, ParquetError> {
    Ok(match physical {
        Physical::I32 => Scalar::Int(i32::from_le_bytes(slice.array()?).into()),
        Physical::I64 => Scalar::Int(i64::from_le_bytes(slice.array()?)),
        Physical::F32 => Scalar::Float(f32::from_le_bytes(slice.array()?).into()),
        Physical::F64 => Scalar::Float(f64::from_le_bytes(slice.array()?)),
        Physical::Bytes => text(slice.prefixed()?.bytes())?,
        Physical::Bool | Physical::Other => {
            return Err(ParquetError::Unsupported(
                "a column of messages is neither text nor a number".into(),
            ));
        }
    })
}

impl Dictionary {
    fn read(physical: Physical, count: i64, values: Slice) -> Result<Self, ParquetError> {
        let mut texts = Vec::new();
        if physical == Physical::Bytes {
            let (all, mut rest) = (values.bytes().len(), values.clone());
            for _ in 0..count {
                let length = rest.prefixed()?.bytes().len();
                texts.push(((all - rest.bytes().len() - length) as u32, length as u32));
            }
        }
        Ok(Self { values, texts })
    }

    fn value(&self, physical: Physical, index: usize) -> Result<Scalar, ParquetError> {
        let damaged = || ParquetError::Damaged("a value is not in the dictionary of its column");
        let size = match physical {
            Physical::Bytes => {
                let (at, length) = *self.texts.get(index).ok_or_else(damaged)?;
                return text(&self.values.bytes()[at as usize..][..length as usize]);
            }
            Physical::I32 | Physical::F32 => 4,
            _ => 8,
        };
        let mut rest = self.values.clone();
        rest.take(index.saturating_mul(size)).map_err(|_| damaged())?;
        plain(physical, &mut rest)
    }
}

impl Values {
    fn read(encoding: i64, physical: Physical, mut slice: Slice) -> Result<Self, ParquetError> {
        let is_text = physical == Physical::Bytes;
        Ok(match encoding {
            0 if physical == Physical::Bool => Self::Bits(slice, 0),
            0 => Self::Plain(slice),
            2 | 8 => {
                let [width] = slice.array()?;
                Self::Indices(Runs::new(slice, width.into())?)
            }
            3 if physical == Physical::Bool => Self::Bools(Runs::new(slice.prefixed()?, 1)?),
            5 if matches!(physical, Physical::I32 | Physical::I64) => {
                Self::Ints(deltas(&mut slice)?.into_iter())
            }
            6 if is_text => Self::Lengths(deltas(&mut slice)?.into_iter(), slice),
            7 if is_text => {
                let prefixes = deltas(&mut slice)?.into_iter();
                Self::Prefixes(prefixes, deltas(&mut slice)?.into_iter(), slice, Vec::new())
            }
            other => return Err(ParquetError::Unsupported(format!("its values have the encoding {other}"))),
        })
    }

    fn next(&mut self, physical: Physical, dictionary: Option<&Dictionary>) -> Result<Scalar, ParquetError> {
        let early = || ParquetError::Damaged("a page ends early");
        let length = |lengths: &mut std::vec::IntoIter<i64>| {
            lengths.next().and_then(|length| usize::try_from(length).ok()).ok_or_else(early)
        };
        match self {
            Self::Plain(slice) => plain(physical, slice),
            Self::Bits(slice, at) => {
                let byte = *slice.bytes().get(*at / 8).ok_or_else(early)?;
                let bit = byte >> (*at % 8) & 1;
                *at += 1;
                Ok(Scalar::Bool(bit == 1))
            }
            Self::Indices(runs) => {
                let dictionary = dictionary.ok_or(ParquetError::Damaged("a column lacks its dictionary"))?;
                dictionary.value(physical, runs.next()? as usize)
            }
            Self::Bools(runs) => Ok(Scalar::Bool(runs.next()? == 1)),
            Self::Ints(values) => values.next().map(Scalar::Int).ok_or_else(early),
            Self::Lengths(lengths, slice) => text(slice.take(length(lengths)?)?.bytes()),
            Self::Prefixes(prefixes, lengths, slice, last) => {
                let (prefix, rest) = (length(prefixes)?, slice.take(length(lengths)?)?);
                if prefix > last.len() {
                    return Err(early());
                }
                last.truncate(prefix);
                last.extend_from_slice(rest.bytes());
                text(last)
            }
        }
    }
}

impl<'a> Column<'a> {
    /// Creates the reader of the pages in `chunk`, of which none may unpack to more than `page_bytes_max` bytes.
    pub fn new(
        leaf: &'a Leaf,
        codec: Codec,
        chunk: Vec<u8>,
        page_bytes_max: u64,
    ) -> Result<Self, ParquetError> {
        let page_bytes_max = page_bytes_max.min(PAGE_BYTES_MAX);
        let mut column =
            Self { leaf, codec, chunk, at: 0, page_bytes_max, dictionary: None, page: None, next: None };
        column.advance()?;
        Ok(column)
    }

    /// Returns the next value without removing it; `None` at the end of the column.
    pub fn peek(&self) -> Option<&Cell> {
        self.next.as_ref()
    }

    /// Removes and returns the next value.
    pub fn take(&mut self) -> Result<Cell, ParquetError> {
        let cell = self.next.take().ok_or(ParquetError::Damaged("a column ends before the others"))?;
        self.advance()?;
        Ok(cell)
    }

    fn advance(&mut self) -> Result<(), ParquetError> {
        while self.page.as_ref().is_none_or(|page| page.left == 0) {
            if self.at >= self.chunk.len() {
                return Ok(());
            }
            self.page = self.next_page()?;
        }
        let (leaf, dictionary) = (self.leaf, self.dictionary.as_ref());
        let Some(page) = &mut self.page else { return Ok(()) };
        page.left -= 1;
        let (rep, def) = (page.reps.next()?, page.defs.next()?);
        if rep > leaf.rep_max || def > leaf.def_max {
            return Err(ParquetError::Damaged("a value has an invalid place in its row"));
        }
        let value = match def == leaf.def_max {
            true => page.values.next(leaf.physical, dictionary)?,
            false => Scalar::Null,
        };
        self.next = Some(Cell { rep, def, value });
        Ok(())
    }

    /// Reads a page; `None` if it has no values.
    fn next_page(&mut self) -> Result<Option<Page>, ParquetError> {
        let size = |value: Option<i64>| {
            let value = value.and_then(|value| usize::try_from(value).ok());
            value.ok_or(ParquetError::Damaged("a page has no valid size"))
        };
        let (head, length) = Thrift::read(&self.chunk[self.at..])?;
        let (unpacked, packed) = (size(head.int(2))?, size(head.int(3))?);
        if unpacked as u64 > self.page_bytes_max {
            return Err(ParquetError::Page { bytes: unpacked as u64 });
        }
        let start = self.at + length;
        let end = start.checked_add(packed).filter(|end| *end <= self.chunk.len());
        let end = end.ok_or(ParquetError::Damaged("a page ends after its column"))?;
        let bytes = &self.chunk[start..end];
        self.at = end;
        if let Some(page) = head.field(5) {
            let slice = Slice::new(self.codec.unpack(bytes, unpacked)?);
            return self.page(page, 2, slice, None).map(Some);
        }
        if let Some(page) = head.field(8) {
            let (defs, reps) = (size(page.int(5).or(Some(0)))?, size(page.int(6).or(Some(0)))?);
            let levels = defs.saturating_add(reps);
            if levels > bytes.len().min(unpacked) {
                return Err(ParquetError::Damaged("a page ends early"));
            }
            let (levels, values) = bytes.split_at(levels);
            let is_packed = !matches!(page.field(7), Some(Thrift::Bool(false)));
            let values = match is_packed && !values.is_empty() {
                true => self.codec.unpack(values, unpacked - levels.len())?,
                false => values.to_vec(),
            };
            let mut levels = Slice::new(levels.to_vec());
            let reps = levels.take(reps)?;
            return self.page(page, 4, Slice::new(values), Some((reps, levels))).map(Some);
        }
        if let Some(dictionary) = head.field(7) {
            let slice = Slice::new(self.codec.unpack(bytes, unpacked)?);
            let count = dictionary.int(1).unwrap_or(0);
            self.dictionary = Some(Dictionary::read(self.leaf.physical, count, slice)?);
        }
        Ok(None)
    }

    /// Reads a page of values. Its description `head` has the encoding in the field `encoding`. Without `levels`, they
    /// precede the values.
    fn page(
        &self,
        head: &Thrift<'_>,
        encoding: i16,
        mut slice: Slice,
        levels: Option<(Slice, Slice)>,
    ) -> Result<Page, ParquetError> {
        let damaged = || ParquetError::Damaged("a page has no valid description");
        let (reps, defs) = match levels {
            Some(levels) => levels,
            None => {
                let mut of = |max: u32| if max > 0 { slice.prefixed() } else { slice.clone().take(0) };
                (of(self.leaf.rep_max)?, of(self.leaf.def_max)?)
            }
        };
        Ok(Page {
            left: head.int(1).and_then(|count| u64::try_from(count).ok()).ok_or_else(damaged)?,
            reps: Runs::new(reps, width(self.leaf.rep_max))?,
            defs: Runs::new(defs, width(self.leaf.def_max))?,
            values: Values::read(head.int(encoding).ok_or_else(damaged)?, self.leaf.physical, slice)?,
        })
    }
}
