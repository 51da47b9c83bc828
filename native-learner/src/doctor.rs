//! `native-learner doctor`: checks the devices of this machine, the engine that it would use, and the way to a syncer.

use std::collections::BTreeMap;

use archipelago::run::identity::{IdentityLock, default_folder};
use archipelago::run::{Address, EngineInputs};
use archipelago_cli::plain;
use archipelago_core::model::Preset;
use archipelago_core::wire::{CHUNK_BYTES, CloseCode, SUBPROTOCOL, http};
use archipelago_runtime::engine::gpu::{AdapterFacts, Best, Choice, Form, MemoryPlan, Room, Trial, adapters};
use archipelago_runtime::engine::{AnyEngine, Engine, PresetEstimate, Rehearsal};
use archipelago_runtime::platform::{
    ByteCount, Clock, FetchReply, FetchRequest, Socket, SocketEvent, SocketLimits, fetch,
};
use serde_json::{Value, json};

use crate::cli::{ComputeArgs, DoctorArgs};
use crate::compute::Compute;
use crate::exit::{Exit, Failure};
use crate::show::{self, short};

/// Result of a check.
struct Finding {
    what: &'static str,
    well: bool,
    /// Description of the result, with a remedy if it is a failure.
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
    runtime.block_on(run_checks(args, address.as_ref()))
}

