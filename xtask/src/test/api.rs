//! Public items of the SDK's crates, compared with lists that must change with them.
//!
//! The lists come from the documentation: each public item by kind and path, its methods, fields and variants, and the
//! reexports at the root. No item disappears or changes its name unnoticed.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cargo::{root, target_folder};

/// Contents of one list.
struct List {
    /// Name of the crate.
    name: &'static str,
    /// Modules of the crate in the list; empty means all.
    modules: &'static [&'static str],
}

/// Lists of the stable API, on which other projects build.
const PROMISED: [List; 2] =
    [List { name: "archipelago", modules: &[] }, List { name: "archipelago_sim", modules: &["world"] }];

/// Kinds of an item's members that callers use.
const KINDS: [&str; 6] =
    ["associatedconstant", "associatedtype", "method", "structfield", "tymethod", "variant"];

/// Folder of the lists.
const FOLDER: &str = "tests/golden/api";

/// Compares the lists with the documentation of the crates.
///
/// # Errors
/// A message with the differences of each crate.
pub fn check() -> Result<String, String> {
    let (mut counts, mut wrong) = (Vec::new(), Vec::new());
    for list in &PROMISED {
        let found = list.documented()?;
        let known = fs::read_to_string(list.file()).unwrap_or_default();
        let known: Vec<String> = known.lines().map(str::to_owned).collect();
        counts.push(format!("{} of {}", found.len(), list.title()));
        wrong.extend(difference(&list.title(), &known, &found));
    }
    match wrong.is_empty() {
        true => Ok(format!("items: {}", counts.join(", "))),
        false => Err(format!(
            "{}\nif the change is intended, run `cargo xtask test --bless api` and list the change in CHANGELOG.md",
            wrong.join("\n")
        )),
    }
}

/// Writes the lists from the documentation of the crates.
///
/// # Errors
/// A message about a file that could not be read or written.
pub fn write() -> Result<(), String> {
    let failed = |file: &Path, error: std::io::Error| format!("{}: {error}", file.display());
    let folder = root().join(FOLDER);
    fs::create_dir_all(&folder).map_err(|error| failed(&folder, error))?;
    for list in &PROMISED {
        let file = list.file();
        fs::write(&file, list.documented()?.join("\n") + "\n").map_err(|error| failed(&file, error))?;
    }
    Ok(())
}

impl List {
    /// Returns the name of the list in messages.
    fn title(&self) -> String {
        match self.modules {
            [] => self.name.to_owned(),
            modules => format!("{} ({})", self.name, modules.join(", ")),
        }
    }

    /// Returns true if the list covers `item`, a kind and a path.
    fn holds(&self, item: &str) -> bool {
        let first = item.split([' ', ':']).nth(1);
        self.modules.is_empty() || first.is_some_and(|first| self.modules.contains(&first))
    }

    /// Returns the file of the list.
    fn file(&self) -> PathBuf {
        root().join(FOLDER).join(format!("{}.txt", self.name))
    }

    /// Returns the items of the list in the documentation.
    fn documented(&self) -> Result<Vec<String>, String> {
        let mut found = documented_items(&target_folder()?.join("doc").join(self.name))?;
        found.retain(|item| self.holds(item));
        Ok(found)
    }
}

/// Returns the sorted lines `kind path` of all items in the documentation folder `pages`.
fn documented_items(pages: &Path) -> Result<Vec<String>, String> {
    let read = |name: &str| {
        let page = pages.join(name);
        fs::read_to_string(&page).map_err(|error| format!("{}: {error}", page.display()))
    };
    let all = read("all.html")?;
    let items = items(&all);
    let mut found: Vec<String> = exports(&read("index.html")?).map(|name| format!("use {name}")).collect();
    for (target, kind, path) in &items {
        found.push(format!("{kind} {path}"));
        found.extend(members(&read(target)?).map(|(kind, name)| format!("{kind} {path}::{name}")));
    }
    if !found.iter().any(|item| item.starts_with("method ")) {
        return Err(format!("{} shows no methods: rustdoc may have another format now", pages.display()));
    }
    found.sort();
    found.dedup();
    Ok(found)
}

/// Returns page, kind and path of each item that a crate's `all.html` links to.
fn items(html: &str) -> Vec<(&str, &str, &str)> {
    let parts = html.split("<a href=\"").skip(1).filter_map(|link| {
        let (target, rest) = link.split_once("\">")?;
        let (path, _) = rest.split_once("</a>")?;
        let (kind, _) = target.rsplit('/').next()?.strip_suffix(".html")?.split_once('.')?;
        Some((target, kind, path))
    });
    parts.collect()
}

/// Returns the reexports on a crate's first page.
fn exports(html: &str) -> impl Iterator<Item = &str> {
    html.split("id=\"reexport.").skip(1).filter_map(|rest| rest.split('"').next())
}

/// Returns kind and name of an item's own members on its page, without members of traits that it implements.
fn members(html: &str) -> impl Iterator<Item = (&str, &str)> {
    html.split("id=\"").skip(1).filter_map(|rest| {
        let (id, rest) = rest.split_once('"')?;
        let (kind, name) = id.split_once('.')?;
        let class = rest.strip_prefix(" class=\"")?.split('"').next()?;
        (KINDS.contains(&kind) && !class.contains("trait-impl")).then_some((kind, name))
    })
}

/// Returns a line for removed items and a line for new ones.
fn difference(name: &str, known: &[String], found: &[String]) -> Vec<String> {
    let missing = |from: &[String], other: &[String]| {
        from.iter().filter(|item| !other.contains(item)).cloned().collect::<Vec<_>>().join(", ")
    };
    let lines = [("removed from", missing(known, found)), ("added to", missing(found, known))];
    let changed = lines.into_iter().filter(|(_, items)| !items.is_empty());
    changed.map(|(what, items)| format!("{what} {name}: {items}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_pages_show() {
        let html = "<a href=\"#\">All</a><a href=\"index.html\">x</a>\
                    <a href=\"data/struct.Feed.html\">data::Feed</a><a href=\"fn.run.html\">run</a>";
        let expected = [("data/struct.Feed.html", "struct", "data::Feed"), ("fn.run.html", "fn", "run")];
        assert_eq!(items(html), expected);
        let html = "<section id=\"method.new\" class=\"method\">\
                    <section id=\"method.clone\" class=\"method trait-impl\">\
                    <span id=\"structfield.a\" class=\"structfield section-header\"><h2 id=\"fields\" class=\"x\">";
        assert!(members(html).eq([("method", "new"), ("structfield", "a")]));
        assert!(exports("<dt id=\"reexport.Engine\"><code>").eq(["Engine"]));
    }

    #[test]
    fn a_list_of_modules_holds_what_is_in_them() {
        let world = List { name: "x", modules: &["world"] };
        assert!(world.holds("struct world::World") && world.holds("method world::World::new"));
        assert!(!world.holds("struct worlds::A"));
        assert!(List { name: "x", modules: &[] }.holds("use world"));
    }

    #[test]
    fn names_removed_and_added_items() {
        let list = |items: &[&str]| items.iter().map(|&item| item.to_owned()).collect::<Vec<_>>();
        let (known, found) = (list(&["fn a", "fn b"]), list(&["fn a", "fn c"]));
        assert_eq!(difference("x", &known, &found), ["removed from x: fn b", "added to x: fn c"]);
        assert!(difference("x", &known, &known).is_empty());
    }
}
