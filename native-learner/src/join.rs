//! `native-learner join`: takes part in a run.

use std::process;
use std::thread;

use archipelago::diloco::Layout;
use archipelago::engine::cpu::CpuTrainer;
use archipelago::engine::{EngineError, HostEngine, Moments};
use archipelago::model::layout;
use archipelago::platform::interrupted;
use archipelago::run::{Control, RunConfig, run};
use archipelago::wire::RunSpec;

use crate::cli::JoinArgs;
use crate::config::JoinConfig;
use crate::identity::{IdentityLock, default_folder};
use crate::show::Show;
use crate::{Exit, Failure, machine};

/// Copies of the parameters that a learner holds: θ, gradient, two moments, Θ̂ and what was reported.
const COPIES: u64 = 6;

pub(crate) fn join(args: JoinArgs) -> Result<(), Failure> {
    let config = JoinConfig::new(args).map_err(|error| Failure::new(Exit::Usage, error))?;
    let control = Control::new();
    control.set_duty_cycle(config.duty_cycle).map_err(|error| Failure::new(Exit::Usage, error))?;
    let identity = identity(&config)?;
    let threads = config.threads.unwrap_or_else(machine::cores);
    let name = config.name.clone().or_else(machine::host_name).unwrap_or_else(|| "learner".to_owned());
    let run_config = RunConfig {
        address: config.address.clone(),
        identity: identity.identity,
        name: if identity.index == 0 { name } else { format!("{name}-{}", identity.index + 1) },
        device: format!("cpu, {threads} thread{}", if threads.get() == 1 { "" } else { "s" }),
        contact_ms_max: config.contact_ms_max,
        reconnect_ms_max: config.reconnect_ms_max,
        run_ms_max: config.run_ms_max,
    };
    let mut show = Show::new(config.output);
    show.begin(&run_config, &identity.path);

    listen(control.clone())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(Exit::Failed, error))?;
    // Host memory is not lost, so there never are moments to go on with.
    let build = async |spec: &RunSpec, _: Option<Moments>| {
        let layout = layout(&spec.model).map_err(EngineError::from)?;
        check_memory(&layout)?;
        HostEngine::new(spec, CpuTrainer::new(&spec.model, &spec.inner, threads)?)
    };
    let report = runtime.block_on(run(run_config, &control, build, |event| show.event(event)))?;
    show.end(&report);
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

/// Better to refuse than to be killed for memory in the middle of a run.
fn check_memory(layout: &Layout) -> Result<(), EngineError> {
    let needed_mib = (COPIES * 4 * layout.len() as u64) >> 20;
    match machine::available_mib() {
        Some(available_mib) if needed_mib > available_mib => {
            Err(EngineError::HostMemory { needed_mib, available_mib })
        }
        _ => Ok(()),
    }
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
