//! What can go wrong from the outside, each with its exit code.

use std::path::PathBuf;

use archipelago_cli::{Bytes, FileError, SettingError, exit_codes};

use crate::llama::LlamaError;

exit_codes! {
    /// How the program ends.
    pub enum Exit {
        Done = 0, "the verb did what it was asked";
        Failed = 1, "the system or the program failed";
        Usage = 2, "a flag is unknown or malformed";
        Settings = 3, "the configuration file or a combination of settings is wrong";
        DataUnreadable = 4, "the data cannot be read";
        DataEmpty = 5, "the data is empty";
        DataBinary = 6, "the data is not UTF-8 text, or of a format that is not read";
        DataTooSmall = 7, "the data is too small";
        Preset = 8, "no such preset";
        Tokenizer = 9, "the tokenizer cannot be used";
        AddressInUse = 10, "the address is in use";
        Address = 11, "the address cannot be listened on";
        OtherRun = 12, "the folder holds another run, or something else";
        DirInUse = 13, "the run directory is in use";
        DirCorrupt = 14, "the run directory is corrupt";
        Disk = 15, "the disk cannot be written or read";
        NoSnapshot = 16, "there is no run, or no snapshot of it yet";
        Unhealthy = 17, "doctor found a failure";
        Memory = 18, "not enough memory";
        Init = 19, "a run cannot begin with the model of the folder that was given";
        NoSyncer = 20, "no syncer answers";
        Certificate = 21, "the certificate or its key cannot be used";
        DataLine = 22, "a line of the data is no document";
        Cluster = 23, "the bus or the storage of a run on several machines cannot be used";
        // As shells count it: 128 + SIGINT.
        Stopped = 130, "stopped at once by a second signal";
    }
}

/// Why a certificate and its key cannot be used. One sentence each.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file is not there or may not be read.
    #[error("cannot read {}: {source}; give --{flag} a file in PEM form", .path.display())]
    Unreadable {
        /// The setting that names it.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is larger than any certificate.
    #[error("{} is larger than {most}: --{flag} takes a file in PEM form", .path.display())]
    TooLarge {
        /// The setting that names it.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What it may have.
        most: Bytes,
    },
    /// There is no certificate in the file.
    #[error(
        "{} holds no certificate: give --tls-cert the chain in PEM form, the server's own first",
        .path.display()
    )]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// There is no private key in the file.
    #[error("{} holds no private key: give --tls-key one in PEM form, without a passphrase", .path.display())]
    NoKey {
        /// The file.
        path: PathBuf,
    },
    /// The key is of another certificate.
    #[error(
        "the key in {} is not that of the certificate in {}: give the two that belong together",
        .key.display(),
        .cert.display()
    )]
    Mismatch {
        /// The file with the key.
        key: PathBuf,
        /// The file with the certificate.
        cert: PathBuf,
    },
    /// The two cannot be used.
    #[error(
        "the certificate in {} cannot be used ({why}): give one of an RSA, ECDSA or Ed25519 key",
        .cert.display()
    )]
    Unusable {
        /// The file with the certificate.
        cert: PathBuf,
        /// What is wrong.
        why: String,
    },
}

