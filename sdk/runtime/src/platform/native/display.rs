//! Silencing a graphics driver on machines without a display. There, a layer of the driver complains on standard error
//! that `XDG_RUNTIME_DIR` is not set, although the program draws nothing.

/// The variable, and a value with which the layer finds no display and stays silent.
#[cfg(target_os = "linux")]
const RUNTIME_FOLDER: (&str, &str) = ("XDG_RUNTIME_DIR", "/nonexistent");

/// Replaces this process by the same program with the same arguments and the variable set, if it is not set. A process
/// cannot safely change its own environment. If the restart fails, the program goes on unchanged. Call this function
/// first in `main`.
#[cfg(target_os = "linux")]
pub fn silence_display() {
    use std::os::unix::process::CommandExt;
    use std::{env, process};

    let (name, value) = RUNTIME_FOLDER;
    // The layer accepts only an absolute path.
    if env::var_os(name).is_some_and(|folder| folder.as_encoded_bytes().starts_with(b"/")) {
        return;
    }
    let mut arguments = env::args_os();
    let Some(own) = arguments.next() else { return };
    let _failed = process::Command::new("/proc/self/exe").arg0(own).args(arguments).env(name, value).exec();
}

/// Does nothing: other systems have no such layer.
#[cfg(not(target_os = "linux"))]
pub fn silence_display() {}
