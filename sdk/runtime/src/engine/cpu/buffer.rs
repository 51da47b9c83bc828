//! Memory for values, aligned for vector instructions.

use std::ops::{Deref, DerefMut};

/// Values that start on a cache line, so that no vector load straddles two.
#[derive(Default)]
pub struct Buffer {
    values: Vec<f32>,
    start: usize,
    len: usize,
}

/// Bytes of a cache line, and of the widest vector.
const LINE_BYTES: usize = 64;

impl Buffer {
    /// Allocates `len` zeros.
    pub fn zeros(len: usize) -> Self {
        let values = vec![0.0; len + LINE_BYTES / size_of::<f32>()];
        // At worst (`usize::MAX`) the offset is unknown and the buffer is unaligned, which is only slower.
        let start = values.as_ptr().align_offset(LINE_BYTES).min(LINE_BYTES / size_of::<f32>());
        Self { values, start, len }
    }

    /// Returns the bytes held.
    pub fn bytes(&self) -> usize {
        self.values.len() * size_of::<f32>()
    }
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.values[self.start..self.start + self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.values[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_on_a_line() {
        for len in [0, 1, 16, 1000] {
            let buffer = Buffer::zeros(len);
            assert_eq!(buffer.len(), len);
            assert_eq!(buffer.as_ptr() as usize % LINE_BYTES, 0, "{len}");
        }
    }
}
