//! Comparison of `WIRE.md` with the code.

use super::*;

/// Goal: the tables in `WIRE.md` agree with the code.
#[test]
fn the_document_agrees() {
    // Line breaks may move, except in tables.
    let source = include_str!("../WIRE.md");
    let prose = source.split_whitespace().collect::<Vec<_>>().join(" ");
    for (_, message) in samples() {
        let tag = message.tag();
        let fields = format!("`{}`", message.field_names().join("`, `"));
        let row = document_row(source, tag);
        assert_eq!(without_notes(row[3]), fields, "the fields of {tag:?}");
    }
    for &tag in Tag::ALL {
        let row = document_row(source, tag);
        assert_eq!(row[2], format!("{:?}", tag.sender()).to_lowercase(), "who sends {tag:?}");
        assert_eq!(row[4], tag.body_bytes_max().to_string(), "the limit of {tag:?}");
    }
    for code in (4_000..4_100).filter_map(|code| CloseCode::try_from(code).ok()) {
        assert!(source.contains(&format!("| {} | `{code:?}` |", u16::from(code))), "no row for {code:?}");
    }
    for fact in [
        format!("| 4 | 2 | version | {VERSION} |"),
        format!("subprotocol `{SUBPROTOCOL}`"),
        format!("A frame has at most {CHUNK_BYTES} bytes"),
        format!("At most {PARTIALS_MAX} messages"),
        format!("at most {GREETING_BYTES_MAX} bytes before `Hello`"),
        format!("at most {NAME_BYTES_MAX} bytes each"),
        format!("the invite at most {INVITE_BYTES_MAX}"),
        format!("at most {REASON_BYTES_MAX} bytes"),
        format!("at least every {PROGRESS_MS} ms"),
        format!("in parts of `part_bytes` (at most {FROZEN_PART_BYTES_MAX})"),
        format!("at most {FROZEN_PARTS_MAX} of them"),
        "`Update`, header included, adds 71 bytes to its body at most, a `Merged` 75".into(),
    ] {
        assert!(prose.contains(&fact), "not in the document: {fact}");
    }
}

/// Returns the cells of the row of `tag` in the table of messages: number, name, sender, fields, limit.
fn document_row(source: &str, tag: Tag) -> Vec<&str> {
    let start = format!("| {} | `{tag:?}` |", tag as u8);
    let row = source.lines().find(|line| line.starts_with(&start));
    let row = row.unwrap_or_else(|| panic!("no row in WIRE.md begins with {start}"));
    row.trim_matches('|').split('|').map(str::trim).collect()
}

/// Returns `cell` without its notes in parentheses.
fn without_notes(cell: &str) -> String {
    let mut rest = cell;
    let mut kept = String::new();
    while let Some((before, after)) = rest.split_once(" (") {
        kept += before;
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    kept + rest
}

/// Returns the names of the fields of `body` in order.
pub(in crate::wire) fn field_names(body: &impl serde::Serialize) -> Vec<String> {
    /// Keys of a map; the values are skipped.
    struct Keys(Vec<String>);

    impl<'de> serde::Deserialize<'de> for Keys {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_map(Self(Vec::new()))
        }
    }

    impl<'de> serde::de::Visitor<'de> for Keys {
        type Value = Self;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a struct")
        }

        fn visit_map<M: serde::de::MapAccess<'de>>(mut self, mut map: M) -> Result<Self, M::Error> {
            while let Some((key, serde::de::IgnoredAny)) = map.next_entry()? {
                self.0.push(key);
            }
            Ok(self)
        }
    }

    let named = rmp_serde::to_vec_named(body).unwrap();
    rmp_serde::from_slice::<Keys>(&named).unwrap().0
}
