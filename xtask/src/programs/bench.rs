//! Benchmarks that need the SDK; `cargo xtask bench` runs this program and shows its output.
//!
//! `learner` measures one learner's steps without a network. `merge` and `codec` measure merging and coding of
//! fragments on one thread, compared with a plain copy of memory; their cases alternate, so that noise of a shared
//! machine affects all of them.

#![expect(clippy::print_stdout, reason = "a command line tool answers on standard output")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]

use std::num::{NonZeroU16, NonZeroUsize};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use archipelago_core::diloco::{
    CheckedBody, Codec, FragmentId, FragmentState, Fragments, LearnerId, MergeClass, MergeJob, MergeRule,
    OuterSpec, Round, Segment, Version, WeightedUpdate,
};
use archipelago_core::model::{Preset, layout};
use archipelago_core::wire::{ApplyPolicy, Code, ExchangeSpec, InnerSpec, Optimiser};
use archipelago_runtime::engine::Trainer;
use archipelago_runtime::engine::cpu::CpuTrainer;
use serde_json::{Value, json};

/// Number of measurements of each case of `merge` and `codec`; their median is the result.
const RUNS: usize = 7;
/// Minimum length of a timed measurement; shorter work is repeated.
const TIMED_MIN: Duration = Duration::from_millis(20);
const COPY_BYTES: usize = 256 << 20;
/// Values of a segment, which is a piece of a large tensor. A fragment has several segments.
const SEGMENT_VALUES: usize = 1 << 20;
const BLOCK: u32 = 256;
/// Number of fragments of a run.
const FRAGMENTS: NonZeroU16 = NonZeroU16::new(8).expect("not 0");
const FRAGMENT_VALUES: [usize; 3] = [100_000, 1_000_000, 15_000_000];
/// Number of byte tokens.
const VOCAB: u32 = 256;
/// Minimum length of a measurement; shorter steps are repeated.
const WINDOW_MIN: Duration = Duration::from_millis(300);

/// Runs the benchmark named by the first argument, and prints its figures as one line of JSON.
fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    let measure: fn() -> Value = match name.as_str() {
        "learner" => learner,
        "merge" => merge,
        "codec" => codec,
        _ => {
            eprintln!("error: unknown benchmark `{name}`; choose learner, merge or codec");
            return ExitCode::from(2);
        }
    };
    println!("{}", measure());
    ExitCode::SUCCESS
}

/// Measures tokens a second. `tokens_per_s`, `threads` and `params` belong to the preset `small` on all cores, the
/// shape for comparison with other trainers; `presets` has the rest. Each rate is the median of several measurements,
/// and `best` is the fastest. `muon_percent` is the additional time of a step with Muon.
fn learner() -> Value {
    let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let mut rows = Vec::new();
    for (preset, windows) in [(Preset::Tiny, 7), (Preset::Small, 7), (Preset::Medium, 3), (Preset::Base, 1)] {
        let alone = matches!(preset, Preset::Medium | Preset::Base);
        for threads in if alone { vec![cores] } else { doubling(cores) } {
            rows.push(measure(preset, threads, windows));
        }
    }
    let compared = rows.iter().rfind(|row| row["preset"] == Preset::Small.name()).cloned();
    let mut figures = compared.expect("small is one of the presets");
    figures["presets"] = Value::Array(rows);
    figures
}

/// Returns 1, 2, 4 and so on, and `most`.
fn doubling(most: NonZeroUsize) -> Vec<NonZeroUsize> {
    let mut counts: Vec<NonZeroUsize> =
        (0..usize::BITS).map_while(|i| NonZeroUsize::new(1 << i)).take_while(|&count| count < most).collect();
    counts.push(most);
    counts
}

