//! Tests of formats and of compressed data.

use std::io::Write;

use flate2::Compression as Level;
use flate2::write::GzEncoder;

use super::*;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Level::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

fn read(name: &str, bytes: &[u8]) -> Result<Unpacked, String> {
    text(Path::new(name), bytes.to_vec(), &mut Budget::new(None)).map_err(|error| error.to_string())
}

#[test]
fn compressed_text_is_unpacked() {
    let plain = "the lamp is lit\n".repeat(500);
    for (packed, by) in [(gzip(plain.as_bytes()), "gzip"), (zstd(plain.as_bytes()), "zstd")] {
        let twice = [&packed[..], &packed[..]].concat();
        let found = read("a.txt", &twice).unwrap();
        assert!(found.text == plain.repeat(2) && found.packed_by == Some(by), "{by}");
        let cut = read("a.txt", &packed[..packed.len() - 9]).unwrap_err();
        assert!(
            cut.contains(&format!("{by} data that cannot be unpacked"))
                && cut.contains("download it again if its end is missing, or unpack it with `"),
            "{cut}"
        );
    }
    let empty = b"\x50\x2a\x4d\x18\x04\0\0\0abcd";
    assert_eq!(read("a.zst", &[&empty[..], &zstd(b"lamp"), empty].concat()).unwrap().text, "lamp");
    assert!(read("a.zst", &empty[..10]).unwrap_err().contains("cannot be unpacked"));
    let bom = read("a.txt", "\u{feff}a".as_bytes()).unwrap();
    assert_eq!((&*bom.text, bom.packed_by), ("a", None));
}

/// Goal: a decompression bomb of a few kilobytes is refused before its content fills the memory.
#[test]
fn a_decompression_bomb_is_refused() {
    let zeros = vec![b'a'; 8 << 20];
    for (packed, by) in [(gzip(&zeros), "gzip"), (zstd(&zeros), "zstd")] {
        let why = read("bomb.gz", &packed).unwrap_err();
        assert!(why.contains(&format!("{by} data that unpacks to more than 256 times")), "{why}");
    }
}

/// Goal: unpacking stops at the limit of the memory, and the error has the estimated need of the whole text.
#[test]
fn compressed_text_beyond_the_memory_is_refused() {
    // Hexadecimal digits of squares pack to about half their size.
    let plain: String = (0_u64..400_000).map(|i| format!("{:x}\n", i * i % 1_000_003)).collect();
    for packed in [gzip(plain.as_bytes()), zstd(plain.as_bytes())] {
        let read = |memory| text(Path::new("a.txt"), packed.clone(), &mut Budget::new(Some(memory)));
        let size = plain.len() as u64;
        assert_eq!(read(10 * size).unwrap().text.len() as u64, size);
        let Err(ServerError::Memory { needed, available }) = read(4 * size) else { panic!("it fits") };
        assert!(available.0 == 4 * size && (6 * size..14 * size).contains(&needed.0), "{needed}");
        assert!(matches!(read(9), Err(ServerError::Memory { .. })));
        // Other files of the run have used the memory.
        let mut used = Budget::new(Some(12 * size));
        used.take(size).unwrap();
        let error = text(Path::new("a.txt"), packed.clone(), &mut used).unwrap_err();
        assert_eq!(error.exit_code(), 18, "{error}");
    }
}

