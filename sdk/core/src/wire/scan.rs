//! Check of a MessagePack body before anything is built from it.
//!
//! A valid body is one value, nested at most [`DEPTH_MAX`] deep, and every count in it is at most the number of bytes
//! that follow. Anything built from it is therefore bounded by its size.

use super::BodyFault;

/// Maximum nesting of arrays and maps. The deepest message, `Welcome`, has 5 levels.
const DEPTH_MAX: usize = 8;

/// Checks that `body` is exactly one value. The error carries the offset of the faulty type byte.
pub(super) fn scan(body: &[u8]) -> Result<(), (usize, BodyFault)> {
    // Values still to come at each level; the outermost level is the body itself.
    let mut open = [0_u64; DEPTH_MAX + 1];
    open[0] = 1;
    let mut depth = 0;
    let mut at = 0;
    loop {
        while open[depth] == 0 {
            if depth == 0 {
                return if at == body.len() { Ok(()) } else { Err((at, BodyFault::Trailing)) };
            }
            depth -= 1;
        }
        open[depth] -= 1;
        let head = head(&body[at..]).map_err(|fault| (at, fault))?;
        let left = (body.len() - at - 1) as u64;
        if head.skip.saturating_add(head.values) > left {
            return Err((at, BodyFault::Overrun));
        }
        if head.values > 0 {
            depth += 1;
            *open.get_mut(depth).ok_or((at, BodyFault::Depth))? = head.values;
        }
        at += 1 + head.skip as usize;
    }
}

/// Contents after a type byte: `skip` plain bytes, then `values` values.
struct Head {
    skip: u64,
    values: u64,
}

fn head(bytes: &[u8]) -> Result<Head, BodyFault> {
    let marker = *bytes.first().ok_or(BodyFault::Overrun)?;
    let length = |width: usize| {
        let bytes = bytes.get(1..=width).ok_or(BodyFault::Overrun)?;
        Ok(bytes.iter().fold(0_u64, |value, byte| value << 8 | u64::from(*byte)))
    };
    let plain = |skip: u64| Ok(Head { skip, values: 0 });
    let blob = |width: usize| Ok(Head { skip: width as u64 + length(width)?, values: 0 });
    let nest = |width: usize, each: u64| Ok(Head { skip: width as u64, values: each * length(width)? });
    match marker {
        0x00..=0x7f | 0xc0 | 0xc2 | 0xc3 | 0xe0..=0xff => plain(0),
        0x80..=0x8f => Ok(Head { skip: 0, values: 2 * u64::from(marker & 0x0f) }),
        0x90..=0x9f => Ok(Head { skip: 0, values: u64::from(marker & 0x0f) }),
        0xa0..=0xbf => plain(u64::from(marker & 0x1f)),
        0xc4 | 0xd9 => blob(1),
        0xc5 | 0xda => blob(2),
        0xc6 | 0xdb => blob(4),
        0xcc | 0xd0 => plain(1),
        0xcd | 0xd1 => plain(2),
        0xca | 0xce | 0xd2 => plain(4),
        0xcb | 0xcf | 0xd3 => plain(8),
        0xdc => nest(2, 1),
        0xdd => nest(4, 1),
        0xde => nest(2, 2),
        0xdf => nest(4, 2),
        // The reserved type and the extension types.
        0xc1 | 0xc7..=0xc9 | 0xd4..=0xd8 => Err(BodyFault::Marker(marker)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &[u8], expected: Result<(), (usize, BodyFault)>) {
        assert_eq!(scan(body), expected, "{body:02x?}");
    }

    #[test]
    fn takes_one_whole_value() {
        check(&[0xc0], Ok(()));
        check(&[0x92, 1, 0xa2, b'h', b'i'], Ok(()));
        check(&[0x81, 0xa1, b'k', 0x90], Ok(()));
        check(&[0xc4, 2, 0xc1, 0xc1], Ok(()));
        check(&[0xdc, 0, 2, 0xca, 0, 0, 0, 0, 0xcf, 0, 0, 0, 0, 0, 0, 0, 0], Ok(()));
    }

    #[test]
    fn refuses_what_lies_about_its_length() {
        check(&[], Err((0, BodyFault::Overrun)));
        check(&[0xc0, 0xc0], Err((1, BodyFault::Trailing)));
        check(&[0x92, 1], Err((0, BodyFault::Overrun)));
        check(&[0x91, 0x92, 1], Err((1, BodyFault::Overrun)));
        check(&[0xdd, 0xff, 0xff, 0xff, 0xff], Err((0, BodyFault::Overrun)));
        check(&[0xdf, 0xff, 0xff, 0xff, 0xff, 0], Err((0, BodyFault::Overrun)));
        check(&[0xc6, 0xff, 0xff, 0xff, 0xff, 1], Err((0, BodyFault::Overrun)));
        check(&[0xcb, 0, 0], Err((0, BodyFault::Overrun)));
        check(&[0xda, 1], Err((0, BodyFault::Overrun)));
    }

    #[test]
    fn refuses_types_and_depths_that_we_never_write() {
        check(&[0xc1], Err((0, BodyFault::Marker(0xc1))));
        check(&[0x91, 0xd4, 0, 0], Err((1, BodyFault::Marker(0xd4))));
        let nested = |depth: usize| [vec![0x91; depth], vec![0xc0]].concat();
        check(&nested(DEPTH_MAX), Ok(()));
        check(&nested(DEPTH_MAX + 1), Err((DEPTH_MAX, BodyFault::Depth)));
    }
}