/// Why a verb failed. One sentence each: what is wrong, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The operating system failed us in a way that has no variant of its own.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A part of the program failed that should not: a bug, or a machine in trouble.
    #[error("{what}")]
    Internal {
        /// What happened.
        what: String,
    },
    /// The configuration file cannot be read or holds something it should not.
    #[error(transparent)]
    ConfigFile(#[from] FileError),
    /// A setting is out of range.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// Settings that exclude each other, or mean nothing.
    #[error("{why}")]
    Config {
        /// What is wrong and what to do.
        why: String,
    },
    /// What stands between the processes of a run on several machines cannot be used.
    #[error("{why}")]
    Cluster {
        /// What is wrong and what to do.
        why: String,
    },
    /// The certificate or its key cannot be used.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The data is not there or may not be read.
    #[error("cannot read data {}: {source}; give --data a UTF-8 text file or a folder of them", .path.display())]
    DataUnreadable {
        /// File or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The data has no text.
    #[error("data {} is empty: give --data a file or folder with text in it", .path.display())]
    DataEmpty {
        /// File or folder.
        path: PathBuf,
    },
    /// The data is not text.
    #[error("data {} is not UTF-8 text (byte {offset} {why}): convert it to UTF-8 or leave it out", .path.display())]
    DataBinary {
        /// The file.
        path: PathBuf,
        /// First byte that is not text.
        offset: u64,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The data has a format that is not supported.
    #[error("data {} is {found}: {remedy}", .path.display())]
    DataForm {
        /// The file.
        path: PathBuf,
        /// Name of the format.
        found: String,
        /// Remedy, with a command that converts the data.
        remedy: String,
    },
    /// A line of a file of documents is none.
    #[error("line {line} of {}: {why}", .path.display())]
    DataLine {
        /// The file.
        path: PathBuf,
        /// Its number, from 1.
        line: u64,
        /// What is wrong, and what to do.
        why: String,
    },
    /// Documents that cannot be told into those to train on and those to measure on.
    #[error(
        "the data has {documents} document{}, and training needs at least 2, one of which is held out: give one in \
         each line",
        if *.documents == 1 { "" } else { "s" }
    )]
    DataTooFew {
        /// Documents there.
        documents: usize,
    },
    /// Some files have documents in their lines, and others do not.
    #[error(
        "{} has documents in it, and {} is plain text: give --data the one or the other",
        .lines.display(),
        .other.display()
    )]
    DataMixed {
        /// A file of documents.
        lines: PathBuf,
        /// A file of text.
        other: PathBuf,
    },
    /// Too little text to train on.
    #[error(
        "the data has {tokens} tokens, read as {read_as}, and training needs at least {tokens_min}: give more text, \
         shorter windows with --context, or a smaller --batch"
    )]
    DataTooSmall {
        /// Description of how it was read.
        read_as: String,
        /// Tokens there.
        tokens: u64,
        /// Tokens needed.
        tokens_min: u64,
    },
    /// No such preset.
    #[error("{why}")]
    Preset {
        /// Which one was asked for and which there are.
        why: String,
    },
    /// A run cannot begin with the model of a folder.
    #[error("cannot begin with {}: {why}", .dir.display())]
    Init {
        /// The folder.
        dir: PathBuf,
        /// What is wrong and what to do.
        why: LlamaError,
    },
    /// The tokenizer cannot be used.
    #[error("tokenizer: {why}")]
    Tokenizer {
        /// What is wrong and what to do.
        why: String,
    },
    /// Somebody else listens there.
    #[error(
        "{address} is in use: stop what listens there, or give --listen another port (port 0 takes a free one)"
    )]
    AddressInUse {
        /// The address asked for.
        address: String,
    },
    /// The address cannot be listened on.
    #[error(
        "cannot listen on {address}: {source}; give --listen an address of this machine and a port, as \
         127.0.0.1:7700 or localhost:7700"
    )]
    Address {
        /// The address asked for.
        address: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The run directory belongs to another run.
    #[error(
        "{} holds another run ({difference}): give --dir another folder, or the settings of that run",
        .dir.display()
    )]
    OtherRun {
        /// The run directory.
        dir: PathBuf,
        /// What differs.
        difference: String,
    },
    /// Another process works in the run directory.
    #[error("{} is in use by another syncer-server: stop that one, or give --dir another folder", .dir.display())]
    DirInUse {
        /// The run directory.
        dir: PathBuf,
    },
    /// A folder that is to be new holds something.
    #[error("{} is not empty: give a folder that is, or that is not there yet", .dir.display())]
    DirTaken {
        /// The folder.
        dir: PathBuf,
    },
    /// A folder that a run is to be begun in holds what is no run's.
    #[error(
        "{} holds {found}, and no run: give --dir the folder of a run, an empty one, or one that is not there yet",
        .dir.display()
    )]
    DirForeign {
        /// The folder.
        dir: PathBuf,
        /// The first thing there that is no run's.
        found: String,
    },
    /// A folder that a model is to be written to holds what no export of the run wrote.
    #[error(
        "{} holds {found}, which no export of this run wrote: give --out an empty folder, or --overwrite to have \
         files with the names of an export's replaced",
        .out.display()
    )]
    OutTaken {
        /// The folder.
        out: PathBuf,
        /// The first thing there that is in the way.
        found: String,
    },
    /// The run directory cannot be made sense of.
    #[error("{}: {why}", .path.display())]
    DirCorrupt {
        /// File or folder.
        path: PathBuf,
        /// What is wrong and what to do.
        why: String,
    },
    /// The run directory cannot be written or read.
    #[error("cannot {what} {}: {source}; check space and permissions, or give another folder", .path.display())]
    Disk {
        /// The verb.
        what: &'static str,
        /// File or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// There is no run to look at.
    #[error(
        "no run is in {}: give --dir the folder of one, or begin one there with `syncer-server serve --dir {}`",
        .dir.display(),
        .dir.display()
    )]
    NoRun {
        /// The folder.
        dir: PathBuf,
    },
    /// There is nothing to export.
    #[error("{} has no snapshot yet: run `syncer-server serve --dir {}` first", .dir.display(), .dir.display())]
    NoSnapshot {
        /// The run directory.
        dir: PathBuf,
    },
    /// `doctor` found something that will not work.
    #[error("{failed} of {checks} checks failed: see above")]
    Unhealthy {
        /// Checks that failed.
        failed: u32,
        /// Checks made.
        checks: u32,
    },
    /// The model or data is beyond what the machine has.
    #[error(
        "the run needs about {needed} of memory, this machine has {available} free: take a smaller preset or less data"
    )]
    Memory {
        /// Bytes needed.
        needed: Bytes,
        /// Bytes free.
        available: Bytes,
    },
    /// The work was stopped before its end, on demand.
    #[error("stopped before the run was open; nothing is left half-written")]
    Cancelled,
    /// Nobody to ask about a run.
    #[error(
        "no syncer answers at {url} ({why}): start one, give --url its address, or --dir the run's folder"
    )]
    NoSyncer {
        /// Where it was asked.
        url: String,
        /// What went wrong.
        why: String,
    },
}

