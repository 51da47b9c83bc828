//! Generates the JavaScript side of a WebAssembly module: `bindgen MODULE.wasm NAME FOLDER`.
//!
//! This is a separate program, so that `cargo xtask` builds without the library. It uses the library instead of the
//! command-line tool, so that its version matches the module.

use std::path::PathBuf;
use std::process::ExitCode;

use wasm_bindgen_cli_support::Bindgen;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(module), Some(name), Some(folder)) = (args.next(), args.next(), args.next()) else {
        eprintln!("error: say which module, how its files are to be called, and where they go");
        return ExitCode::from(2);
    };
    let made = Bindgen::new()
        .input_path(&module)
        .out_name(&name.to_string_lossy())
        .web(true)
        .map(|bindgen| {
            bindgen.typescript(true).remove_name_section(true).remove_producers_section(true);
            bindgen.omit_default_module_path(false)
        })
        .and_then(|bindgen| bindgen.generate(&folder));
    match made {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}: {error:#}", module.display());
            ExitCode::FAILURE
        }
    }
}
