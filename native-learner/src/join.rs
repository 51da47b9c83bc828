//! `native-learner join`: takes part in a run.

use std::cell::RefCell;
use std::rc::Rc;
use std::{process, thread};

use archipelago::run::identity::{IdentityLock, default_folder};
use archipelago::run::{Address, Control, EngineInputs, FrozenSource, RunConfig, run};
use archipelago_cli::Span;
use archipelago_core::wire::RunSpec;
use archipelago_runtime::platform::{Clock, interrupted, sleep};

use crate::cli::JoinArgs;
use crate::compute::Compute;
use crate::exit::{Exit, Failure};
use crate::show::EventPrinter;

/// Time after the first signal during which further signals are ignored, in milliseconds.
const SAME_SIGNAL_MS: u64 = 500;

pub(crate) fn join(args: &JoinArgs) -> Result<(), Failure> {
    let address = args.address()?;
    args.trust.apply()?;
    let control = Control::new();
    control.set_duty_cycle(args.duty_cycle).map_err(Failure::usage)?;
    let identity = identity(args, &address)?;
    listen(control.clone())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(Exit::Failed, error))?;
    runtime.block_on(take_part(args, address, &identity, &control))
}

async fn take_part(
    args: &JoinArgs,
    address: Address,
    identity: &IdentityLock,
    control: &Control,
) -> Result<(), Failure> {
    let mut compute = Compute::open(&args.compute, Clock::start()).await?;
    let run_config = RunConfig {
        address,
        signer: Rc::new(identity.key.clone()),
        name: args.name.clone().unwrap_or_else(|| own_name(super::compute::host_name(), identity.index)),
        device: compute.device(),
        contact_ms_max: args.contact_max.ms(),
        reconnect_ms_max: args.reconnect_max.map(Span::ms),
        run_ms_max: args.run_max.map(Span::ms),
        batch: args.batch,
        weight_cache: args.cache.weight_cache(),
        frozen: FrozenSource::Syncer,
    };
    let mut show = EventPrinter::new(args.output);
    show.begin(&run_config, &identity.path);
    show.notes(compute.take_notes());

    let show = RefCell::new(show);
    let build = async |spec: &RunSpec, inputs: EngineInputs| {
        let built = compute.build(spec, inputs).await;
        show.borrow_mut().notes(compute.take_notes());
        built
    };
    let report = run(run_config, control, build, |event| show.borrow_mut().event(event)).await?;
    show.borrow_mut().end(&report);
    Ok(())
}

/// Returns the default name of a learner: the machine's name, with a number from the machine's second learner on.
fn own_name(host: Option<String>, index: u32) -> String {
    let host = host.unwrap_or_else(|| "learner".to_owned());
    if index == 0 { host } else { format!("{host}-{}", index + 1) }
}

fn identity(args: &JoinArgs, address: &Address) -> Result<IdentityLock, Failure> {
    let found = match (&args.identity, &args.identity_dir) {
        (Some(file), _) => IdentityLock::in_file(file),
        (None, Some(folder)) => IdentityLock::in_folder(folder, address),
        (None, None) => default_folder(|name| std::env::var(name).ok())
            .and_then(|folder| IdentityLock::in_folder(&folder, address)),
    };
    found.map_err(|error| Failure::new(Exit::Identity, error))
}

/// Stops the run in an orderly way at the first signal, and exits immediately at the second. A separate thread waits
/// for signals, because a training step may take long.
fn listen(control: Control) -> Result<(), Failure> {
    let failed = |error| Failure::new(Exit::Failed, format!("cannot listen for Ctrl+C: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let spawned = thread::Builder::new().name("signals".to_owned()).spawn(move || {
        runtime.block_on(async {
            if interrupted().await.is_ok() {
                control.stop();
            }
            // Ctrl+C often arrives twice: from the terminal, which signals all processes in it, and from the parent
            // process.
            sleep(SAME_SIGNAL_MS).await;
            if interrupted().await.is_ok() {
                process::exit(u8::from(Exit::Interrupted).into());
            }
        });
    });
    spawned.map(drop).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn learners_of_one_machine_are_called_by_number_from_the_second_on() {
        let called = |host: Option<&str>, index| own_name(host.map(str::to_owned), index);
        assert_eq!(
            [called(Some("lab"), 0), called(Some("lab"), 1), called(None, 2)],
            ["lab", "lab-2", "learner-3"]
        );
    }
}
