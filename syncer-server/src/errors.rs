//! Errors of the program, each with its exit code.

use std::path::PathBuf;

use archipelago_cli::{Bytes, FileError, SettingError, exit_codes};

use crate::demo::DemoError;
use crate::llama::LlamaError;

exit_codes! {
    /// Exit codes of the program.
    pub enum Exit {
        Done = 0, "the command succeeded";
        Failed = 1, "the system or the program failed";
        Usage = 2, "a flag is unknown or malformed";
        Settings = 3, "the configuration file or a combination of settings is wrong";
        DataUnreadable = 4, "the data cannot be read";
        DataEmpty = 5, "the data is empty";
        DataBinary = 6, "the data is not UTF-8 text, or of an unsupported format";
        DataTooSmall = 7, "the data is too small";
        Preset = 8, "no such preset";
        Tokenizer = 9, "the tokenizer cannot be used";
        AddressInUse = 10, "the address is in use";
        Address = 11, "the server cannot listen on the address";
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
        DataLine = 22, "a line of the data is not a document";
        Cluster = 23, "the bus or the storage of a run on several machines cannot be used";
        LossDidNotFall = 24, "demo: the held-out loss did not fall";
        LossNotReached = 25, "demo: --until-loss was not reached";
        WithoutOutcome = 26, "demo: an update has no outcome";
        NotMergedAgain = 27, "demo: the killed learner was not merged again";
        // By shell convention: 128 + SIGINT.
        Stopped = 130, "stopped at once by a second signal; demo: stopped before the end";
    }
}

/// Reasons why a certificate and its key cannot be used. One sentence each.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file is missing or may not be read.
    #[error("cannot read {}: {source}; give --{flag} a file in PEM form", .path.display())]
    Unreadable {
        /// Name of the flag for this file, without `--`.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file is larger than any certificate.
    #[error("{} is larger than {most}: --{flag} takes a file in PEM form", .path.display())]
    TooLarge {
        /// Name of the flag for this file, without `--`.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// The size limit.
        most: Bytes,
    },
    /// The file contains no certificate.
    #[error(
        "{} holds no certificate: give --tls-cert the chain in PEM form, the server's own first",
        .path.display()
    )]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// The file contains no private key.
    #[error("{} holds no private key: give --tls-key one in PEM form, without a passphrase", .path.display())]
    NoKey {
        /// The file.
        path: PathBuf,
    },
    /// The key belongs to another certificate.
    #[error(
        "the key in {} does not belong to the certificate in {}: give a pair that belongs together",
        .key.display(),
        .cert.display()
    )]
    Mismatch {
        /// The file with the key.
        key: PathBuf,
        /// The file with the certificate.
        cert: PathBuf,
    },
    /// The certificate and its key cannot be used.
    #[error(
        "the certificate in {} cannot be used ({why}): give one with an RSA, ECDSA or Ed25519 key",
        .cert.display()
    )]
    Unusable {
        /// The file with the certificate.
        cert: PathBuf,
        /// The reason.
        why: String,
    },
}

