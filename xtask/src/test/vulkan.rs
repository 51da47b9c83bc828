//! Vulkan driver for the tests of the GPU engine; without a GPU, Mesa's software driver.

use std::{env, fs, process::Command};

use super::apt;

/// Debian packages: the loader, and Mesa's drivers, which include the software driver.
const PACKAGES: [&str; 2] = ["libvulkan1", "mesa-vulkan-drivers"];
/// Folders in which loaders look for drivers.
const FOLDERS: [&str; 3] = ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d"];
/// Variables that select other drivers.
const VARIABLES: [&str; 2] = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"];

/// Installs a missing driver. Returns the installed packages.
///
/// # Errors
/// A message if no driver is available, with ways to install one or to go without.
pub fn setup() -> Result<Option<String>, String> {
    let switched_off = env::var("GPU_TESTS").is_ok_and(|value| value == "no");
    // Apple's systems have Metal, and Windows drivers include Vulkan.
    if switched_off || env::consts::OS != "linux" || installed() {
        return Ok(None);
    }
    let packages = PACKAGES.join(" ");
    let by_hand = format!(
        "there is no Vulkan driver: install one (on Debian: apt-get install {packages}), or set GPU_TESTS=no to \
         go without the tests of the GPU engine"
    );
    if apt::install(&PACKAGES) && installed() { Ok(Some(packages)) } else { Err(by_hand) }
}

fn installed() -> bool {
    let folder_has = |folder: &&str| fs::read_dir(folder).is_ok_and(|mut files| files.next().is_some());
    let drivers = VARIABLES.iter().any(|name| env::var_os(name).is_some()) || FOLDERS.iter().any(folder_has);
    // On Debian, the path of ordinary users does not include `/sbin`.
    let lists = |program: &str| {
        let loaders = Command::new(program).arg("-p").output();
        loaders.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("libvulkan.so.1"))
    };
    drivers && ["ldconfig", "/sbin/ldconfig"].into_iter().any(lists)
}
