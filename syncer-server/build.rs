//! Puts the pages into the program: what `cargo xtask web` left in `web-demo/dist`, each file as it is and
//! compressed. Without that folder, or without the feature `pages`, the program has no pages, and says so to those who
//! ask for them.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

use sha2::{Digest, Sha256};

fn main() {
    let folder = Path::new(&env::var("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../web-demo/dist");
    let mut files = Vec::new();
    if env::var_os("CARGO_FEATURE_PAGES").is_some() {
        println!("cargo::rerun-if-changed={}", folder.display());
        walk(&folder, &mut files);
    } else {
        println!("cargo::rerun-if-changed=build.rs");
    }
    files.sort();
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it"));
    let mut table = String::from("&[\n");
    for (index, file) in files.iter().enumerate() {
        let name =
            file.strip_prefix(&folder).expect("it was found there").to_string_lossy().replace('\\', "/");
        let bytes = fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let packed = out.join(format!("{index}.gz"));
        fs::write(&packed, compress(&bytes)).unwrap_or_else(|error| panic!("{}: {error}", packed.display()));
        let hash: String = Sha256::digest(&bytes)[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        let file = fs::canonicalize(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        writeln!(
            table,
            "    Asset {{ name: {name:?}, etag: \"\\\"{hash}\\\"\", bytes: include_bytes!({file:?}), \
             gzip: include_bytes!({packed:?}) }},",
        )
        .expect("a String takes everything");
    }
    table += "]\n";
    fs::write(out.join("assets.rs"), table).expect("cargo's folder can be written");
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() { walk(&path, files) } else { files.push(path) }
    }
}

fn compress(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("memory takes everything")
}
