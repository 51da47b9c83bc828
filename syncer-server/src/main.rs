//! The syncer-server binary: reads settings, runs a verb, returns its exit code.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use archipelago_cli::{Bytes, CliError, fail, output_fault, say};
use serde_json::json;
use syncer_server::{
    Announcement, BackupArgs, Cli, DemoSetup, Exit, ExportArgs, ForkArgs, Form, ReplayArgs, Reports, Role,
    SampleArgs, ServeConfig, ServerError, Verb, backup, bind, demo, examine, export, fork, hides_names, host,
    inspect, invite, invite_commands, judge, lead, moved, order, owner_token, parse, replayed, report, runs,
    sample, serve_with_callback, steer,
};
use tokio::net::TcpListener;
use tracing_subscriber::EnvFilter;

#[expect(clippy::disallowed_methods, reason = "signals come by the real clock")]
mod signals;

use signals::signalled;

/// Longest wait for background work at exit. Reads and computations that still run then have no further use.
const IDLE_WITHIN: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let cli = match parse(std::env::args_os().collect::<Vec<OsString>>()) {
        Ok(cli) => cli,
        Err(CliError::Usage(error)) => match moved(&error) {
            Some(where_to) => return fail(&where_to, Exit::Usage),
            None => error.exit(),
        },
        Err(CliError::File(error, _)) => return fail(&error, Exit::Settings),
    };
    if let Verb::Guard(args) = &cli.verb {
        return archipelago_cli::process::guard(args);
    }
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("cannot start threads: {error}"), Exit::Failed),
    };
    let serves = matches!(cli.verb, Verb::Serve(_));
    let ended = runtime.block_on(run(cli));
    runtime.shutdown_timeout(IDLE_WITHIN);
    match ended {
        Ok(()) => match output_fault().filter(|_| !serves) {
            Some(error) => fail(&format!("cannot write to standard output: {error}"), Exit::Disk),
            None => ExitCode::SUCCESS,
        },
        Err(error @ ServerError::Cancelled) => {
            tracing::info!("{error}");
            ExitCode::SUCCESS
        }
        Err(error) => fail(&error, error.exit_code()),
    }
}

async fn run(cli: Cli) -> Result<(), ServerError> {
    match cli.verb {
        Verb::Serve(config) => serve_run(*config).await,
        Verb::Demo(setup) => run_demo(*setup).await,
        // `main` has handled this verb, because it needs no runtime.
        Verb::Guard(_) => Ok(()),
        Verb::Runs(args) => runs(&args).map(|text| say(&text)),
        Verb::Run(args) => order(&args).map(|text| say(&text)),
        Verb::Status(args) => inspect::status(&args).map(|text| say(&text)),
        Verb::History(args) => inspect::history(&args).map(|text| say(&text)),
        Verb::Learners(args) => inspect::learners(&args).map(|text| say(&text)),
        Verb::Events(args) => inspect::events(&args).map(|text| say(&text)),
        Verb::Pause(args) => steer::pause(&args).map(|text| say(&text)),
        Verb::Resume(args) => steer::resume(&args).map(|text| say(&text)),
        Verb::Finish(args) => steer::finish(&args).map(|text| say(&text)),
        Verb::Set(args) => steer::set(&args).map(|text| say(&text)),
        Verb::Pace(args) => steer::pace(&args).map(|text| say(&text)),
        Verb::Drop(args) => steer::drop_learner(&args).map(|text| say(&text)),
        Verb::Export(args) => export_model(&args),
        Verb::Backup(args) => backup_run(&args),
        Verb::Sample(args) => write_sample(&args),
        Verb::Replay(args) => replay_tape(&args),
        Verb::Fork(args) => fork_run(&args),
        Verb::Invite(args) => show(&invite_commands::invite(&args)?),
        Verb::Ban(args) => invite_commands::ban(&args).map(|text| say(&text)),
        Verb::Token(args) => show(&invite_commands::token(&args)?),
        Verb::Validate(config) => validate(&config),
        Verb::Doctor(config) => diagnose(&config).await,
    }
}

/// Prints the text of `outcome`. If that fails, the error still describes the change.
fn show(outcome: &invite_commands::Outcome) -> Result<(), ServerError> {
    say(&outcome.text);
    match (output_fault(), &outcome.unshown) {
        (Some(fault), Some(done)) => {
            Err(ServerError::Unshown { fault: fault.to_owned(), done: done.clone() })
        }
        _ => Ok(()),
    }
}