fn measure(preset: Preset, threads: NonZeroUsize, windows: usize) -> Value {
    let (model, inner) = (preset.model(VOCAB), preset.inner());
    let mut trainer = CpuTrainer::new(&model, &inner, threads).expect("presets are valid");
    // Step time does not depend on the tokens.
    let tokens: Vec<u32> =
        (0..inner.batch * (model.context + 1)).map(|i| i.wrapping_mul(40_503) % VOCAB).collect();
    let mut tokens_per_step = 0;
    let mut step = || {
        let stats = trainer.step(&tokens, 1e-4).expect("tokens are in the vocabulary");
        tokens_per_step = stats.tokens;
    };
    // The first step faults the memory in.
    step();
    let mut rates: Vec<f64> = (0..windows)
        .map(|_| {
            let (start, mut steps) = (Instant::now(), 0);
            while start.elapsed() < WINDOW_MIN {
                step();
                steps += 1;
            }
            f64::from(steps) / start.elapsed().as_secs_f64()
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    let rate = |steps: f64| (steps * tokens_per_step as f64).round();
    json!({
        "preset": preset.name(),
        "muon_percent": muon_percent(&mut trainer, preset, threads, &tokens, 8 * windows).round(),
        "tokens_per_s": rate(rates[windows / 2]),
        "best": rate(rates[windows - 1]),
        "threads": threads,
        "params": trainer.layout().len(),
        "activation_mb": (trainer.activation_bytes() as f64 / 1e6).round(),
        "device": trainer.describe(),
    })
}

/// Returns the additional time of a step with Muon, in percent of a step of `adamw`: the median of `pairs` of steps
/// that follow each other, so that noise of a shared machine affects both.
fn muon_percent(
    adamw: &mut CpuTrainer,
    preset: Preset,
    threads: NonZeroUsize,
    tokens: &[u32],
    pairs: usize,
) -> f64 {
    let inner = InnerSpec { optimiser: Optimiser::Muon, ..preset.inner() };
    let mut muon = CpuTrainer::new(&preset.model(VOCAB), &inner, threads).expect("presets are valid");
    let step = |trainer: &mut CpuTrainer| {
        let start = Instant::now();
        trainer.step(tokens, 1e-4).expect("tokens are in the vocabulary");
        start.elapsed().as_secs_f64()
    };
    step(&mut muon);
    let mut ratios: Vec<f64> = (0..pairs).map(|_| step(&mut muon) / step(adamw)).collect();
    ratios.sort_by(f64::total_cmp);
    100.0 * (ratios[pairs / 2] - 1.0)
}

/// Measures merges of several updates of one fragment (int4, radial), in GB/s. The bytes are all bodies that come in,
/// the body that goes out, and Θ, Θ̂ and momentum, which are read and written. `ratio` is relative to a copy of 256 MB,
/// whose bytes also count as read and written.
fn merge() -> Value {
    let mut copy = Copy::new();
    let mut cases: Vec<Merge> = FRAGMENT_VALUES
        .into_iter()
        .flat_map(|values| [2, 4, 8].map(|updates| Merge::new(updates, values)))
        .collect();
    for _ in 0..RUNS {
        copy.run();
        for case in &mut cases {
            case.run();
        }
    }
    let copy_rate = median(&mut copy.gb_per_s);
    let rows = cases.iter_mut().map(|case| {
        let rate = median(&mut case.gb_per_s);
        json!({
            "updates": case.updates.len(),
            "values": case.state.theta.len(),
            "gb_per_s": rate,
            "ratio": rate / copy_rate,
        })
    });
    let rows: Vec<_> = rows.collect();
    json!({ "copy_gb_per_s": copy_rate, "merge": rows, "turns": turns_by_rule() })
}

/// Measures coding and decoding of one fragment, in GB/s of values and body together, compared with a copy of 256 MB.
fn codec() -> Value {
    let mut copy = Copy::new();
    let mut cases: Vec<Coding> = [Code::Int4, Code::E3m0, Code::F32]
        .into_iter()
        .flat_map(|code| FRAGMENT_VALUES.map(|values| Coding::new(code, values)))
        .collect();
    for _ in 0..RUNS {
        copy.run();
        for case in &mut cases {
            case.run();
        }
    }
    let copy_rate = median(&mut copy.gb_per_s);
    let rows = cases.iter_mut().map(|case| {
        let values = case.values.len() as f64;
        let gigabytes = (case.values.len() * 4 + case.body.len()) as f64 / 1e9;
        let (encode_s, decode_s) = (median(&mut case.encode_s), median(&mut case.decode_s));
        json!({
            "code": case.code,
            "values": case.values.len(),
            "bits_per_value": case.body.len() as f64 * 8.0 / values,
            "encode_gb_per_s": gigabytes / encode_s,
            "decode_gb_per_s": gigabytes / decode_s,
            "encode_values_per_s": values / encode_s,
            "decode_values_per_s": values / decode_s,
            "encode_ratio": gigabytes / encode_s / copy_rate,
            "decode_ratio": gigabytes / decode_s / copy_rate,
        })
    });
    json!({ "copy_gb_per_s": copy_rate, "block": BLOCK, "codec": rows.collect::<Vec<_>>() })
}

/// Measures one merge of every fragment of a preset on one thread, in seconds, for the rules `radial` and `flat`. The
/// vocabulary is small, since the rule `flat` does not change embeddings.
fn turns_by_rule() -> Vec<Value> {
    let turn = |preset: Preset| {
        let layout = layout(&preset.model(VOCAB)).expect("a preset is valid");
        let fragments = Fragments::plan(&layout, FRAGMENTS);
        let mut seconds = [0.0; 2];
        for fragment in fragments.ids() {
            let segments = fragments.segments(fragment).expect("a fragment of this plan").to_vec();
            let mut merge = Merge::of(2, segments, fragments.len(fragment));
            for (seconds, rule) in seconds.iter_mut().zip([MergeRule::Radial, MergeRule::Flat]) {
                let job = MergeJob { rule, ..merge.job() };
                let (merged, took) = timed(|| job.run());
                merge.state =
                    merged.unwrap_or_else(|failure| panic!("the updates are ours: {failure}")).state;
                *seconds += took.as_secs_f64();
            }
        }
        let [radial_s, flat_s] = seconds;
        json!({ "preset": preset.name(), "params": layout.len(), "radial_s": radial_s, "flat_s": flat_s })
    };
    [Preset::Tiny, Preset::Small, Preset::Medium].map(turn).into()
}

/// Copy between two buffers.
struct Copy {
    from: Vec<u8>,
    to: Vec<u8>,
    gb_per_s: Vec<f64>,
}

impl Copy {
    fn new() -> Self {
        Self { from: vec![1; COPY_BYTES], to: vec![2; COPY_BYTES], gb_per_s: Vec::new() }
    }

    fn run(&mut self) {
        let seconds = seconds_each(|| {
            self.to.copy_from_slice(std::hint::black_box(&self.from));
            std::hint::black_box(&self.to);
        });
        self.gb_per_s.push(2.0 * COPY_BYTES as f64 / 1e9 / seconds);
    }
}

/// Repeated merge of the same updates into one state.
struct Merge {
    segments: Vec<Segment>,
    updates: Vec<WeightedUpdate>,
    state: FragmentState,
    gb_per_s: Vec<f64>,
}

impl Merge {
    fn new(updates: u32, values: usize) -> Self {
        Self::of(updates, segments(values), values)
    }

    fn of(updates: u32, segments: Vec<Segment>, values: usize) -> Self {
        let update = |learner: u32| WeightedUpdate {
            learner: LearnerId(learner),
            weight: 1.0 + f64::from(learner),
            experts: Vec::new(),
            steps: 1,
            body: checked(&segments, &noise(learner, values)),
        };
        let updates = (0..updates).map(update).collect();
        let state = FragmentState::new(vec![0.0; values]);
        Self { segments, updates, state, gb_per_s: Vec::new() }
    }

    fn run(&mut self) {
        let mut body_bytes = 0;
        let mut seconds = 0.0;
        let mut merges = 0;
        while seconds < TIMED_MIN.as_secs_f64() {
            let job = self.job();
            let (merged, took) = timed(|| job.run());
            let outcome = merged.unwrap_or_else(|failure| panic!("the updates are ours: {failure}"));
            body_bytes = outcome.body.len();
            self.state = outcome.state;
            seconds += took.as_secs_f64();
            merges += 1;
        }
        let bytes = (self.updates.len() + 1) * body_bytes + 3 * 2 * 4 * self.state.theta.len();
        self.gb_per_s.push(bytes as f64 * f64::from(merges) / 1e9 / seconds);
    }

    /// Returns a job that takes the state. The rest of its data is copied here, outside the timed part.
    fn job(&mut self) -> MergeJob {
        let empty = FragmentState::new(Vec::new());
        MergeJob {
            round: Round(0),
            fragment: FragmentId(0),
            state: std::mem::replace(&mut self.state, empty),
            absent: 0.0,
            absent_experts: Vec::new(),
            updates: self.updates.clone(),
            segments: self.segments.clone(),
            codec: codec_of(Code::Int4),
            rule: MergeRule::Radial,
            radii: Vec::new(),
            outer: OuterSpec::default(),
            next: Version(0),
        }
    }
}

/// Encodes `values` as the body of an update, and verifies it.
fn checked(segments: &[Segment], values: &[f32]) -> CheckedBody {
    let codec = codec_of(Code::Int4);
    codec.check(segments, codec.encode(segments, values)).expect("the codec reads what it wrote")
}

/// Coding and decoding of one fragment.
struct Coding {
    code: Code,
    segments: Vec<Segment>,
    values: Vec<f32>,
    body: Vec<u8>,
    decoded: Vec<f32>,
    encode_s: Vec<f64>,
    decode_s: Vec<f64>,
}

impl Coding {
    fn new(code: Code, values: usize) -> Self {
        let (segments, values) = (segments(values), noise(0, values));
        let decoded = vec![0.0; values.len()];
        Self { code, segments, values, body: Vec::new(), decoded, encode_s: Vec::new(), decode_s: Vec::new() }
    }

    fn run(&mut self) {
        let codec = codec_of(self.code);
        self.encode_s.push(seconds_each(|| self.body = codec.encode(&self.segments, &self.values)));
        self.decode_s.push(seconds_each(|| {
            codec.decode_into(&self.segments, &self.body, &mut self.decoded).expect("coded just now");
        }));
    }
}

fn codec_of(code: Code) -> Codec {
    let apply = ApplyPolicy::Keep { residue: false };
    Codec::new(&ExchangeSpec { fragments: 1, sync_every: 1, block: BLOCK, code, apply })
        .expect("a good block")
}

fn segments(values: usize) -> Vec<Segment> {
    let segment = |start: usize| Segment {
        start: u32::try_from(start).expect("far below 2³²"),
        len: u32::try_from(SEGMENT_VALUES.min(values - start)).expect("far below 2³²"),
        merge: MergeClass::Radial,
        cols: 0,
        expert: None,
    };
    (0..values).step_by(SEGMENT_VALUES).map(segment).collect()
}

/// Returns `len` sums of four uniform numbers: roughly normal values with magnitudes of about 1e-3.
fn noise(seed: u32, len: usize) -> Vec<f32> {
    let mut state = u64::from(seed) + 1;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..len).map(|_| (uniform() + uniform() + uniform() + uniform()) * 1e-3).collect()
}

/// Returns the seconds per call of `work`, repeated for at least [`TIMED_MIN`].
fn seconds_each(mut work: impl FnMut()) -> f64 {
    let (mut seconds, mut times) = (0.0, 0);
    while seconds < TIMED_MIN.as_secs_f64() {
        seconds += timed(&mut work).1.as_secs_f64();
        times += 1;
    }
    seconds / f64::from(times)
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed())
}

fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
