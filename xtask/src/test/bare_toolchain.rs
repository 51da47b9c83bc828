//! Copy of the current toolchain without the standard library for browsers, as on a fresh installation.
//!
//! A local folder serves that library to rustup in place of the network, so that the test works offline. This only
//! works with toolchains that rustup has installed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use crate::cargo::{WASM, root};

/// Rustup's name of the standard library for browsers.
const COMPONENT: &str = "rust-std-wasm32-unknown-unknown";
/// Parts of a toolchain that no build reads.
const UNREAD: [&str; 1] = ["share"];

/// Toolchain without the standard library for browsers.
pub struct BareToolchain {
    /// Rustup's folder.
    home: PathBuf,
    /// Folder that rustup downloads from.
    server: PathBuf,
    /// Folder of the toolchain.
    toolchain: PathBuf,
}

impl BareToolchain {
    /// Creates the toolchain in `folder`. Returns `None` if rustup did not install this toolchain, or it lacks the
    /// library.
    ///
    /// # Errors
    /// A message if a file could not be read or written.
    pub fn make(folder: &Path) -> Result<Option<Self>, String> {
        let Some((name, own)) = installed() else { return Ok(None) };
        let bare = Self {
            home: folder.join("rustup"),
            server: folder.join("server"),
            toolchain: folder.join("rustup/toolchains").join(&name),
        };
        if !own.join("lib/rustlib").join(WASM).is_dir() {
            return Ok(None);
        }
        let left_out = [Path::new("lib/rustlib").join(WASM), Path::new("lib/rustlib").join(manifest())];
        link(&own, &bare.toolchain, &|path| {
            left_out.iter().all(|out| path != out) && UNREAD.iter().all(|out| path != Path::new(out))
        })?;
        let version = name.split('-').next().unwrap_or_default();
        let channel = bare.offer(&own, version)?;
        // These files replace links, so that the original toolchain stays unchanged.
        let rustlib = bare.toolchain.join("lib/rustlib");
        replace(&rustlib.join("multirust-channel-manifest.toml"), |_| channel.clone())?;
        replace(&rustlib.join("components"), |text| without(text, |line| line == COMPONENT))?;
        replace(&rustlib.join("multirust-config.toml"), |text| {
            let stanzas = text.split("\n\n").filter(|stanza| !stanza.contains(WASM));
            stanzas.collect::<Vec<_>>().join("\n\n")
        })?;
        write(&bare.home.join("settings.toml"), "version = \"12\"\nprofile = \"minimal\"\n")?;
        Ok(Some(bare))
    }

    /// Makes `command` use this toolchain instead of the one that runs this program.
    pub fn apply(&self, command: &mut Command) {
        command
            .env("RUSTUP_HOME", &self.home)
            .env_remove("RUSTUP_TOOLCHAIN")
            .env_remove("RUSTUP_AUTO_INSTALL");
        command.env("RUSTUP_DIST_SERVER", format!("file://{}", self.server.display()));
    }

    /// Returns true if the library for browsers is installed.
    pub fn has_target(&self) -> bool {
        self.toolchain.join("lib/rustlib").join(WASM).is_dir()
    }

    /// Packs the library in the form that rustup expects on a server. Returns the server's list of packages.
    fn offer(&self, own: &Path, version: &str) -> Result<String, String> {
        let name = format!("rust-std-{version}-{WASM}");
        let pack = self.server.join("pack").join(&name);
        let content = pack.join(COMPONENT);
        link(&own.join("lib/rustlib").join(WASM), &content.join("lib/rustlib").join(WASM), &|_| true)?;
        copy(&own.join("lib/rustlib").join(manifest()), &content.join("manifest.in"))?;
        write(&pack.join("components"), &format!("{COMPONENT}\n"))?;
        write(&pack.join("rust-installer-version"), "3\n")?;

        let list = own.join("lib/rustlib/multirust-channel-manifest.toml");
        let list = fs::read_to_string(&list).map_err(|error| format!("{}: {error}", list.display()))?;
        let stanza = format!("[pkg.rust-std.target.{WASM}]");
        let address =
            value(&list, &stanza, "url").ok_or("the toolchain's list names no library for browsers")?;
        let path = address.split_once("/dist/").ok_or("the toolchain's list has an unknown form")?.1;
        let archive = self.server.join("dist").join(path);
        folder_of(&archive)?;
        run(Command::new("tar")
            .arg("-C")
            .arg(self.server.join("pack"))
            .arg("-czf")
            .arg(&archive)
            .arg(&name))?;
        let list = changed(&list, &stanza, &sha256(&archive)?);
        let channel = self.server.join(format!("dist/channel-rust-{version}.toml"));
        write(&channel, &list)?;
        write(&channel.with_extension("toml.sha256"), &format!("{}  channel\n", sha256(&channel)?))?;
        Ok(list)
    }
}

