//! What one source file declares and names: modules, imports, items and paths.

use super::tokens::{Token, group_end, is};

/// A path such as `crate::wire::Millis`, as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Its segments.
    pub path: Vec<String>,
    /// Where it stands, from 1.
    pub line: usize,
    /// The inline modules around it, outermost first.
    pub inside: Vec<String>,
    /// What an import calls it here; `*` for all that it holds; `None` for a path in the code.
    pub import: Option<String>,
    /// Whether the import passes it on to others.
    pub passed_on: bool,
}

/// What a file declares and names.
#[derive(Debug, Default)]
pub struct Source {
    /// Modules that lie in files of their own: the inline modules around them, then their names.
    pub modules: Vec<Vec<String>>,
    /// Items, with the inline modules around them.
    pub items: Vec<Vec<String>>,
    /// Imports and paths, in their order.
    pub named: Vec<Named>,
}

/// Words before the name of an item.
const ITEMS: &[&str] = &["struct", "enum", "union", "trait", "type", "fn", "const", "static", "macro_rules"];

/// Reads the tokens of one file.
pub fn read(tokens: &[Token<'_>]) -> Source {
    let mut source = Source::default();
    // The inline modules around `at`, and where each ends.
    let mut inside: Vec<(String, usize)> = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        inside.retain(|(_, end)| at < *end);
        let names: Vec<String> = inside.iter().map(|(name, _)| name.clone()).collect();
        let word = tokens[at].text;
        let follows = tokens.get(at + 1).map_or("", |token| token.text);
        if word == "use" && at.checked_sub(1).is_none_or(|before| tokens[before].text != "<") {
            let passed_on =
                at.checked_sub(1).is_some_and(|before| ["pub", ")"].contains(&tokens[before].text));
            let mut tree = Tree { tokens, inside: &names, passed_on, found: &mut source.named };
            at = tree.read(at + 1, &[]);
        } else if word == "mod" && is_name(follows) {
            let path = [names, vec![follows.to_owned()]].concat();
            if is(tokens, at + 2, "{") {
                source.items.push(path);
                inside.push((follows.to_owned(), group_end(tokens, at + 2)));
            } else {
                source.modules.push(path);
            }
            at += 3;
        } else if is_name(word) && follows == "::" && !after_dot_or_path(tokens, at) {
            let (path, end) = path(tokens, at);
            source.named.push(Named {
                path,
                line: tokens[at].line,
                inside: names,
                import: None,
                passed_on: false,
            });
            at = end;
        } else {
            if ITEMS.contains(&word) {
                let name =
                    if follows == "!" { tokens.get(at + 2).map_or("", |token| token.text) } else { follows };
                source.items.push([names, vec![name.to_owned()]].concat());
            }
            at += 1;
        }
    }
    source
}

/// Whether `text` is a word that can begin or be a part of a path.
fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Whether what stands `at` goes on with something, so that it begins no path.
fn after_dot_or_path(tokens: &[Token<'_>], at: usize) -> bool {
    at.checked_sub(1).is_some_and(|before| [".", "::"].contains(&tokens[before].text))
}

/// The path that begins `at`, and the place after it.
fn path(tokens: &[Token<'_>], mut at: usize) -> (Vec<String>, usize) {
    let mut path = vec![tokens[at].text.to_owned()];
    while is(tokens, at + 1, "::") && tokens.get(at + 2).is_some_and(|token| is_name(token.text)) {
        at += 2;
        path.push(tokens[at].text.to_owned());
    }
    (path, at + 1)
}

/// The tree of one `use`.
struct Tree<'a, 'b> {
    tokens: &'a [Token<'a>],
    inside: &'b [String],
    passed_on: bool,
    found: &'b mut Vec<Named>,
}

impl Tree<'_, '_> {
    /// Reads the branch `at`, which hangs on `stem`; the place after it.
    fn read(&mut self, mut at: usize, stem: &[String]) -> usize {
        let line = self.tokens.get(at).map_or(0, |token| token.line);
        let mut path = stem.to_vec();
        while at < self.tokens.len() {
            match self.tokens[at].text {
                "::" => at += 1,
                "{" => {
                    let end = group_end(self.tokens, at);
                    at += 1;
                    while at + 1 < end {
                        at = self.read(at, &path);
                        at += usize::from(is(self.tokens, at, ","));
                    }
                    return end;
                }
                "*" => {
                    self.push(path, line, "*");
                    return at + 1;
                }
                "as" => {
                    let name = self.tokens.get(at + 1).map_or("_", |token| token.text);
                    self.push(path, line, name);
                    return at + 2;
                }
                word if is_name(word) => {
                    path.push(word.to_owned());
                    at += 1;
                }
                _ => break,
            }
        }
        if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
            path.pop();
        }
        if let Some(name) = path.last().cloned() {
            self.push(path, line, &name);
        }
        at
    }

    fn push(&mut self, mut path: Vec<String>, line: usize, name: &str) {
        if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
            path.pop();
        }
        let import = Some(name.to_owned());
        let passed_on = self.passed_on;
        self.found.push(Named { path, line, inside: self.inside.to_vec(), import, passed_on });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::arrows::tokens::tokens;

    /// The paths that `text` names, each with what an import calls it.
    fn check(text: &str, expected: &[(&str, Option<&str>)]) {
        let source = read(&tokens(text));
        let found: Vec<(String, Option<&str>)> =
            source.named.iter().map(|named| (named.path.join("::"), named.import.as_deref())).collect();
        let expected: Vec<(String, Option<&str>)> =
            expected.iter().map(|(path, import)| ((*path).to_owned(), *import)).collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn trees_of_imports_are_cut_into_paths() {
        check("use crate::wire::Millis;", &[("crate::wire::Millis", Some("Millis"))]);
        check(
            "pub use a::{self, b::{C, D as E}, f::*};",
            &[("a", Some("a")), ("a::b::C", Some("C")), ("a::b::D", Some("E")), ("a::f", Some("*"))],
        );
        check("use super::super::x;", &[("super::super::x", Some("x"))]);
    }

    #[test]
    fn what_is_passed_on_is_told_apart() {
        let source = read(&tokens("pub use a::B; pub(super) use c::D; use e::F; fn f() { use g::H; }"));
        let passed_on: Vec<bool> = source.named.iter().map(|named| named.passed_on).collect();
        assert_eq!(passed_on, [true, true, false, false]);
    }

    #[test]
    fn paths_in_the_code_count_too() {
        check("fn f() { crate::a::g(); x.y::<Z>(); }", &[("crate::a::g", None)]);
        check("impl Iterator<Item = wire::Round> for A {}", &[("wire::Round", None)]);
        check("$crate::a::B", &[("crate::a::B", None)]);
    }

    #[test]
    fn modules_and_items_know_where_they_stand() {
        let source = read(&tokens("mod a; pub mod b { mod c; fn d() { super::e::f() } } struct G; mod h;"));
        assert_eq!(source.modules, [vec!["a"], vec!["b", "c"], vec!["h"]]);
        assert_eq!(source.items, [vec!["b"], vec!["b", "d"], vec!["G"]]);
        assert_eq!(source.named[0].inside, ["b"]);
    }
}