/// Reasons why a verb failed. Each message is one sentence: the cause and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The operating system failed in a way that has no variant of its own.
    #[error("{what}: {source}")]
    System {
        /// The attempted action.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// An internal failure: a bug, or a machine in trouble.
    #[error("{what}")]
    Internal {
        /// A description of the failure.
        what: String,
    },
    /// The configuration file cannot be read, or contains an invalid entry.
    #[error(transparent)]
    ConfigFile(#[from] FileError),
    /// A setting is out of range.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// Settings exclude each other or make no sense.
    #[error("{why}")]
    Config {
        /// The cause and the remedy.
        why: String,
    },
    /// The bus or the storage of a cluster cannot be used, or contact with its other processes is lost.
    #[error("{why}")]
    Cluster {
        /// The cause and the remedy.
        why: String,
    },
    /// The certificate or its key cannot be used.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The data is missing or may not be read.
    #[error("cannot read data {}: {source}; give --data a UTF-8 text file or a folder of them", .path.display())]
    DataUnreadable {
        /// File or folder.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The data has no text.
    #[error("data {} is empty: give --data a file or folder with text in it", .path.display())]
    DataEmpty {
        /// File or folder.
        path: PathBuf,
    },
    /// The data is not text.
    #[error("data {} is not UTF-8 text (byte {offset} {why}): {remedy}", .path.display())]
    DataBinary {
        /// The file.
        path: PathBuf,
        /// Offset of the first byte that is not text.
        offset: u64,
        /// The defect.
        why: &'static str,
        /// The remedy.
        remedy: &'static str,
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
    /// A line in a file of documents is not a valid document.
    #[error("line {line} of {}: {why}", .path.display())]
    DataLine {
        /// The file.
        path: PathBuf,
        /// Line number, from 1.
        line: u64,
        /// The cause and the remedy.
        why: String,
    },
    /// There are too few documents to split them into training and held-out ones.
    #[error(
        "the data has {documents} document{}, and training needs at least 2, one of which is held out: give one per \
         line",
        if *.documents == 1 { "" } else { "s" }
    )]
    DataTooFew {
        /// Number of documents.
        documents: usize,
    },
    /// Some files contain a document per line, and others do not.
    #[error(
        "{} has documents in it, but {} is plain text: give --data {}, or a folder with only one kind",
        .lines.display(),
        .other.display(),
        .lines.display()
    )]
    DataMixed {
        /// A file of documents.
        lines: PathBuf,
        /// A file of text.
        other: PathBuf,
    },
    /// There is too little text to train on.
    #[error(
        "the data has {tokens} tokens, read as {read_as}, and training needs at least {tokens_min}: give more text, \
         shorter windows with --context, or a smaller --batch"
    )]
    DataTooSmall {
        /// Description of the tokenisation.
        read_as: String,
        /// Tokens available.
        tokens: u64,
        /// Tokens needed.
        tokens_min: u64,
    },
    /// There is no such preset.
    #[error("{why}")]
    Preset {
        /// The requested name and the existing ones.
        why: String,
    },
    /// A run cannot start from the model in a folder.
    #[error("cannot begin with {}: {why}", .dir.display())]
    Init {
        /// The folder.
        dir: PathBuf,
        /// The cause and the remedy.
        why: LlamaError,
    },
    /// The tokenizer cannot be used.
    #[error("tokenizer: {why}")]
    Tokenizer {
        /// The cause and the remedy.
        why: String,
    },
    /// Another program listens on the address.
    #[error(
        "{address} is in use: stop what listens there, or give --listen another port (port 0 takes a free one)"
    )]
    AddressInUse {
        /// The requested address.
        address: String,
    },
    /// The program cannot listen on the address.
    #[error(
        "cannot listen on {address}: {source}; give --listen an address of this machine and a port, as \
         127.0.0.1:7700 or localhost:7700"
    )]
    Address {
        /// The requested address.
        address: String,
        /// The system's error.
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
        /// Difference between the two runs, in words.
        difference: String,
    },
    /// Another process works in the run directory.
    #[error("{} is in use by another syncer-server: stop that one, or give --dir another folder", .dir.display())]
    DirInUse {
        /// The run directory.
        dir: PathBuf,
    },
    /// A folder that must be empty contains files.
    #[error("{} is not empty: give an empty folder, or one that does not exist yet", .dir.display())]
    DirTaken {
        /// The folder.
        dir: PathBuf,
    },
    /// A folder for a new run contains a file that belongs to no run.
    #[error(
        "{} holds {found}, but no run: give --dir the folder of a run, an empty one, or one that does not exist yet",
        .dir.display()
    )]
    DirForeign {
        /// The folder.
        dir: PathBuf,
        /// The first such file.
        found: String,
    },
    /// The destination of an export contains a file that no export of this run wrote.
    #[error(
        "{} holds {found}, which no export of this run wrote: give --out an empty folder, or --overwrite to replace \
         files with the names of an export's",
        .out.display()
    )]
    OutTaken {
        /// The folder.
        out: PathBuf,
        /// The first such file.
        found: String,
    },
    /// A file in the run directory is damaged or invalid.
    #[error("{}: {why}", .path.display())]
    DirCorrupt {
        /// File or folder.
        path: PathBuf,
        /// The cause and the remedy.
        why: String,
    },
    /// The run directory cannot be written or read.
    #[error("cannot {what} {}: {source}; check space and permissions, or give another folder", .path.display())]
    Disk {
        /// The attempted action.
        what: &'static str,
        /// File or folder.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A change is done, but its outcome cannot be printed.
    #[error("cannot write to standard output: {fault}; {done}")]
    Unshown {
        /// The system's error.
        fault: String,
        /// Description of the change, and the remedy.
        done: String,
    },
    /// The folder has no run.
    #[error(
        "no run is in {}: give --dir the folder of one, or begin one there with `syncer-server serve --dir {}`",
        .dir.display(),
        .dir.display()
    )]
    NoRun {
        /// The folder.
        dir: PathBuf,
    },
    /// The run has no snapshot to export.
    #[error("{} has no snapshot yet: run `syncer-server serve --dir {}` first", .dir.display(), .dir.display())]
    NoSnapshot {
        /// The run directory.
        dir: PathBuf,
    },
    /// `doctor` found a problem.
    #[error("{failed} of {checks} checks failed: see above")]
    Unhealthy {
        /// Failed checks.
        failed: u32,
        /// All checks.
        checks: u32,
    },
    /// The machine has too little memory for the model or the data.
    #[error(
        "the run needs about {needed} of memory, but this machine has {available} free: use a smaller preset or less \
         data"
    )]
    Memory {
        /// Bytes needed.
        needed: Bytes,
        /// Bytes free.
        available: Bytes,
    },
    /// The work was cancelled before its end.
    #[error("stopped before the run was open; no incomplete files are left")]
    Cancelled,
    /// A demo failed, or missed a goal.
    #[error(transparent)]
    Demo(#[from] DemoError),
    /// No syncer answers at an address.
    #[error(
        "no syncer answers at {url} ({why}): start one, give --url its address, or --dir the run's folder"
    )]
    NoSyncer {
        /// The address.
        url: String,
        /// Reason of the failure.
        why: String,
    },
}

impl ServerError {
    /// Returns the process's exit code, one of [`Exit`].
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
            Self::Disk { .. } | Self::Unshown { .. } => Exit::Disk,
            Self::NoRun { .. } | Self::NoSnapshot { .. } => Exit::NoSnapshot,
            Self::Unhealthy { .. } => Exit::Unhealthy,
            Self::Memory { .. } => Exit::Memory,
            Self::NoSyncer { .. } => Exit::NoSyncer,
            Self::Demo(error) => return error.exit_code(),
            Self::Cancelled => Exit::Done,
        };
        exit.into()
    }
}
