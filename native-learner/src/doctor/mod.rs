//! `native-learner doctor`: devices of this machine, the engine that it would use, and whether it reaches a syncer.

mod compute;
mod syncer;

use archipelago::run::Address;
use serde_json::json;

use crate::cli::DoctorArgs;
use crate::exit::{Exit, Failure};
use crate::{machine, show};

/// Result of one check.
struct Finding {
    what: &'static str,
    well: bool,
    /// Result, with a remedy if it is not well.
    text: String,
}

impl Finding {
    fn well(what: &'static str, text: impl Into<String>) -> Self {
        Self { what, well: true, text: text.into() }
    }
}

pub(crate) fn doctor(args: &DoctorArgs) -> Result<(), Failure> {
    let address = args.address()?;
    args.trust.apply()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(Exit::Failed, error))?;
    runtime.block_on(look(args, address.as_ref()))
}

async fn look(args: &DoctorArgs, address: Option<&Address>) -> Result<(), Failure> {
    let (mut findings, figures) = compute::look(&args.compute).await;
    findings.push(memory());
    match address {
        None => findings.push(Finding::well("syncer", "none named; give an address to check it")),
        Some(address) => {
            findings.push(syncer::identity(address));
            findings.push(syncer::http(address).await);
            findings.push(syncer::socket(address).await);
        }
    }
    if args.json {
        let mut all = json!(figures);
        let finding =
            |Finding { what, well, text }: &Finding| json!({"what": what, "well": well, "text": text});
        all["well"] = json!(findings.iter().all(|finding| finding.well));
        all["findings"] = findings.iter().map(finding).collect();
        show::print(&all);
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

fn memory() -> Finding {
    let text = match machine::available_mib() {
        Some(available_mib) => {
            let params = (available_mib << 20) / 24;
            format!(
                "{available_mib} MiB free, enough for models of up to about {} M parameters",
                params / 1_000_000
            )
        }
        None => "this system does not report how much is free".to_owned(),
    };
    Finding::well("memory", text)
}