#[test]
fn other_formats_are_refused_with_a_command() {
    let check = |name: &str, bytes: &[u8], found: &str, remedy: &str| {
        let why = read(name, bytes).unwrap_err();
        assert!(why.contains(found) && why.contains(remedy) && !why.contains('\n'), "{why}");
    };
    let utf16: Vec<u8> = "\u{feff}lamp".encode_utf16().flat_map(u16::to_le_bytes).collect();
    check(
        "t.parquet",
        b"PAR1\0\0",
        "a Parquet file",
        "data_files='t.parquet', split='train').to_json('t.jsonl')",
    );
    check("t.txt", b"ARROW1\0\0", "an Arrow file", "load_dataset('arrow'");
    check("a b.txt", &utf16, "UTF-16 text", "`iconv -f UTF-16 -t UTF-8 'a b.txt' > 'a b.utf8.txt'`");
    check("t.txt", b"%PDF-1.7\n", "a PDF document", "`pdftotext t.txt");
    check("t.zip", b"PK\x03\x04..", "a zip archive", "`unzip t.zip`");
    check("t.docx", b"PK\x03\x04..", "a word processor", "`pandoc -t plain");
    check("t.bz2", b"BZh91AY&SY..", "bzip2 data", "`bzip2 -dc t.bz2 > t`");
    check("t.xz", b"\xfd7zXZ\0..", "xz data", "`xz -dc t.xz > t`");
    check("t.bin", b"\xfd7zXZ\0..", "xz data", "`xz -dc t.bin > t.unpacked.txt`");
    check("t", b"BZh91AY&SY..", "bzip2 data", "`bzip2 -dc t > t.unpacked.txt`");
    check("t.lz4", b"\x04\x22\x4d\x18..", "lz4 data", "`lz4 -dc t.lz4 > t`");
    check("t.lzma", b"\x5d\0\0\x80\0", "lzma data", "`xz --format=lzma -dc t.lzma > t`");
    check("t.txt", &gzip(&gzip(b"lamp")), "compressed data, packed by gzip", "unpack that as well");
    check("t.txt", &gzip(&zstd(b"lamp")), "compressed data, packed by gzip", "unpack that as well");
    check("t.csv", b"text\nlamp\n", "a table", "csv.DictReader(open('t.csv'");
    check("t.tsv", b"text\nlamp\n", "a table", "delimiter='\\t'");
    check("t.txt", b"prompt,completion\na,b\n", "a table", "csv.DictReader(open('t.txt'");
    check("t.txt", b"\"id\";\"text\"\n1;lamp\n", "a table", "delimiter=';'");
    check("t", b"id\ttext\n1\tlamp\n", "a table", "delimiter='\\t'");
    let events = b"data: {\"text\": \"a\"}\n\ndata: {\"text\": \"b\"}\n\ndata: [DONE]\n";
    check("t.txt", events, "an event stream", "`sed -n 's/^data: *{/{/p' t.txt > t.jsonl`");
    let dicts = "{'text': 'a'}\n{'text': \"it's\"}\n".repeat(40);
    check("t.txt", dicts.as_bytes(), "Python dictionaries", "ast.literal_eval(line.strip().rstrip(','))");
    let headed = format!("Data of run 7:\n{}", dicts.replace('\n', ",\n"));
    check("t.txt", headed.as_bytes(), "Python dictionaries", "if line.lstrip().startswith('{')");
    let list = format!("[{}]", dicts.trim_end().replace('\n', ",\n"));
    check("t.txt", list.as_bytes(), "a list of Python dictionaries", "in ast.literal_eval(open('t.txt', ");
    let denied = "<?xml version=\"1.0\"?>\n<Error><Code>AccessDenied</Code></Error>";
    for refusal in ["Entry not found", "404: Not Found\n", denied] {
        check("t.txt", refusal.as_bytes(), "a server's error message", "download the file again");
        check("t.csv", refusal.as_bytes(), "a server's error message", "download the file again");
    }
    let gated = "Access to dataset a/b is restricted. You must have access to it. Please log in.";
    check("t.jsonl", gated.as_bytes(), "a server's error message", "need a login");
    check(
        "t.txt",
        b"<?xml version=\"1.0\"?><!-- a --><head><title>",
        "an HTML page",
        "download the file again",
    );
    check("t", b"<head>\n<title>Sign in", "an HTML page", "download the file again");
    check("t.json", b"\n<!DOCTYPE html><p>Sign in", "an HTML page", "download the file again");
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 9\n";
    check("t.txt", pointer, "a git-lfs pointer", "`git lfs pull`");
    check("t.jsonl.gz", &gzip(pointer), "packed by gzip", "`git lfs pull`");
    check("t.csv.gz", &gzip(b"text\nlamp\n"), "a table, packed by gzip", "unpack it, and then convert it");
    check("d'a.parquet", b"PAR1\0\0", "a Parquet file", "data_files='d\\x27a.parquet'");
    check("t.txt", b"\xff\xfe\0\0l\0\0\0", "UTF-32 text", "`iconv -f UTF-32 -t UTF-8 t.txt");
    check("t.txt", b"<!-- a -->\n<!doctype html><p>", "an HTML page", "download the file again");
    check("t.rtf", b"{\\rtf1 a}", "a word processor", "`pandoc -f rtf");
    check("t.bin", b"ab\0", "not UTF-8 text (byte 2 is zero", "write the text that is in it to a UTF-8 file");
    check("t.txt", b"caf\xe9", "not UTF-8 text (byte 3", "convert it to UTF-8 or leave it out");
    check("t.bin", b"\x01\x02\xe9", "not UTF-8 text (byte 2", "write the text that is in it");
}

