//! A Vulkan driver for the tests of the GPU engine; without a GPU, Mesa's software one.

use std::{env, fs, process::Command};

use super::apt;

/// Debian's packages: the loader, and Mesa's drivers with the software one among them.
const PACKAGES: [&str; 2] = ["libvulkan1", "mesa-vulkan-drivers"];
/// Where loaders look for drivers.
const FOLDERS: [&str; 3] = ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d"];
/// Variables that name drivers elsewhere.
const VARIABLES: [&str; 2] = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"];

/// Sees to it that there is a driver; what it installed, if anything.
///
/// # Errors
/// A sentence: there is none, and how to get one or to do without.
pub fn setup() -> Result<Option<String>, String> {
    let switched_off = env::var("GPU_TESTS").is_ok_and(|value| value == "no");
    // Apple's systems have Metal, Windows' drivers bring Vulkan along.
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
    // Debian's users other than root do not have `/sbin` among the folders of programs.
    let lists = |program: &str| {
        let loaders = Command::new(program).arg("-p").output();
        loaders.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("libvulkan.so.1"))
    };
    drivers && ["ldconfig", "/sbin/ldconfig"].into_iter().any(lists)
}