async fn run_checks(args: &DoctorArgs, address: Option<&Address>) -> Result<(), Failure> {
    let (mut findings, figures) = examine_devices(&args.compute).await;
    findings.push(memory());
    match address {
        None => findings.push(Finding::well("syncer", "none named; give an address to check it")),
        Some(address) => {
            findings.push(check_identity(address));
            findings.push(check_http(address).await);
            findings.push(check_socket(address).await);
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
    let text = match super::compute::available_mib() {
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

/// Duration of the training from which the speed is measured, in microseconds.
const TRAIN_US: u64 = 500_000;

/// Examines all GPUs, and trains with the engine that `args` select. Returns the findings for people, and figures for
/// programs.
async fn examine_devices(args: &ComputeArgs) -> (Vec<Finding>, Value) {
    let adapters = adapters().await;
    let mut findings: Vec<Finding> =
        adapters.iter().map(|facts| Finding::well("adapter", describe(facts))).collect();
    if findings.is_empty() {
        findings.push(Finding::well("adapter", "no GPU was found; the CPU can train"));
    }
    let mut figures = json!({
        "asked": args.engine.name(), "adapters": adapters.iter().map(figures_of).collect::<Vec<_>>(),
    });
    match train(args).await {
        Ok(TrainingTest { engine, mut compute, trials, estimates }) => {
            figures["engine"] = json!(engine.kind().name());
            figures["device"] = json!(engine.describe());
            figures["matmul"] = json!(trials);
            let mut text = vec![format!("--engine {} trains with {}", args.engine, engine.describe())];
            text.extend(compute.take_notes());
            findings.push(Finding::well("compute", text.join("; ")));
            let mut models = Vec::new();
            for estimate in estimates {
                models.push(PresetCheck::of(&compute, estimate).await);
            }
            figures["models"] = models.iter().map(PresetCheck::figures).collect();
            findings.push(Finding::well("models", describe_models(&models)));
            let chosen = compute.builder.tunings().last().filter(|_| !trials.is_empty());
            findings.extend(chosen.into_iter().flat_map(|tuning| matmul(&tuning.choice, &trials)));
        }
        Err(failure) => findings.push(Finding { what: "compute", well: false, text: failure.message }),
    }
    (findings, figures)
}

/// Results of brief training with a small model.
struct TrainingTest {
    engine: AnyEngine,
    compute: Compute,
    trials: Vec<Trial>,
    estimates: Vec<PresetEstimate>,
}

/// Trains a small model briefly.
async fn train(args: &ComputeArgs) -> Result<TrainingTest, Failure> {
    let measured = Preset::Small;
    let rehearsal = Rehearsal::new(measured);
    let Rehearsal { spec, tokens } = &rehearsal;
    let failed = |error| Failure::new(Exit::Unwell, error);
    let clock = Clock::start();
    let mut compute = Compute::open(args, clock).await?;
    let mut engine = compute.build(spec, EngineInputs::default()).await.map_err(failed)?;
    rehearsal.load(&mut engine).map_err(failed)?;
    engine.step(tokens, spec.inner.lr_max).await.map_err(failed)?;
    engine.synchronise().await.map_err(failed)?;
    let (start_us, mut trained) = (clock.now_us(), 0);
    while clock.now_us() - start_us < TRAIN_US {
        trained += engine.step(tokens, spec.inner.lr_max).await.map_err(failed)?.tokens;
    }
    engine.synchronise().await.map_err(failed)?;
    let tokens_per_s = trained as f64 * 1e6 / (clock.now_us() - start_us) as f64;
    let estimates = PresetEstimate::of_all(measured, tokens_per_s).map_err(failed)?;
    let trials = compute.trials(spec).await.map_err(failed)?;
    Ok(TrainingTest { engine, compute, trials, estimates })
}

/// Result of checking whether a preset can be trained on this machine.
struct PresetCheck {
    estimate: PresetEstimate,
    /// Reason why the preset cannot be trained; `None` if it can.
    unfit: Option<String>,
    /// Memory that the preset takes on a GPU with one window at a time; `None` on a CPU.
    room: Option<Room>,
}

impl PresetCheck {
    async fn of(compute: &Compute, estimate: PresetEstimate) -> Self {
        match compute.builder.room(&Rehearsal::new(estimate.preset).spec).await {
            Ok(room) => Self { estimate, unfit: None, room },
            Err(error) => Self { estimate, unfit: Some(error.to_string()), room: None },
        }
    }

    fn figures(&self) -> Value {
        let PresetEstimate { preset, params, state_bytes, tokens_per_s } = self.estimate;
        json!({
            "preset": preset.name(), "params": params, "state_bytes": state_bytes,
            "tokens_per_s": tokens_per_s, "unfit": self.unfit,
            "gpu_bytes": self.room.map(|room| room.bytes),
            "thrift": self.room.map(|room| room.memory_plan.to_string()),
        })
    }
}

/// Lists the presets that fit, with their approximate speeds, and those that do not.
fn describe_models(models: &[PresetCheck]) -> String {
    let name = |model: &PresetCheck| model.estimate.preset.name();
    let fast = |model: &PresetCheck| {
        let how = model.room.map(|Room { memory_plan, bytes }| match memory_plan {
            MemoryPlan::NONE => format!(" in {} MiB", bytes.div_ceil(1 << 20)),
            memory_plan => format!(" in {} MiB, where {memory_plan}", bytes.div_ceil(1 << 20)),
        });
        format!("{} about {}{}", name(model), short(model.estimate.tokens_per_s), how.unwrap_or_default())
    };
    let fit: Vec<String> = models.iter().filter(|model| model.unfit.is_none()).map(fast).collect();
    let mut lines = vec![format!("tokens per second, estimated from the preset small: {}", fit.join(", "))];
    lines.extend(models.iter().filter_map(|model| {
        model.unfit.as_ref().map(|reason| format!("{} does not fit: {reason}", name(model)))
    }));
    lines.join("; ")
}

fn describe(facts: &AdapterFacts) -> String {
    let AdapterFacts { name, kind, backend, driver, .. } = facts;
    let mib = |bytes: u64| bytes >> 20;
    let features = [
        ("f16", facts.f16),
        ("timestamps", facts.timestamps),
        ("subgroups", facts.subgroups),
        ("matrix units", facts.matrices),
    ];
    let has: Vec<&str> = features.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect();
    format!(
        "{name}, {kind} by {backend}, driver {driver}; binds {} MiB, buffers to {} MiB; {}; {}",
        mib(facts.binding_bytes_max),
        mib(facts.buffer_bytes_max),
        if has.is_empty() { "no extras".to_owned() } else { format!("has {}", has.join(", ")) },
        facts.unfit.as_ref().map_or_else(|| "fit".to_owned(), |unfit| format!("unusable: {unfit}")),
    )
}

fn figures_of(facts: &AdapterFacts) -> Value {
    json!({
        "name": facts.name, "kind": facts.kind, "backend": facts.backend, "driver": facts.driver,
        "software": facts.software, "binding_bytes_max": facts.binding_bytes_max,
        "buffer_bytes_max": facts.buffer_bytes_max, "f16": facts.f16, "timestamps": facts.timestamps,
        "subgroups": facts.subgroups, "matrices": facts.matrices,
        "unfit": facts.unfit.as_ref().map(ToString::to_string),
    })
}

/// Reports the kernels that were chosen for each form of matrix product, with their speeds, and those for attention.
fn matmul(choice: &Choice, trials: &[Trial]) -> Vec<Finding> {
    let forms = [(Form::Nt, &choice.nt), (Form::Nn, &choice.nn), (Form::Tn, &choice.tn)];
    let finding = |&(form, best): &(Form, &Vec<Best>)| {
        let mut chosen: Vec<String> = best.iter().map(|best| format!("{:?}", best.variant)).collect();
        chosen.dedup();
        let mut shapes: BTreeMap<[u32; 3], String> = BTreeMap::new();
        for Trial { variant, m, n, k, gflops, .. } in trials.iter().filter(|trial| trial.form == form) {
            shapes.entry([*m, *n, *k]).or_default().push_str(&format!(" {variant:?} {gflops:.1}"));
        }
        let shapes = shapes.iter().map(|(shape, speeds)| format!("; GFLOP/s of {shape:?}:{speeds}"));
        Finding::well(
            "matmul",
            format!("{form:?} takes {}{}", chosen.join(" and "), shapes.collect::<String>()),
        )
    };
    let attention = if choice.strips { "matrix units" } else { "32-bit floats" };
    let attention = Finding::well("attention", format!("multiplies on {attention}"));
    forms.iter().map(finding).chain([attention]).collect()
}

fn check_identity(address: &Address) -> Finding {
    let found = default_folder(|name| std::env::var(name).ok())
        .and_then(|folder| IdentityLock::in_folder(&folder, address));
    match found {
        Ok(lock) => Finding { what: "identity", well: true, text: lock.path.display().to_string() },
        Err(error) => Finding { what: "identity", well: false, text: error.to_string() },
    }
}

async fn check_http(address: &Address) -> Finding {
    let url = address.http_url(http::HEALTH);
    let request = FetchRequest {
        url: url.clone(),
        start_byte: 0,
        body_bytes_max: 1 << 20,
        headers: Vec::new(),
        header: "location",
        count: ByteCount::default(),
    };
    match fetch(request).await {
        Ok(reply) if reply.status == 200 && is_page(&reply.body) => Finding {
            what: "http",
            well: false,
            text: format!(
                "{url} answers with a web page: something in between answers, such as the sign-in page of a network; \
                 open the address in a browser"
            ),
        },
        Ok(reply) if reply.status == 200 => {
            Finding { what: "http", well: true, text: format!("{url} answers 200") }
        }
        Ok(FetchReply { status: status @ 300..400, header: Some(location), .. }) => Finding {
            what: "http",
            well: false,
            text: format!("{url} leads to {} (HTTP status {status}): give that address", plain(&location)),
        },
        Ok(reply) => Finding {
            what: "http",
            well: false,
            text: format!("{url} answers {}: this is not a healthy syncer; check the address", reply.status),
        },
        Err(error) => Finding {
            what: "http",
            well: false,
            text: format!(
                "{error}; check that the syncer runs, that the address is right and that no firewall is in between"
            ),
        },
    }
}

/// Returns true if an answer is a web page. A syncer answers with a single word instead.
fn is_page(body: &[u8]) -> bool {
    body.trim_ascii_start().starts_with(b"<")
}

async fn check_socket(address: &Address) -> Finding {
    let url = address.socket_url();
    let limits = SocketLimits { frame_bytes_max: CHUNK_BYTES as usize, queue_bytes_max: 0 };
    let mut socket = Socket::connect(&url, SUBPROTOCOL, limits);
    let (well, text) = match socket.recv().await {
        SocketEvent::Opened => {
            socket.close(CloseCode::Done.into(), "doctor");
            (true, format!("{url} opens and speaks {SUBPROTOCOL}"))
        }
        SocketEvent::Absent { reason } => {
            (false, format!("there is no run at {url}, which {reason}; give the link to the run's own page"))
        }
        SocketEvent::Closed { reason, .. } => {
            (false, format!("{url} does not open: {reason}; a proxy in between must let WebSockets through"))
        }
        SocketEvent::Frame(_) | SocketEvent::Alive => {
            (false, format!("{url} sends data before it is asked: it is not a syncer"))
        }
    };
    Finding { what: "socket", well, text }
}
