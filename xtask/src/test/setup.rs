//! Stage `setup`: installs missing tools, as root on Debian and its derivatives.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

use super::stages::call;
use super::{Args, MachineFeature, browsers, python};
use crate::cargo::{WASM, cargo, root};
use crate::tools;

/// Debian packages of a Vulkan driver: the loader, and Mesa's drivers, which include the software driver.
const VULKAN: [&str; 2] = ["libvulkan1", "mesa-vulkan-drivers"];
/// Folders in which loaders look for drivers.
const DRIVERS: [&str; 3] = ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d"];
/// Variables that select other drivers.
const VARIABLES: [&str; 2] = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"];

/// Installs missing parts of the toolchain, and the programs that tests need.
///
/// # Errors
/// A message if one is missing, with ways to install it or to go without.
pub fn run(args: &Args) -> Result<String, String> {
    let mut added = Vec::new();
    for component in ["fmt", "clippy"] {
        if cargo(&[component, "--version"]).output().is_ok_and(|output| output.status.success()) {
            continue;
        }
        let name = if component == "fmt" { "rustfmt" } else { component };
        rustup(&["component", "add", name])?;
        added.push(name);
    }
    if tools::add_target()? {
        added.push(WASM);
    }
    added.extend(vulkan(args)?);
    added.extend(browsers::setup(args)?);
    added.extend(python::setup(args)?);
    Ok(if added.is_empty() { String::new() } else { format!("added {}", added.join(", ")) })
}

fn rustup(args: &[&str]) -> Result<(), String> {
    let mut command = Command::new("rustup");
    // In the root, where `rust-toolchain.toml` selects the toolchain.
    command.args(args).current_dir(root());
    call(command).map(drop).map_err(|reason| {
        format!("{reason}; install it with `rustup {}`, or your system's package of it", args.join(" "))
    })
}

/// Installs a missing Vulkan driver. Returns the installed packages.
fn vulkan(args: &Args) -> Result<Vec<&'static str>, String> {
    // Apple's systems have Metal, and Windows drivers include Vulkan.
    if args.is_without(MachineFeature::Gpu) || env::consts::OS != "linux" || has_vulkan() {
        return Ok(Vec::new());
    }
    if install(&VULKAN) && has_vulkan() {
        return Ok(VULKAN.to_vec());
    }
    Err(format!(
        "no Vulkan driver found; install one (on Debian: apt-get install {}), or skip the tests of the GPU engine with \
         --without gpu",
        VULKAN.join(" ")
    ))
}

fn has_vulkan() -> bool {
    let folder_has = |folder: &&str| fs::read_dir(folder).is_ok_and(|mut files| files.next().is_some());
    let drivers = VARIABLES.iter().any(|name| env::var_os(name).is_some()) || DRIVERS.iter().any(folder_has);
    // On Debian, the path of ordinary users does not include `/sbin`.
    let lists = |program: &str| {
        let loaders = Command::new(program).arg("-p").output();
        loaders.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("libvulkan.so.1"))
    };
    drivers && ["ldconfig", "/sbin/ldconfig"].into_iter().any(lists)
}

/// Installs `packages` as root on Debian and its derivatives. Returns false if that is impossible or fails.
pub fn install(packages: &[&str]) -> bool {
    if !(is_root() && Path::new("/usr/bin/apt-get").exists()) {
        return false;
    }
    let apt = |args: &[&str]| {
        let mut command = Command::new("apt-get");
        // A new machine may run its own updates, and mirrors fail now and then.
        command.args(["-o", "DPkg::Lock::Timeout=120", "-o", "Acquire::Retries=3"]);
        command.args(args).args(["-y", "-q"]).env("DEBIAN_FRONTEND", "noninteractive");
        command.status().is_ok_and(|status| status.success())
    };
    let install = [&["install", "--no-install-recommends"], packages].concat();
    apt(&install) || apt(&["update"]) && apt(&install)
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}