impl ServerError {
    /// The process's exit code, one of [`Exit`].
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        let exit = match self {
            Self::System { .. } | Self::Internal { .. } => Exit::Failed,
            Self::ConfigFile(_) | Self::Setting(_) | Self::Config { .. } => Exit::Settings,
            Self::Certificate(_) => Exit::Certificate,
            Self::DataUnreadable { .. } => Exit::DataUnreadable,
            Self::DataEmpty { .. } => Exit::DataEmpty,
            Self::DataBinary { .. } | Self::DataForm { .. } => Exit::DataBinary,
            Self::Cluster { .. } => Exit::Cluster,
            Self::DataLine { .. } | Self::DataMixed { .. } => Exit::DataLine,
            Self::DataTooSmall { .. } | Self::DataTooFew { .. } => Exit::DataTooSmall,
            Self::Preset { .. } => Exit::Preset,
            Self::Init { .. } => Exit::Init,
            Self::Tokenizer { .. } => Exit::Tokenizer,
            Self::AddressInUse { .. } => Exit::AddressInUse,
            Self::Address { .. } => Exit::Address,
            Self::OtherRun { .. }
            | Self::DirTaken { .. }
            | Self::DirForeign { .. }
            | Self::OutTaken { .. } => Exit::OtherRun,
            Self::DirInUse { .. } => Exit::DirInUse,
            Self::DirCorrupt { .. } => Exit::DirCorrupt,
            Self::Disk { .. } => Exit::Disk,
            Self::NoRun { .. } | Self::NoSnapshot { .. } => Exit::NoSnapshot,
            Self::Unhealthy { .. } => Exit::Unhealthy,
            Self::Memory { .. } => Exit::Memory,
            Self::NoSyncer { .. } => Exit::NoSyncer,
            Self::Cancelled => Exit::Done,
        };
        exit.into()
    }
}
