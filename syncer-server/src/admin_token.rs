//! Authentication of the owner of a run.

use std::path::PathBuf;

use crate::errors::ServerError;
use crate::store::{Store, read_token};

/// The owner's token: either a given one, or the one in the run's folder. The latter is read at each request, so that a
/// rotated token takes effect at once.
#[derive(Clone)]
pub struct AdminToken(Token);

#[derive(Clone)]
enum Token {
    Given(String),
    Kept(PathBuf),
}

impl AdminToken {
    /// Opens the `given` token, or else the one in the folder, which is created if it is missing.
    ///
    /// # Errors
    /// - `Disk`: the file cannot be read or written.
    /// - `System`: the system gives no random numbers.
    pub fn open(store: &Store, given: Option<&str>) -> Result<Self, ServerError> {
        let token = store.admin_token(given)?;
        Ok(Self(match given {
            Some(_) => Token::Given(token),
            None => Token::Kept(store.admin_token_path()),
        }))
    }

    /// Returns true if `shown` is the token. An unreadable or empty file matches no token.
    #[must_use]
    pub fn is(&self, shown: &[u8]) -> bool {
        match &self.0 {
            Token::Given(token) => is_same(shown, token.as_bytes()),
            Token::Kept(path) => {
                read_token(path).ok().flatten().is_some_and(|token| is_same(shown, token.as_bytes()))
            }
        }
    }
}

impl std::fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AdminToken(…)")
    }
}

/// Returns true if `a` equals `b`. For inputs of equal length the time does not depend on the content, so it does not
/// reveal the number of correct bytes.
#[must_use]
pub fn is_same(a: &[u8], b: &[u8]) -> bool {
    let differ = a.iter().zip(b).fold(0, |differ, (x, y)| differ | (x ^ y));
    a.len() == b.len() && std::hint::black_box(differ) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rotated_token_holds_at_once_and_is_never_shown() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open_read_only(dir.path());
        let owner = AdminToken::open(&store, None).unwrap();
        let before = store.admin_token(None).unwrap();
        assert!(owner.is(before.as_bytes()) && !owner.is(b"") && !owner.is(b"other"));
        let after = store.rotate_admin_token().unwrap();
        assert!(owner.is(after.as_bytes()) && !owner.is(before.as_bytes()));
        assert_eq!(store.admin_token(None).unwrap(), after);
        assert!(!format!("{owner:?}").contains(&after));
        std::fs::write(store.admin_token_path(), "\n").unwrap();
        assert!(!owner.is(b"") && !owner.is(b"\n"), "an empty file is nobody's token");
        let given = AdminToken::open(&store, Some("given-by-flag")).unwrap();
        assert!(given.is(b"given-by-flag") && !given.is(after.as_bytes()));
    }

    #[test]
    fn is_same_compares_every_byte() {
        assert!(is_same(b"secret", b"secret") && is_same(b"", b""));
        for other in ["", "secre", "secrets", "tecret", "secreT"] {
            assert!(!is_same(b"secret", other.as_bytes()), "{other}");
        }
    }
}
