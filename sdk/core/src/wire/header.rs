//! The 12 bytes in front of every message and every chunk.

use super::{DecodeError, HEADER_BYTES, Tag, VERSION};

/// First bytes of every message.
pub const MAGIC: [u8; 4] = *b"ARCH";

/// Header in front of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub tag: Tag,
    pub body_bytes: u32,
}

impl Header {
    pub(crate) fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6] = self.tag as u8;
        bytes[8..].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes
    }

    /// Reads the header at the start of `bytes`. The body is neither read nor required.
    ///
    /// # Errors
    /// `Truncated`, `Magic`, `Version`, `Tag`, `Reserved`, `BodyTooLarge`: see [`DecodeError`].
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let Some((header, _)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Err(DecodeError::Truncated { bytes: bytes.len() as u64, expected: HEADER_BYTES as u64 });
        };
        let [m0, m1, m2, m3, v0, v1, tag, reserved, l0, l1, l2, l3] = *header;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(DecodeError::Magic { found: [m0, m1, m2, m3] });
        }
        let version = u16::from_le_bytes([v0, v1]);
        if version != VERSION {
            return Err(DecodeError::Version { found: version });
        }
        let known = Tag::ALL.iter().copied().find(|&known| known as u8 == tag);
        let tag = known.ok_or(DecodeError::Tag { found: tag })?;
        if reserved != 0 {
            return Err(DecodeError::Reserved { found: reserved });
        }
        let body_bytes = u32::from_le_bytes([l0, l1, l2, l3]);
        let bytes_max = tag.body_bytes_max();
        if body_bytes > bytes_max {
            return Err(DecodeError::BodyTooLarge { tag, bytes: body_bytes, bytes_max });
        }
        Ok(Self { tag, body_bytes })
    }
}

/// Splits `bytes` into the header's tag and the body, which must have the announced length.
///
/// # Errors
/// Those of [`Header::decode`], `Truncated`, `Trailing`: see [`DecodeError`].
pub(super) fn split(bytes: &[u8]) -> Result<(Tag, &[u8]), DecodeError> {
    let Header { tag, body_bytes } = Header::decode(bytes)?;
    let body = &bytes[HEADER_BYTES..];
    let expected = HEADER_BYTES as u64 + u64::from(body_bytes);
    match (body.len() as u64).cmp(&u64::from(body_bytes)) {
        std::cmp::Ordering::Less => Err(DecodeError::Truncated { bytes: bytes.len() as u64, expected }),
        std::cmp::Ordering::Greater => Err(DecodeError::Trailing { bytes: bytes.len() as u64, expected }),
        std::cmp::Ordering::Equal => Ok((tag, body)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this test fails, either undo the change or raise `VERSION`.
    #[test]
    fn bytes_are_frozen() {
        let header = Header { tag: Tag::Update, body_bytes: 0x0102_0304 };
        let [v0, v1] = VERSION.to_le_bytes();
        assert_eq!(header.encode(), [0x41, 0x52, 0x43, 0x48, v0, v1, 5, 0, 4, 3, 2, 1]);
        let mut numbers: Vec<u8> = Tag::ALL.iter().map(|tag| *tag as u8).collect();
        numbers.sort_unstable();
        // 19 to 22 were messages of earlier versions.
        assert_eq!(numbers, (1..=18).chain(23..=24).collect::<Vec<_>>());
    }

    #[test]
    fn any_byte_changed_is_refused_or_means_itself() {
        for &tag in Tag::ALL {
            let good = Header { tag, body_bytes: 60 }.encode();
            for (place, value) in
                (0..HEADER_BYTES).flat_map(|place| (0..=255).map(move |value| (place, value)))
            {
                let mut bytes = good;
                bytes[place] = value;
                if let Ok(header) = Header::decode(&bytes) {
                    assert_eq!(header.encode(), bytes, "byte {place} = {value}");
                }
            }
        }
    }

    #[test]
    fn says_what_is_wrong() {
        let good = Header { tag: Tag::Ready, body_bytes: 64 }.encode();
        let check = |place: usize, value: u8, expected: DecodeError| {
            let mut bytes = good;
            bytes[place] = value;
            assert_eq!(Header::decode(&bytes), Err(expected));
        };
        check(0, b'a', DecodeError::Magic { found: *b"aRCH" });
        check(4, 1, DecodeError::Version { found: 1 });
        check(5, 1, DecodeError::Version { found: VERSION + 256 });
        check(6, 0, DecodeError::Tag { found: 0 });
        check(6, 25, DecodeError::Tag { found: 25 });
        check(7, 1, DecodeError::Reserved { found: 1 });
        check(8, 65, DecodeError::BodyTooLarge { tag: Tag::Ready, bytes: 65, bytes_max: 64 });
        assert_eq!(Header::decode(&good[..11]), Err(DecodeError::Truncated { bytes: 11, expected: 12 }));
    }
}
