//! Timestamps from servers, in milliseconds since 1970.

use std::time::{SystemTime, UNIX_EPOCH};

use chrono::DateTime;

/// Returns this machine's time.
#[expect(clippy::disallowed_methods, reason = "it is this clock that is compared with others")]
pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Parses the HTTP header `Date`, such as `Sun, 06 Nov 1994 08:49:37 GMT`, to milliseconds since 1970.
pub(crate) fn of_header(text: &str) -> Option<i64> {
    DateTime::parse_from_rfc2822(text).ok().map(|at| at.timestamp_millis())
}

/// Parses a timestamp of RFC 3339, such as `1994-11-06T08:49:37.25Z`, to milliseconds since 1970.
pub(crate) fn of_stamp(text: &str) -> Option<i64> {
    DateTime::parse_from_rfc3339(text).ok().map(|at| at.timestamp_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read() {
        for (header, stamp, ms) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", "1970-01-01T00:00:00Z", 0),
            ("Sun, 06 Nov 1994 08:49:37 GMT", "1994-11-06T08:49:37Z", 784_111_777_000),
            ("Thu, 29 Feb 2024 23:59:59 GMT", "2024-02-29T23:59:59Z", 1_709_251_199_000),
            ("Mon, 01 Mar 2100 00:00:00 GMT", "2100-03-01T00:00:00Z", 4_107_542_400_000),
        ] {
            assert_eq!((of_header(header), of_stamp(stamp)), (Some(ms), Some(ms)), "{header}");
        }
        assert_eq!(of_stamp("1970-01-01T00:00:01.2509Z"), Some(1_250));
        for text in ["", "now", "Sun, 06 Nov 1994 08:49:37", "Sun, 06 Nix 1994 08:49:37 GMT", "1994-11-06"] {
            assert_eq!((of_header(text), of_stamp(text)), (None, None), "{text}");
        }
        for text in ["1994-13-06T08:49:37Z", "1994-11-06T28:49:37Z", "1994-11-06T08:49:nanZ"] {
            assert_eq!(of_stamp(text), None, "{text}");
        }
    }
}