#[test]
fn binary_formats_are_refused_with_a_remedy() {
    let check = |name: &str, bytes: &[u8], found: &str, remedy: &str| {
        let why = read(name, bytes).unwrap_err();
        assert!(why.contains(found) && why.contains(remedy) && !why.contains('\n'), "{why}");
    };
    for text in ["lamp", "свет маяка\r\nво тьме", &"the lamp 💡 ".repeat(99)] {
        let units = || text.encode_utf16();
        let little: Vec<u8> = units().flat_map(u16::to_le_bytes).collect();
        let big: Vec<u8> = units().flat_map(u16::to_be_bytes).collect();
        check("t.csv", &little, "UTF-16 text without", "`iconv -f UTF-16LE -t UTF-8 t.csv > t.utf8.txt`");
        check("t.txt", &big, "UTF-16 text without", "`iconv -f UTF-16BE -t UTF-8 t.txt > t.utf8.txt`");
    }
    check("t.sz", b"\xff\x06\0\0sNaPpY", "snappy data", "`snzip -dc t.sz > t`");
    check("t.avro", b"Obj\x01\x04", "an Avro file", "fastavro.reader(open('t.avro', 'rb'))]\" > t.jsonl`");
    check("t.orc", b"ORC\x0a\x01", "an ORC file", "pandas.read_orc('t.orc').to_json('t.jsonl'");
    check("t.feather", b"FEA1\0\0", "a Feather file", "pandas.read_feather('t.feather')");
    check("t.npy", b"\x93NUMPY\x01\0", "an array of NumPy", "the text that the array was made from");
    check("t.pkl", b"\x80\x04\x95\x05\0", "a Python pickle", "lines of JSON");
    check("t.h5", b"\x89HDF\r\n\x1a\n\0", "an HDF5 file", "h5py");
    check("t.safetensors", b"\x40\0\0\0\0\0\0\0{\"a\":", "the weights of a model", "--init");
    check("t.gguf", b"GGUF\x03\0\0\0", "the weights of a model", "--init");
    check("Thumbs.db", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "Microsoft Office", "leave the file out");
    for text in ["ORCs live here", "FEA1 and GGUF", "Objects", "\u{80}a", "lamps \u{1b}[1m\u{1e}"] {
        assert_eq!(read("t.txt", text.as_bytes()).unwrap().text, text);
    }
}

/// Goal: no command writes to its input or to an existing file.
#[test]
fn commands_write_to_new_files() {
    let dir = tempfile::tempdir().unwrap();
    let check = |name: &str, bytes: &[u8], result: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let why = text(&path, bytes.to_vec(), &mut Budget::new(None)).unwrap_err().to_string();
        let result = dir.path().join(result);
        let is_named =
            |before: &str, after: &str| why.contains(&format!("{before}{}{after}", result.display()));
        let is_written = is_named(" > ", "`") || is_named(" -o ", " ") || is_named("to_json('", "')");
        assert!(is_written && !result.exists(), "{why}");
    };
    let dicts = b"{'text': 'a'}\n{'text': 'b'}\n";
    let events = b"data: {\"text\": \"a\"}\n";
    check("d.jsonl", dicts, "d.2.jsonl");
    check("d.txt", dicts, "d.2.jsonl");
    std::fs::write(dir.path().join("d.2.jsonl"), "mine").unwrap();
    check("d.txt", dicts, "d.3.jsonl");
    check("d.jsonl.gz", &gzip(dicts), "d.3.jsonl");
    check("new.jsonl.gz", &gzip(dicts), "new.2.jsonl");
    check("t.jsonl", b"id,text\n1,lamp\n", "t.2.jsonl");
    check("t.csv", b"id,text\n1,lamp\n", "t.2.jsonl");
    check("e.jsonl", events, "e.2.jsonl");
    check("p.jsonl", b"PAR1\0\0", "p.2.jsonl");
    check("r.txt", b"{\\rtf1 a}", "r.2.txt");
    check("x", b"\xfd7zXZ\0..", "x.unpacked.txt");
    check("x.xz", b"\xfd7zXZ\0..", "x.2");
    check("a.txz", b"\xfd7zXZ\0..", "a.tar");
    check("u.utf8.txt", b"\xff\xfea\0", "u.utf8.utf8.txt");
    #[cfg(unix)]
    std::os::unix::fs::symlink("none", dir.path().join("l.jsonl")).unwrap();
    check("l.txt", dicts, if cfg!(unix) { "l.2.jsonl" } else { "l.jsonl" });
}

#[test]
fn ordinary_text_is_left_alone() {
    let texts = [
        "<p>said he",
        "version 2 of the lamp",
        "PK was here",
        "BZh is a header",
        "a,b\n1,2\n",
        "\u{1f}lamp",
        "Read the prompt, text, output\nof the lamp\n",
        "text\nof the lamp\n",
        "text, lamp",
        "data: {a}\nand so on\n",
        "{'a' is a letter}\n",
        "[{a list}]\n",
        "Not found: a keeper of the lamp\n",
        "Access to the lamp is restricted.\n",
        "<heading>lamps",
        "",
    ];
    for text in texts {
        assert_eq!(read("poem.txt", text.as_bytes()).unwrap().text, text);
    }
    assert!(read("page.html", b"<!doctype html><p>kept as it is").is_ok());
}
