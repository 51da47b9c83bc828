//! The syncer-server binary: reads settings, runs a verb, gives its exit code.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use archipelago_cli::{CliError, fail};
use serde_json::json;
use signal_hook::{consts::TERM_SIGNALS, flag};
use syncer_server::{
    Announcement, Cli, Exit, ExportArgs, ServeConfig, ServerError, Verb, bind, examine, export, invite,
    judge, moved, parse, serve,
};
use tracing_subscriber::EnvFilter;

/// Time between two looks at whether a signal came.
const SIGNAL_POLL: Duration = Duration::from_millis(50);

#[tokio::main]
async fn main() -> ExitCode {
    let cli = match parse(std::env::args_os().collect::<Vec<OsString>>()) {
        Ok(cli) => cli,
        Err(CliError::Usage(error)) => match moved(&error) {
            Some(where_to) => return fail(&where_to, Exit::Usage),
            None => error.exit(),
        },
        Err(CliError::File(error, _)) => return fail(&error, Exit::Settings),
    };
    match run(cli).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error, error.exit_code()),
    }
}

async fn run(cli: Cli) -> Result<(), ServerError> {
    match cli.verb {
        Verb::Serve(config) => start(*config).await,
        Verb::Export(args) => take_home(&args),
        Verb::Validate(config) => validate(&config),
        Verb::Doctor(config) => diagnose(&config).await,
    }
}

async fn start(mut config: ServeConfig) -> Result<(), ServerError> {
    log(&config);
    let settings = serde_json::to_string(&config).expect("plain data");
    tracing::info!(settings, "effective settings");
    let listener = bind(&config).await?;
    let address = listener.local_addr();
    let address =
        address.map_err(|source| ServerError::Address { address: config.listen.clone(), source })?;
    let json = config.json;
    let invite = invite(&config)?;
    let coloured = shows_colours(&std::io::stdout());
    let said = Announcement::new(&config, address, invite.as_ref(), coloured);
    config.invite = invite.map(|invite| invite.expose().to_owned());
    match json {
        true => say(&serde_json::to_string(&said).expect("plain data")),
        false => say(&said),
    }
    let status = serve(listener, config, signalled()?).await?;
    match json {
        true => say(&serde_json::to_string(&status).expect("plain data")),
        false => say(&format!(
            "stopped after {} rounds, {} tokens merged, participation {:.3}, held-out loss {}",
            status.core.rounds,
            status.core.tokens_merged,
            status.core.participation,
            status.val_loss_last.map_or_else(|| "not measured".into(), |loss| format!("{loss:.4}")),
        )),
    }
    Ok(())
}

fn take_home(args: &ExportArgs) -> Result<(), ServerError> {
    let exported = export(&args.dir, &args.out)?;
    match args.json {
        true => say(&serde_json::to_string(&exported).expect("plain data")),
        false => say(&format!("wrote {} parameters to {}", exported.params, exported.out.display())),
    }
    Ok(())
}

fn validate(config: &ServeConfig) -> Result<(), ServerError> {
    let checked = syncer_server::validate(config)?;
    let (params, tokens, held_out) = (checked.params, checked.tokens, checked.held_out);
    match config.json {
        true => say(&json!({
            "valid": true, "params": params, "tokens": tokens, "held_out": held_out, "resumes": checked.resumes,
        })),
        false => say(&format!(
            "valid: {params} parameters, {tokens} tokens to train on, {held_out} held out, {}",
            if checked.resumes { "goes on with the run in its folder" } else { "a new run" },
        )),
    }
    Ok(())
}

async fn diagnose(config: &ServeConfig) -> Result<(), ServerError> {
    let findings = examine(config).await;
    for finding in &findings {
        match config.json {
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

/// Resolves at the first signal to stop; a second one stops the process at once.
///
/// # Errors
/// `System`: signals cannot be heard.
fn signalled() -> Result<impl Future<Output = ()> + Send, ServerError> {
    let asked = Arc::new(AtomicBool::new(false));
    for signal in TERM_SIGNALS {
        // In this order: the first signal must not find what it sets itself.
        flag::register_conditional_shutdown(*signal, u8::from(Exit::Stopped).into(), Arc::clone(&asked))
            .and_then(|_| flag::register(*signal, Arc::clone(&asked)))
            .map_err(|source| ServerError::System { what: "cannot listen for signals".into(), source })?;
    }
    Ok(async move {
        while !asked.load(Ordering::Relaxed) {
            tokio::time::sleep(SIGNAL_POLL).await;
        }
        tracing::info!("stopping: learners are told and the run is saved; once more to stop at once");
    })
}

fn log(config: &ServeConfig) {
    let level = if config.quiet { "warn" } else { "info" };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let colour = shows_colours(&std::io::stderr());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colour).init();
}

/// Whether colours are seen, and wanted, on `stream`.
fn shows_colours(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

#[expect(clippy::print_stdout, reason = "the one place that answers on standard output")]
fn say(line: &impl std::fmt::Display) {
    println!("{line}");
}