/// Returns the name and the folder of the toolchain that runs this program, if rustup has installed it.
fn installed() -> Option<(String, PathBuf)> {
    let name = env::var("RUSTUP_TOOLCHAIN").ok()?;
    let output = Command::new("rustc").args(["--print", "sysroot"]).current_dir(root()).output().ok()?;
    let folder = fs::canonicalize(String::from_utf8_lossy(&output.stdout).trim()).ok()?;
    folder.join("lib/rustlib/multirust-channel-manifest.toml").is_file().then_some((name, folder))
}

/// Returns rustup's name of the file list of [`COMPONENT`].
fn manifest() -> String {
    format!("manifest-{COMPONENT}")
}

/// Returns the value of `key` in the `stanza` of rustup's list.
fn value<'a>(list: &'a str, stanza: &str, key: &str) -> Option<&'a str> {
    let lines =
        list.lines().skip_while(|line| *line != stanza).skip(1).take_while(|line| !line.starts_with('['));
    let line = lines.into_iter().find(|line| line.split(" = ").next() == Some(key))?;
    line.split('"').nth(1)
}

/// Returns rustup's list with the checksum `hash` for the archive of `stanza`, and without other formats.
fn changed(list: &str, stanza: &str, hash: &str) -> String {
    let mut inside = false;
    let mut text = String::with_capacity(list.len());
    for line in list.lines() {
        if line.starts_with('[') {
            inside = line == stanza;
        }
        if inside && line.starts_with("xz_") {
            continue;
        }
        let own = format!("hash = \"{hash}\"");
        text += if inside && line.starts_with("hash = ") { &own } else { line };
        text.push('\n');
    }
    text
}

fn without(text: &str, out: impl Fn(&str) -> bool) -> String {
    text.lines().filter(|line| !out(line)).map(|line| format!("{line}\n")).collect()
}

/// Links all files below `from` into `to`, without copying where the file system permits it. `keep` decides on paths
/// relative to `from`.
fn link(from: &Path, to: &Path, keep: &dyn Fn(&Path) -> bool) -> Result<(), String> {
    link_below(from, Path::new(""), to, keep)
}

fn link_below(from: &Path, below: &Path, to: &Path, keep: &dyn Fn(&Path) -> bool) -> Result<(), String> {
    let folder = from.join(below);
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    fs::create_dir_all(to.join(below)).map_err(failed)?;
    for entry in fs::read_dir(&folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = below.join(entry.file_name());
        if !keep(&path) {
            continue;
        }
        if entry.path().is_dir() {
            link_below(from, &path, to, keep)?;
        } else if fs::hard_link(entry.path(), to.join(&path)).is_err() {
            copy(&entry.path(), &to.join(&path))?;
        }
    }
    Ok(())
}

fn folder_of(file: &Path) -> Result<(), String> {
    let folder = file.parent().unwrap_or(file);
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    folder_of(to)?;
    fs::copy(from, to).map(drop).map_err(|error| format!("{}: {error}", from.display()))
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    folder_of(file)?;
    fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))
}

/// Replaces `file` by a changed copy.
fn replace(file: &Path, change: impl Fn(&str) -> String) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", file.display());
    let text = fs::read_to_string(file).map_err(failed)?;
    fs::remove_file(file).map_err(failed)?;
    write(file, &change(&text))
}

fn run(command: &mut Command) -> Result<String, String> {
    let name = crate::cargo::command_line(command);
    let output = command.output().map_err(|error| format!("`{name}` did not start: {error}"))?;
    let said = String::from_utf8_lossy(if output.status.success() { &output.stdout } else { &output.stderr });
    if output.status.success() { Ok(said.into_owned()) } else { Err(format!("`{name}`: {}", said.trim())) }
}

/// Returns the checksum of `file`, computed by the system's program.
fn sha256(file: &Path) -> Result<String, String> {
    let with = |program: &str, args: &[&str]| run(Command::new(program).args(args).arg(file));
    let said = with("sha256sum", &[]).or_else(|_| with("shasum", &["-a", "256"]))?;
    said.split_whitespace().next().map(str::to_owned).ok_or_else(|| "the checksum is empty".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_archive_of_the_list_is_ours() {
        let list = "[a]\nurl = \"x\"\nhash = \"1\"\nxz_hash = \"2\"\n\
                    [b]\nurl = \"https://h/dist/d/b.gz\"\nhash = \"3\"\nxz_url = \"y\"\n";
        assert_eq!(value(list, "[b]", "url"), Some("https://h/dist/d/b.gz"));
        assert_eq!(value(list, "[b]", "xz_hash"), None);
        let ours = changed(list, "[b]", "4");
        assert_eq!(
            ours,
            "[a]\nurl = \"x\"\nhash = \"1\"\nxz_hash = \"2\"\n[b]\nurl = \"https://h/dist/d/b.gz\"\nhash = \"4\"\n"
        );
    }
}
