//! Check of pages against the code: the files that a page names exist, and so do the items that it names in them.

/// Folders with files that a page can name.
const FOLDERS: &[&str] = &[
    "docs/",
    "sdk/",
    "syncer-server/",
    "native-learner/",
    "web-demo/",
    "tests/",
    "xtask/",
    ".ci/",
    ".github/",
];

/// Outputs of builds and runs.
const BUILT: &[&str] = &["web-demo/dist"];

/// Returns the violations in the pages among `names`; `load` returns the text of a file.
pub fn judge(names: &[String], load: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let mut broken = Vec::new();
    for page in names.iter().filter(|name| name.ends_with(".md")) {
        let text = load(page).unwrap_or_default();
        for (number, line) in text.lines().enumerate() {
            let place = format!("{page}:{}", number + 1);
            // Code spans are every second piece.
            for quoted in line.split('`').skip(1).step_by(2) {
                broken.extend(wrong(names, load, quoted).map(|what| format!("{place}: {what}")));
            }
            for target in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                broken.extend(dangling(names, load, page, target).map(|what| format!("{place}: {what}")));
            }
        }
    }
    broken
}

/// Returns the error in `quoted` of a page if it is a path in this repository: `path` or `path::item`.
fn wrong(names: &[String], load: &dyn Fn(&str) -> Option<String>, quoted: &str) -> Option<String> {
    let path_like = FOLDERS.iter().any(|folder| quoted.starts_with(folder))
        && !BUILT.iter().any(|built| quoted.starts_with(built))
        && !quoted.contains([' ', '*', '{', '<']);
    if !path_like {
        return None;
    }
    let (path, item) = quoted.split_once("::").map_or((quoted, None), |(path, item)| (path, Some(item)));
    let path = path.trim_end_matches('/');
    if !names.iter().any(|name| name == path || name.starts_with(&format!("{path}/"))) {
        return Some(format!("`{path}` does not exist; name an existing file"));
    }
    let item = item?;
    let text = load(path)?;
    let defined = ["fn", "struct", "enum", "trait", "const", "type"];
    let found = defined.iter().any(|kind| {
        text.split(&format!("{kind} {item}"))
            .skip(1)
            .any(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    });
    (!found).then(|| format!("`{path}` does not define `{item}`"))
}

/// Returns the error in a link of `page` to `target` if it leads to a page or a folder of this repository.
fn dangling(
    names: &[String],
    load: &dyn Fn(&str) -> Option<String>,
    page: &str,
    target: &str,
) -> Option<String> {
    if target.contains("://") || target.contains(' ') {
        return None;
    }
    let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    let path = if file.is_empty() { page.to_owned() } else { seen_from(page, file)? };
    // `load` returns no text for a picture that exists.
    let is_it = |name: &String| *name == path || name.starts_with(&format!("{path}/"));
    let there = load(&path).is_some() || names.iter().any(is_it);
    if !there {
        return Some(format!("the target of the link `{target}` does not exist"));
    }
    let text = load(&path)?;
    let found = anchor.is_none_or(|anchor| {
        text.lines().filter(|line| line.starts_with('#')).any(|heading| slug(heading) == anchor)
    });
    (!found).then(|| format!("`{path}` has no heading `{}`", anchor.unwrap_or_default()))
}

/// Resolves `file` in a link of `page`; `None` if it leads out of the repository.
fn seen_from(page: &str, file: &str) -> Option<String> {
    let mut folders: Vec<&str> = page.split('/').collect();
    folders.pop();
    for part in file.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                folders.pop()?;
            }
            name => folders.push(name),
        }
    }
    Some(folders.join("/"))
}

/// Returns the anchor of a heading.
fn slug(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || [' ', '-', '_'].contains(c);
    heading
        .trim_start_matches('#')
        .trim()
        .to_lowercase()
        .chars()
        .filter(kept)
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts that a page with `line` breaks `count` rules.
    fn check(line: &str, count: usize) {
        let names = ["A.md", "docs/e.md", "sdk/src/b.rs", "d.gif"].map(str::to_owned);
        let load = |name: &str| match name {
            "A.md" => Some(format!("# One, two\n{line}\n")),
            "sdk/src/b.rs" => Some("struct Long;\nfn there() {}\n".to_owned()),
            _ => None,
        };
        let broken = judge(&names, &load);
        assert_eq!(broken.len(), count, "{line}: {broken:?}");
    }

    #[test]
    fn links_are_seen_from_their_page() {
        let to = |page, file| seen_from(page, file);
        assert_eq!(to("A.md", "docs/e.md").as_deref(), Some("docs/e.md"));
        assert_eq!(to("docs/e.md", "../A.md").as_deref(), Some("A.md"));
        assert_eq!(to("docs/e.md", "f.md").as_deref(), Some("docs/f.md"));
        assert_eq!(to("web-demo/package/README.md", "../../docs/e.md").as_deref(), Some("docs/e.md"));
        assert_eq!(to("A.md", "../elsewhere.md"), None);
    }

    #[test]
    fn files_that_are_named_are_there() {
        check("see `sdk/src/b.rs` and `sdk/src`", 0);
        check("see `sdk/src/c.rs`", 1);
        check("run `sdk/src/c.rs --now`", 0);
        check("`sdk/src/b.rs::there` keeps it", 0);
        check("`sdk/src/b.rs::gone` keeps it", 1);
        check("`sdk/src/b.rs::Lon` keeps it", 1);
    }

    #[test]
    fn links_lead_somewhere() {
        check("[a](A.md#one-two), [b](sdk/src/b.rs), [c](https://host/x)", 0);
        check("[a](#one-two)", 0);
        check("[a](A.md#three)", 1);
        check("[a](C.md)", 1);
        check("[a](docs/e.md), [b](./docs/../A.md#one-two)", 0);
        check("[a](docs/../C.md)", 1);
        check("![a picture is no text](d.gif)", 0);
        check("![a](e.gif)", 1);
    }
}
