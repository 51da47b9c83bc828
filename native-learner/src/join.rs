//! `native-learner join`: takes part in a run.

use std::cell::RefCell;
use std::process;
use std::thread;

use archipelago::engine::Moments;
use archipelago::platform::{Clock, interrupted};
use archipelago::run::{Control, RunConfig, run};
use archipelago::wire::RunSpec;

use crate::cli::JoinArgs;
use crate::compute::Compute;
use crate::config::JoinConfig;
use crate::identity::{IdentityLock, default_folder};
use crate::show::Show;
use crate::{Exit, Failure, machine};

pub(crate) fn join(args: JoinArgs) -> Result<(), Failure> {
    let config = JoinConfig::new(args).map_err(|error| Failure::new(Exit::Usage, error))?;
    let control = Control::new();
    control.set_duty_cycle(config.duty_cycle).map_err(|error| Failure::new(Exit::Usage, error))?;
    let identity = identity(&config)?;
    listen(control.clone())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(Exit::Failed, error))?;
    runtime.block_on(take_part(&config, &identity, &control))
}

async fn take_part(config: &JoinConfig, identity: &IdentityLock, control: &Control) -> Result<(), Failure> {
    let mut compute = Compute::open(&config.compute, Clock::start()).await?;
    let name = config.name.clone().or_else(machine::host_name).unwrap_or_else(|| "learner".to_owned());
    let run_config = RunConfig {
        address: config.address.clone(),
        identity: identity.identity,
        name: if identity.index == 0 { name } else { format!("{name}-{}", identity.index + 1) },
        device: compute.device(),
        contact_ms_max: config.contact_ms_max,
        reconnect_ms_max: config.reconnect_ms_max,
        run_ms_max: config.run_ms_max,
    };
    let mut show = Show::new(config.output);
    show.begin(&run_config, &identity.path);
    show.notes(compute.take_notes());

    let show = RefCell::new(show);
    let build = async |spec: &RunSpec, moments: Option<Moments>| {
        let built = compute.build(spec, moments).await;
        show.borrow_mut().notes(compute.take_notes());
        built
    };
    let report = run(run_config, control, build, |event| show.borrow_mut().event(event)).await?;
    show.borrow_mut().end(&report);
    Ok(())
}

fn identity(config: &JoinConfig) -> Result<IdentityLock, Failure> {
    let found = match (&config.identity, &config.identity_dir) {
        (Some(file), _) => IdentityLock::in_file(file),
        (None, Some(folder)) => IdentityLock::in_folder(folder, &config.address),
        (None, None) => default_folder(|name| std::env::var(name).ok())
            .and_then(|folder| IdentityLock::in_folder(&folder, &config.address)),
    };
    found.map_err(|error| Failure::new(Exit::Identity, error))
}

/// Ends the run politely at the first signal and at once at the second. On a thread of its own: a
/// step may take long.
fn listen(control: Control) -> Result<(), Failure> {
    let failed = |error| Failure::new(Exit::Failed, format!("cannot listen for Ctrl+C: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let spawned = thread::Builder::new().name("signals".to_owned()).spawn(move || {
        runtime.block_on(async {
            if interrupted().await.is_ok() {
                control.stop();
            }
            if interrupted().await.is_ok() {
                process::exit(i32::from(Exit::Interrupted as u8));
            }
        });
    });
    spawned.map(drop).map_err(failed)
}
