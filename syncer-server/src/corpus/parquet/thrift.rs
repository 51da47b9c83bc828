//! Values in Thrift's compact protocol, in which Parquet files describe themselves.

use super::ParquetError;

/// Maximum nesting of values. Parquet's own has about eight levels.
const DEPTH_MAX: usize = 24;

/// A value. Its names are those of its fields' numbers in Parquet's definition.
#[derive(Debug)]
pub enum Thrift<'a> {
    /// True or false.
    Bool(bool),
    /// A whole number of any width.
    Int(i64),
    /// A text or bytes.
    Bytes(&'a [u8]),
    /// A list or a set.
    List(Vec<Self>),
    /// Fields by number.
    Struct(Vec<(i16, Self)>),
    /// A number with a fraction, or a map. Parquet needs none of them.
    Other,
}

impl<'a> Thrift<'a> {
    /// Reads a struct at the start of `bytes`. Returns it, and the number of its bytes.
    pub fn read(bytes: &'a [u8]) -> Result<(Self, usize), ParquetError> {
        let mut reader = Reader { bytes, at: 0 };
        let value = reader.fields(0)?;
        Ok((value, reader.at))
    }

    /// Returns the field `id`, if it is set.
    pub fn field(&self, id: i16) -> Option<&Self> {
        match self {
            Self::Struct(fields) => fields.iter().find(|(other, _)| *other == id).map(|(_, value)| value),
            _ => None,
        }
    }

    /// Returns the number in the field `id`, if it is set.
    pub fn int(&self, id: i16) -> Option<i64> {
        match self.field(id)? {
            Self::Int(value) => Some(*value),
            _ => None,
        }
    }

    /// Returns the elements in the field `id`; none if it is not set.
    pub fn list(&self, id: i16) -> &[Self] {
        match self.field(id) {
            Some(Self::List(values)) => values,
            _ => &[],
        }
    }

    /// Returns the text in the field `id`, if it is set.
    pub fn text(&self, id: i16) -> Option<&'a str> {
        self.field(id)?.as_text()
    }

    /// Returns the text of this value.
    pub fn as_text(&self) -> Option<&'a str> {
        match self {
            Self::Bytes(bytes) => str::from_utf8(bytes).ok(),
            _ => None,
        }
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Result<u8, ParquetError> {
        let byte = *self.bytes.get(self.at).ok_or(ParquetError::Damaged("its description ends early"))?;
        self.at += 1;
        Ok(byte)
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], ParquetError> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or(ParquetError::Damaged("its description ends early"))?;
        let bytes = &self.bytes[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    fn varint(&mut self) -> Result<u64, ParquetError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(ParquetError::Damaged("its description has a number that is too long"))
    }

    fn zigzag(&mut self) -> Result<i64, ParquetError> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// Reads the fields of a struct up to its end.
    fn fields(&mut self, depth: usize) -> Result<Thrift<'a>, ParquetError> {
        let (mut fields, mut id) = (Vec::new(), 0_i16);
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Ok(Thrift::Struct(fields));
            }
            id = match head >> 4 {
                0 => self.zigzag()? as i16,
                more => id.wrapping_add(more.into()),
            };
            let value = match head & 0x0f {
                1 => Thrift::Bool(true),
                2 => Thrift::Bool(false),
                kind => self.value(kind, depth)?,
            };
            fields.push((id, value));
        }
    }

    fn value(&mut self, kind: u8, depth: usize) -> Result<Thrift<'a>, ParquetError> {
        if depth > DEPTH_MAX {
            return Err(ParquetError::Damaged("its description is nested too deeply"));
        }
        match kind {
            1 | 2 => Ok(Thrift::Bool(self.byte()? == 1)),
            3 => Ok(Thrift::Int((self.byte()? as i8).into())),
            4..=6 => Ok(Thrift::Int(self.zigzag()?)),
            7 => self.take(8).map(|_| Thrift::Other),
            8 => {
                let length = usize::try_from(self.varint()?).unwrap_or(usize::MAX);
                self.take(length).map(Thrift::Bytes)
            }
            9 | 10 => {
                let head = self.byte()?;
                let count = if head >> 4 == 15 { self.varint()? } else { (head >> 4).into() };
                // Each element has a byte at least, so the list grows no faster than it is read.
                let mut values = Vec::new();
                for _ in 0..count {
                    values.push(self.value(head & 0x0f, depth + 1)?);
                }
                Ok(Thrift::List(values))
            }
            11 => {
                let count = self.varint()?;
                let kinds = if count == 0 { 0 } else { self.byte()? };
                for _ in 0..count {
                    self.value(kinds >> 4, depth + 1)?;
                    self.value(kinds & 0x0f, depth + 1)?;
                }
                Ok(Thrift::Other)
            }
            12 => self.fields(depth + 1),
            _ => Err(ParquetError::Damaged("its description has a value of an unknown kind")),
        }
    }
}
