//! Sequences of small numbers: runs and packed bits (`RLE`), and differences (`DELTA_BINARY_PACKED`).

use std::sync::Arc;

use super::ParquetError;

/// Maximum number of values in a page whose lengths are stored as differences.
const DELTAS_MAX: usize = 1 << 22;

/// Part of the bytes of a page, which it shares. Reading removes bytes from its start.
#[derive(Clone, Debug)]
pub struct Slice {
    bytes: Arc<Vec<u8>>,
    at: usize,
    end: usize,
}

impl Slice {
    /// Returns the whole of `bytes`.
    pub fn new(bytes: Vec<u8>) -> Self {
        let end = bytes.len();
        Self { bytes: Arc::new(bytes), at: 0, end }
    }

    /// Returns the bytes that are left.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.at..self.end]
    }

    /// Removes and returns the next `count` bytes.
    pub fn take(&mut self, count: usize) -> Result<Self, ParquetError> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.end);
        let end = end.ok_or(ParquetError::Damaged("a page ends early"))?;
        let part = Self { bytes: Arc::clone(&self.bytes), at: self.at, end };
        self.at = end;
        Ok(part)
    }

    /// Removes and returns the next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], ParquetError> {
        let bytes = *self.bytes().first_chunk().ok_or(ParquetError::Damaged("a page ends early"))?;
        self.at += N;
        Ok(bytes)
    }

    /// Removes and returns the next bytes, which their length precedes.
    pub fn prefixed(&mut self) -> Result<Self, ParquetError> {
        let length = u32::from_le_bytes(self.array()?);
        self.take(length as usize)
    }

    fn varint(&mut self) -> Result<u64, ParquetError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = self.array()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(ParquetError::Damaged("a page has a number that is too long"))
    }

    fn zigzag(&mut self) -> Result<i64, ParquetError> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }
}

/// Decoder of runs and packed bits, one number at a time.
#[derive(Debug)]
pub struct Runs {
    cursor: Slice,
    width: u32,
    run: Run,
}

#[derive(Debug)]
enum Run {
    /// One number, and the number of times that it still occurs.
    Same { value: u32, left: u64 },
    /// Packed numbers, and the index of the next one.
    Packed { bytes: Slice, at: usize, count: usize },
}

impl Runs {
    /// Creates a decoder of numbers of `width` bits.
    pub fn new(bytes: Slice, width: u32) -> Result<Self, ParquetError> {
        match width {
            0..=32 => Ok(Self { cursor: bytes, width, run: Run::Same { value: 0, left: 0 } }),
            _ => Err(ParquetError::Damaged("a page has numbers of more than 32 bits")),
        }
    }

    /// Returns the next number.
    pub fn next(&mut self) -> Result<u32, ParquetError> {
        if self.width == 0 {
            return Ok(0);
        }
        loop {
            match &mut self.run {
                Run::Same { value, left } if *left > 0 => {
                    *left -= 1;
                    return Ok(*value);
                }
                Run::Packed { bytes, at, count } if *at < *count => {
                    let value = packed(bytes.bytes(), *at, self.width);
                    *at += 1;
                    return Ok(value as u32);
                }
                _ => self.run = self.next_run()?,
            }
        }
    }

    fn next_run(&mut self) -> Result<Run, ParquetError> {
        let head = self.cursor.varint()?;
        if head & 1 == 0 {
            let mut value = [0; 4];
            let bytes = self.cursor.take(self.width.div_ceil(8) as usize)?;
            value[..bytes.bytes().len()].copy_from_slice(bytes.bytes());
            return Ok(Run::Same { value: u32::from_le_bytes(value), left: head >> 1 });
        }
        let groups = usize::try_from(head >> 1).unwrap_or(usize::MAX);
        // The last group may be cut off at the end of the page.
        let length = groups.saturating_mul(self.width as usize).min(self.cursor.bytes().len());
        let bytes = self.cursor.take(length)?;
        let count = groups.saturating_mul(8).min(8 * length / self.width as usize);
        match count {
            0 => Err(ParquetError::Damaged("a page ends early")),
            _ => Ok(Run::Packed { bytes, at: 0, count }),
        }
    }
}

/// Returns number `at` of packed numbers of `width` bits; bits beyond the end are 0.
fn packed(bytes: &[u8], at: usize, width: u32) -> u64 {
    let bit = at * width as usize;
    let mut window = [0; 16];
    let part = bytes.get(bit / 8..).unwrap_or_default();
    let length = part.len().min(window.len());
    window[..length].copy_from_slice(&part[..length]);
    let value = u128::from_le_bytes(window) >> (bit % 8);
    value as u64 & (u64::MAX >> (64 - width.clamp(1, 64)))
}

/// Reads all numbers of a sequence of differences.
pub fn deltas(cursor: &mut Slice) -> Result<Vec<i64>, ParquetError> {
    let damaged = || ParquetError::Damaged("a page has invalid differences");
    let (block, miniblocks) = (cursor.varint()?, cursor.varint()?);
    let count = usize::try_from(cursor.varint()?).unwrap_or(usize::MAX);
    let mut last = cursor.zigzag()?;
    let each = block.checked_div(miniblocks).unwrap_or(0);
    if count > DELTAS_MAX || each == 0 || !each.is_multiple_of(8) || block > 1 << 20 {
        return Err(damaged());
    }
    let mut values = Vec::new();
    if count > 0 {
        values.push(last);
    }
    while values.len() < count {
        let least = cursor.zigzag()?;
        let widths = cursor.take(miniblocks as usize)?;
        for &width in widths.bytes() {
            if values.len() >= count {
                break;
            }
            if width > 64 {
                return Err(damaged());
            }
            let bytes = cursor.take(each as usize * usize::from(width) / 8)?;
            for at in 0..(each as usize).min(count - values.len()) {
                let more = if width == 0 { 0 } else { packed(bytes.bytes(), at, width.into()) };
                last = last.wrapping_add(least).wrapping_add(more as i64);
                values.push(last);
            }
        }
    }
    Ok(values)
}
