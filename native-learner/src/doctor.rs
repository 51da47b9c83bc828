//! `native-learner doctor`: what this machine has, and whether it reaches a syncer.

use archipelago::data::BYTE_VOCAB;
use archipelago::engine::Trainer;
use archipelago::engine::cpu::CpuTrainer;
use archipelago::model::Preset;
use archipelago::platform::{FetchRequest, Socket, SocketEvent, SocketLimits, fetch};
use archipelago::run::Address;
use archipelago::wire::{CHUNK_BYTES, CloseCode, SUBPROTOCOL};
use serde_json::json;

use crate::cli::DoctorArgs;
use crate::identity::{IdentityLock, default_folder};
use crate::{Exit, Failure, machine, show};

/// One thing looked at.
struct Finding {
    what: &'static str,
    well: bool,
    /// What was found, and what to do if it is not well.
    text: String,
}

pub(crate) fn doctor(args: &DoctorArgs) -> Result<(), Failure> {
    let mut findings = vec![compute(), memory()];
    match args.syncer.as_deref().map(str::parse::<Address>) {
        None => findings.push(Finding {
            what: "syncer",
            well: true,
            text: "none named; give an address to try it".to_owned(),
        }),
        Some(Err(error)) => return Err(Failure::new(Exit::Usage, error)),
        Some(Ok(address)) => {
            findings.push(identity(&address));
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|error| Failure::new(Exit::Failed, error))?;
            findings.extend(runtime.block_on(async { [http(&address).await, socket(&address).await] }));
        }
    }
    if args.json {
        let all: Vec<_> = findings
            .iter()
            .map(|finding| json!({"what": finding.what, "well": finding.well, "text": finding.text}))
            .collect();
        show::print(&json!({"well": findings.iter().all(|finding| finding.well), "findings": all}));
    } else {
        for Finding { what, well, text } in &findings {
            show::write(format_args!("{} {what}: {text}\n", if *well { "ok  " } else { "FAIL" }));
        }
    }
    match findings.iter().find(|finding| !finding.well) {
        None => Ok(()),
        Some(finding) => Err(Failure::new(Exit::Unwell, format!("{}: {}", finding.what, finding.text))),
    }
}

fn compute() -> Finding {
    let preset = Preset::Tiny;
    let built = CpuTrainer::new(&preset.model(BYTE_VOCAB), &preset.inner(), machine::cores());
    match built {
        Ok(trainer) => Finding { what: "compute", well: true, text: trainer.describe() },
        Err(error) => Finding { what: "compute", well: false, text: error.to_string() },
    }
}

fn memory() -> Finding {
    let text = match machine::available_mib() {
        Some(available_mib) => {
            let params = (available_mib << 20) / 24;
            format!("{available_mib} MiB free, for models of up to about {} M parameters", params / 1_000_000)
        }
        None => "this system does not say how much is free".to_owned(),
    };
    Finding { what: "memory", well: true, text }
}

fn identity(address: &Address) -> Finding {
    let found = default_folder(|name| std::env::var(name).ok())
        .and_then(|folder| IdentityLock::in_folder(&folder, address));
    match found {
        Ok(lock) => Finding { what: "identity", well: true, text: lock.path.display().to_string() },
        Err(error) => Finding { what: "identity", well: false, text: error.to_string() },
    }
}

async fn http(address: &Address) -> Finding {
    let url = address.http_url("/healthz");
    let request = FetchRequest { url: url.clone(), start_byte: 0, body_bytes_max: 1 << 20, header: "server" };
    match fetch(request).await {
        Ok(reply) if reply.status == 200 => {
            Finding { what: "http", well: true, text: format!("{url} answers 200") }
        }
        Ok(reply) => Finding {
            what: "http",
            well: false,
            text: format!("{url} answers {}: something else than a healthy syncer is there", reply.status),
        },
        Err(error) => Finding {
            what: "http",
            well: false,
            text: format!(
                "{error}; see that the syncer runs, the address is right and no firewall is between"
            ),
        },
    }
}

async fn socket(address: &Address) -> Finding {
    let url = address.socket_url();
    let limits = SocketLimits { frame_bytes_max: CHUNK_BYTES as usize, queue_bytes_max: 0 };
    let mut socket = Socket::connect(&url, SUBPROTOCOL, limits);
    let (well, text) = match socket.recv().await {
        SocketEvent::Opened => {
            socket.close(CloseCode::Done.into(), "doctor");
            (true, format!("{url} opens and speaks {SUBPROTOCOL}"))
        }
        SocketEvent::Closed { reason, .. } => {
            (false, format!("{url} does not open: {reason}; a proxy in between must let WebSockets through"))
        }
        SocketEvent::Frame(_) => (false, format!("{url} speaks before it is asked: it is no syncer")),
    };
    Finding { what: "socket", well, text }
}
