//! Machines without a display. There a layer of the graphics driver complains on standard error that
//! `XDG_RUNTIME_DIR` is not set, although nothing is drawn.

/// The variable, and a value with which the layer finds no display and keeps quiet.
#[cfg(target_os = "linux")]
const RUNTIME_FOLDER: (&str, &str) = ("XDG_RUNTIME_DIR", "/nonexistent");

/// Starts this program again with the variable set, if it is not: in this process, with the same arguments. A process
/// cannot safely change its own environment. If the program cannot be started again, it goes on as it is. To be called
/// before anything else is done.
#[cfg(target_os = "linux")]
pub fn silence_display() {
    use std::os::unix::process::CommandExt;
    use std::{env, process};

    let (name, value) = RUNTIME_FOLDER;
    // The layer wants an absolute path.
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