/// Runs a demo on its own thread until the demo or a signal ends it.
async fn run_demo(setup: DemoSetup) -> Result<(), ServerError> {
    #[expect(clippy::disallowed_methods, reason = "the real time since the start")]
    let start = Instant::now();
    let stop = Arc::new(AtomicBool::new(false));
    let (asked, signal) = (Arc::clone(&stop), signalled()?);
    tokio::spawn(async move {
        signal.await;
        asked.store(true, Ordering::Relaxed);
    });
    let ended = tokio::task::spawn_blocking(move || demo(&setup, start, &stop)).await;
    let ended = ended.map_err(|error| ServerError::Internal { what: error.to_string() })?;
    Ok(ended?)
}

async fn serve_run(mut config: ServeConfig) -> Result<(), ServerError> {
    log(&config);
    if config.server.cluster.role == Some(Role::Owner) {
        let json = config.server.json;
        let announce = move || match json {
            true => say(&json!({ "event": "leading" })),
            false => say(&"leading rounds of a run on several machines; gateways serve its learners"),
        };
        return lead(config, announce, signalled()?).await;
    }
    let listener = bind(&config).await?;
    let address = listener.local_addr();
    let address =
        address.map_err(|source| ServerError::Address { address: config.server.listen.clone(), source })?;
    let json = config.server.json;
    if config.server.runs.is_some() {
        return serve_runs(listener, config, address).await;
    }
    let invite = invite(&config)?;
    let coloured = shows_colours(&std::io::stdout());
    let announcement = Announcement::new(&config, address, invite.as_ref(), coloured);
    // Personal invites have no common text; then the setting stays as it is.
    config.invite = invite.map(|invite| invite.expose().to_owned()).or(config.invite);
    // A terminal belongs to the owner; piped output may be read by others.
    let is_owner = !json && std::io::stdout().is_terminal();
    let token = is_owner.then(|| owner_token(&config)).transpose()?;
    let announce = move || {
        match json {
            true => say(&serde_json::to_string(&announcement).expect("plain data")),
            false => say(&announcement),
        }
        if let Some(token) = token {
            say(&format!("for the owner alone: {}", announcement.owner_link(&token)));
        }
    };
    let status = serve_with_callback(listener, config, announce, signalled()?).await?;
    match json {
        true => say(&serde_json::to_string(&status).expect("plain data")),
        false => say(&format!(
            "stopped after {} rounds, {} tokens merged, participation {}, held-out loss {}",
            status.core.rounds,
            status.core.tokens_merged,
            match status.core.tokens_trained {
                0 => "–".to_owned(),
                _ => format!("{:.3}", status.core.participation),
            },
            status.val_loss_last.map_or_else(|| "not measured".into(), |loss| format!("{loss:.4}")),
        )),
    }
    Ok(())
}

/// Serves several runs on one server.
async fn serve_runs(
    listener: TcpListener,
    config: ServeConfig,
    address: SocketAddr,
) -> Result<(), ServerError> {
    let announcement = Announcement::new(&config, address, None, false);
    let json = config.server.json;
    let announce = move || match json {
        true => say(&json!({ "event": "listening", "address": address, "url": announcement.url })),
        false => say(&format!("listening on {}, where the runs are listed", announcement.url)),
    };
    host(listener, config, announce, signalled()?).await
}

fn export_model(args: &ExportArgs) -> Result<(), ServerError> {
    let dir = args.folder.path();
    let form = Form {
        format: args.format()?,
        licence: args.licence.as_deref(),
        merged: args.merged,
        base: args.base.as_deref(),
        is_public: false,
    };
    let exported = export(dir, &args.out, form, args.overwrite)?;
    let (out, tensorboard) = (&*args.out, args.tensorboard.as_deref());
    // Learners were promised that their names stay hidden.
    let hides_names = args.hide_names || hides_names(dir);
    report(dir, Reports { out, tensorboard, hides_names })?;
    match args.json {
        true => say(&serde_json::to_string(&exported).expect("plain data")),
        false => say(&format!("wrote {} parameters to {}", exported.params, exported.out.display())),
    }
    Ok(())
}

