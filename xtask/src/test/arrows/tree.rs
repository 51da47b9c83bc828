//! The modules of every crate of the workspace, and where a path leads.

use std::collections::{BTreeMap, BTreeSet};

use super::imports::{Named, Source, read};
use super::tokens::{tokens, without_tests};

/// Re-exports that are followed before a path is given up.
const HOPS_MAX: usize = 16;

/// A module: the root it hangs on, then its names.
pub type ModulePath = Vec<String>;

/// One module that ships.
#[derive(Debug, Default)]
pub struct Module {
    /// The file that holds it, from the workspace's root.
    pub file: String,
    items: BTreeSet<String>,
    /// Imports by the name that they have here.
    imports: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
}

/// One use of a path by a module that ships.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Use {
    /// The module that uses.
    pub from: ModulePath,
    /// The modules that the path leads to, one for each re-export on the way; the last one holds what is meant.
    pub through: Vec<ModulePath>,
    /// The file of the path.
    pub file: String,
    /// Its line.
    pub line: usize,
    /// Whether it passes something on to others.
    pub passed_on: bool,
}

/// The code of the workspace as it ships, without tests.
#[derive(Debug, Default)]
pub struct Tree {
    /// Every module that ships.
    pub modules: BTreeMap<ModulePath, Module>,
    /// Every file that some root leads to, those for tests included.
    pub reached: BTreeSet<String>,
    named: Vec<(ModulePath, Named)>,
    /// The roots that are libraries: the crate's name in paths.
    libraries: BTreeSet<String>,
}

/// Where a crate or a program begins.
pub struct Root<'a> {
    /// The crate's name in paths, or any other unique name for what is no library.
    pub name: &'a str,
    /// Its file.
    pub file: &'a str,
    /// Whether others can name it.
    pub library: bool,
    /// Whether it only runs as a test.
    pub for_tests: bool,
}

impl Tree {
    /// Adds a root and all that hangs on it. `load` gives the text of a file, or `None` where there is none.
    pub fn grow(&mut self, root: &Root<'_>, load: &dyn Fn(&str) -> Option<String>) {
        if root.library {
            self.libraries.insert(root.name.to_owned());
        }
        self.add(vec![root.name.to_owned()], root.file, root.for_tests, load);
    }

    fn add(&mut self, path: ModulePath, file: &str, tests: bool, load: &dyn Fn(&str) -> Option<String>) {
        let Some(text) = load(file) else { return };
        self.reached.insert(file.to_owned());
        let all = tokens(&text);
        let ships = read(&without_tests(&all));
        for module in read(&all).modules {
            let child_tests = tests || !ships.modules.contains(&module);
            let child = [path.clone(), module.clone()].concat();
            let stem = format!("{}{}", children_of(file, path.len() == 1), module.join("/"));
            let beside = format!("{stem}.rs");
            let file = if load(&beside).is_some() { beside } else { format!("{stem}/mod.rs") };
            self.add(child, &file, child_tests, load);
        }
        if !tests {
            self.keep(&path, file, ships);
        }
    }

    fn keep(&mut self, path: &ModulePath, file: &str, source: Source) {
        let module = |inside: &[String]| [path.clone(), inside.to_vec()].concat();
        let blank = || Module { file: file.to_owned(), ..Module::default() };
        self.modules.insert(path.clone(), blank());
        for item in source.items {
            let (name, inside) = item.split_last().expect("an item has a name");
            self.modules.entry(module(inside)).or_insert_with(blank).items.insert(name.clone());
        }
        for named in source.named {
            let from = module(&named.inside);
            let entry = self.modules.entry(from.clone()).or_insert_with(blank);
            match named.import.as_deref() {
                Some("*") => entry.globs.push(named.path.clone()),
                Some(name) => {
                    entry.imports.insert(name.to_owned(), named.path.clone());
                }
                None => {}
            }
            self.named.push((from, named));
        }
    }

    /// Every use of one module by another one.
    pub fn uses(&self) -> Vec<Use> {
        let mut uses = Vec::new();
        for (from, named) in &self.named {
            let mut through = self.follow(from, &named.path, named.import.is_some(), HOPS_MAX);
            through.retain(|module| module != from);
            if !through.is_empty() {
                let file = self.modules[from].file.clone();
                let (line, passed_on) = (named.line, named.passed_on);
                uses.push(Use { from: from.clone(), through, file, line, passed_on });
            }
        }
        uses
    }

    /// Where `path` leads, seen from `from`: to a module, and on from there if it only passes the item on.
    fn follow(&self, from: &ModulePath, path: &[String], import: bool, hops: usize) -> Vec<ModulePath> {
        let Some(first) = path.first() else { return Vec::new() };
        let mut at = from.clone();
        let mut rest = path;
        match first.as_str() {
            "crate" => {
                at.truncate(1);
                rest = &path[1..];
            }
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|word| word == "super") {
                    at.pop();
                    rest = &rest[1..];
                }
            }
            name if !self.knows(from, name, import.then_some(path)) => {
                if !self.libraries.contains(name) {
                    return Vec::new();
                }
                at = vec![name.to_owned()];
                rest = &path[1..];
            }
            _ => {}
        }
        while let Some(name) = rest.first() {
            let child = [at.clone(), vec![name.clone()]].concat();
            if !self.modules.contains_key(&child) {
                break;
            }
            at = child;
            rest = &rest[1..];
        }
        let mut through = vec![at.clone()];
        if let Some((name, rest)) = rest.split_first()
            && let Some(target) = self.alias(&at, name, path)
            && hops > 0
        {
            through.extend(self.follow(&at, &[target, rest.to_vec()].concat(), true, hops - 1));
        }
        through
    }

    /// Whether `name` is a module or an import of `from`; `own` is the path of the import that asks.
    fn knows(&self, from: &ModulePath, name: &str, own: Option<&[String]>) -> bool {
        let child = [from.clone(), vec![name.to_owned()]].concat();
        let import = self.modules.get(from).and_then(|module| module.imports.get(name));
        self.modules.contains_key(&child) || import.is_some_and(|path| Some(path.as_slice()) != own)
    }

    /// What the module `at` imports as `name`; `asked` is the path that asks, which never answers itself.
    fn alias(&self, at: &ModulePath, name: &str, asked: &[String]) -> Option<Vec<String>> {
        let module = self.modules.get(at)?;
        if module.items.contains(name) {
            return None;
        }
        if let Some(path) = module.imports.get(name) {
            return (path != asked).then(|| path.clone());
        }
        module.globs.iter().find_map(|glob| {
            let target = self.follow(at, glob, true, 1).pop()?;
            let holds = self.modules.get(&target)?;
            let found = holds.items.contains(name) || holds.imports.contains_key(name);
            (found && target != *at).then(|| [glob.clone(), vec![name.to_owned()]].concat())
        })
    }
}

/// The folder of the modules that `file` declares, with the slash.
fn children_of(file: &str, root: bool) -> String {
    let (folder, name) = file.rsplit_once('/').map_or(("", file), |(folder, name)| (folder, name));
    if root || name == "mod.rs" {
        if folder.is_empty() { String::new() } else { format!("{folder}/") }
    } else {
        format!("{}/", file.trim_end_matches(".rs"))
    }
}