fn backup_run(args: &BackupArgs) -> Result<(), ServerError> {
    let copied = backup(&args.dir, &args.to)?;
    match args.json {
        true => say(&serde_json::to_string(&copied).expect("plain data")),
        false => say(&format!(
            "copied run {} up to decision {} to {}: {}",
            copied.run,
            copied.decision,
            copied.to.display(),
            Bytes(copied.bytes),
        )),
    }
    Ok(())
}

fn write_sample(args: &SampleArgs) -> Result<(), ServerError> {
    if args.json {
        let written = sample(args, |_| Ok(()))?;
        say(&serde_json::to_string(&written).expect("plain data"));
        return Ok(());
    }
    // The prompt comes first, once the model has begun: an error is not preceded by it. An answer to a question is
    // written without the prompt. If the reader closes the pipe, writing stops without an error.
    let mut before = if args.chat.is_some() { "" } else { &*args.prompt };
    sample(args, |piece| archipelago_cli::write(format_args!("{}{piece}", std::mem::take(&mut before))))?;
    archipelago_cli::write("\n").ok();
    Ok(())
}

fn replay_tape(args: &ReplayArgs) -> Result<(), ServerError> {
    let found = replayed(args, |merge| match (args.merges, args.json) {
        (false, _) => {}
        (true, true) => say(&serde_json::to_string(merge).expect("plain data")),
        (true, false) => say(merge),
    })?;
    match args.json {
        true => say(&serde_json::to_string(&found).expect("plain data")),
        false => say(&found),
    }
    Ok(())
}

fn fork_run(args: &ForkArgs) -> Result<(), ServerError> {
    let forked = fork(args)?;
    match args.json {
        true => say(&serde_json::to_string(&forked).expect("plain data")),
        false => say(&format!(
            "run {} begins in {} after decision {} of run {}, with {} merged tokens{}: continue with `syncer-server \
             serve --dir {}`",
            forked.run,
            forked.to.display(),
            forked.at,
            forked.of,
            forked.tokens_merged,
            forked.dropped_stop.map_or_else(String::new, |stop| format!(
                ", and without --stop-at-tokens {stop}, which it has passed"
            )),
            forked.to.display(),
        )),
    }
    Ok(())
}

fn validate(config: &ServeConfig) -> Result<(), ServerError> {
    let checked = syncer_server::validate(config)?;
    // If standard error is closed, warnings are lost.
    checked.warnings.iter().for_each(|warning| drop(writeln!(std::io::stderr(), "warning: {warning}")));
    let (params, text, room) = (checked.params, checked.text, checked.room);
    let (tokens, held_out) = (text.tokens, text.held_out);
    match config.server.json {
        true => say(&json!({
            "valid": true, "params": params, "adapters": checked.adapters, "tokens": tokens, "heldOut": held_out,
            "resumes": checked.resumes, "warnings": checked.warnings, "readAs": text.read_as, "learnt": text.targets,
            "documents": text.documents, "documentsLonger": text.longer, "stepsAPass": text.steps,
            "passes": text.passes, "diskBytes": room.needed, "diskFreeBytes": room.free,
        })),
        false => {
            say(&format!(
                "valid: {}, {tokens} tokens to train on, {held_out} held out, {}",
                checked.adapters.map_or_else(|| format!("{params} parameters"), |it| it.describe(params)),
                if checked.resumes { "resumes the run in its folder" } else { "a new run" },
            ));
            let [read, pass] = text.describe();
            say(&format!("data: {read}\ntime: {pass}\ndisk: {}", room.describe()));
        }
    }
    Ok(())
}

async fn diagnose(config: &ServeConfig) -> Result<(), ServerError> {
    let findings = examine(config).await;
    for finding in &findings {
        match config.server.json {
            true => say(&serde_json::to_string(finding).expect("plain data")),
            false => say(&format!(
                "{} {:8} {}",
                if finding.works { "ok  " } else { "FAIL" },
                finding.what,
                finding.found
            )),
        }
    }
    judge(&findings)
}

fn log(config: &ServeConfig) {
    let level = if config.server.quiet { "warn" } else { "info" };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let colour = shows_colours(&std::io::stderr());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colour)
        // A line that cannot be written is lost. Without this setting, the library would report it on standard error
        // and panic there.
        .log_internal_errors(false)
        .init();
}

/// Returns true if colours are supported and wanted on `stream`.
fn shows_colours(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none()
}
