//! Tests of the learner's loop in a run with frozen weights: they are fetched once and cached.

use archipelago_core::model::{FrozenForm, FrozenWeights, init};

use super::super::fake::adapters;
use super::*;

/// Returns the frozen weights of the run.
fn weights() -> FrozenWeights {
    let base = init(&adapters().base(), 3).unwrap();
    FrozenWeights::quantised(&adapters(), &base, FrozenForm::F16).unwrap()
}

fn syncer(script: FaultScript) -> FakeSyncer {
    FakeSyncer::start(FaultScript { frozen: Some(weights().bytes().to_vec()), ..script })
}

/// Returns the number of parts of the frozen weights.
fn parts() -> usize {
    weights().bytes().len().div_ceil(1_000)
}

/// Runs a learner that fetches frozen weights until two updates are merged, with a cache if `cache` is given.
fn take_part(fake: &FakeSyncer, cache: Option<Folder>) -> (Report, Vec<Event>) {
    let weight_cache = cache.map(|folder| Rc::new(folder) as Rc<dyn WeightCache>);
    train(RunConfig { weight_cache, ..config(&fake.address) })
}

/// Runs a learner until two updates are merged.
fn train(config: RunConfig) -> (Report, Vec<Event>) {
    let expected = (config.frozen == FrozenSource::Syncer).then(weights);
    let (control, events) = (Control::new(), RefCell::new(Vec::new()));
    let observe = |event: &Event| {
        events.borrow_mut().push(event.clone());
        if merged(&events.borrow()) >= 2 {
            control.stop();
        }
    };
    let build = async |spec: &RunSpec, inputs: EngineInputs| {
        assert_eq!(inputs.frozen.as_deref(), expected.as_ref());
        HostEngine::new(spec, QuadraticTrainer::of(Layout::of(&spec.model).unwrap()))
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let report = runtime.block_on(run(config, &control, build, observe)).unwrap();
    (report, events.into_inner())
}

/// Returns the number of requests for parts so far.
fn requests(fake: &FakeSyncer) -> usize {
    fake.script(|script| script.requests.iter().filter(|head| head.contains("/frozen/")).count())
}

fn troubles(events: &[Event]) -> Vec<String> {
    let reason = |event: &Event| match event {
        Event::Trouble { reason } if reason.contains("frozen") => Some(reason.clone()),
        _ => None,
    };
    events.iter().filter_map(reason).collect()
}

#[test]
fn a_second_start_fetches_nothing() {
    let (fake, place) = (syncer(FaultScript::default()), tempfile::tempdir().unwrap());
    let cache = || Some(Folder::new(place.path().to_owned(), 1 << 20));
    let all = weights().bytes().len() as u64;
    let (report, events) = take_part(&fake, cache());
    assert_eq!((report.frozen_bytes, report.frozen_bytes_total), (all, all));
    assert!(report.fetched_bytes > all, "they count as fetched");
    assert_eq!((requests(&fake), troubles(&events)), (parts(), vec![]));

    let (report, events) = take_part(&fake, cache());
    assert_eq!((report.frozen_bytes, requests(&fake)), (all, parts()));
    assert_eq!(troubles(&events), [""; 0]);

    // Only the damaged part is fetched again.
    let file = std::fs::read_dir(place.path()).unwrap().next().unwrap().unwrap().path();
    std::fs::write(&file, "nonsense").unwrap();
    let (_, events) = take_part(&fake, cache());
    assert_eq!(requests(&fake), parts() + 1);
    assert!(troubles(&events)[0].contains("damaged"), "{events:?}");

    // Without a cache, or with one that is too small, all parts are fetched again.
    take_part(&fake, None);
    assert_eq!(requests(&fake), 2 * parts() + 1);
    let (_, events) = take_part(&fake, Some(Folder::new(place.path().to_owned(), all - 1)));
    assert_eq!(requests(&fake), 3 * parts() + 1);
    assert!(troubles(&events)[0].contains("exceed the size of the cache"), "{events:?}");
}

#[test]
fn parts_that_break_off_are_resumed_and_wrong_ones_fetched_again() {
    let fake = syncer(FaultScript { broken_parts: 1, ..FaultScript::default() });
    let (_, events) = take_part(&fake, None);
    assert_eq!(requests(&fake), parts() + 1);
    let resumed = fake.script(|script| {
        let is_rest = |head: &&String| head.contains("/frozen/") && head.contains("range: bytes=500-");
        script.requests.iter().filter(is_rest).count()
    });
    assert_eq!(resumed, 1, "{events:?}");

    let fake = syncer(FaultScript { wrong_parts: 1, ..FaultScript::default() });
    let (_, events) = take_part(&fake, None);
    assert_eq!(requests(&fake), parts() + 1);
    assert!(troubles(&events)[0].contains("part 0 of the frozen weights has a wrong checksum"), "{events:?}");
}

#[test]
fn download_of_frozen_weights_is_reported_and_can_be_stopped() {
    // All parts arrive damaged.
    let fake =
        syncer(FaultScript { broken_parts: u32::MAX, wrong_parts: u32::MAX, ..FaultScript::default() });
    let (result, events) = learn(config(&fake.address), |events| {
        let waits = |event: &Event| match event {
            Event::Progress(report) => report.frozen_bytes_total > 0,
            _ => false,
        };
        events.iter().any(waits)
    });
    assert!(result.is_ok(), "{result:?}");
    let sentence = events.iter().find_map(|event| match event {
        Event::Progress(report) if report.frozen_bytes_total > 0 => Some(report.to_string()),
        _ => None,
    });
    assert!(
        sentence.is_some_and(|sentence| sentence.contains("MB of the run's frozen weights")),
        "{events:?}"
    );
}

#[test]
fn invalid_frozen_weights_end_the_run_without_a_download() {
    let fake = FakeSyncer::start(FaultScript { frozen: Some(vec![0; 10]), ..FaultScript::default() });
    let build = async |_: &RunSpec, _: EngineInputs| -> Result<HostEngine<QuadraticTrainer>, _> {
        unreachable!("there is no basis")
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let result = runtime.block_on(run(config(&fake.address), &Control::new(), build, |_| {}));
    let error = result.unwrap_err().to_string();
    assert!(error.contains("10 bytes of frozen weights given"), "{error}");
    assert_eq!(requests(&fake), 0, "not one of them is fetched");
}

#[test]
fn engine_with_frozen_weights_trains_without_a_download() {
    let fake = syncer(FaultScript::default());
    let config = RunConfig { frozen: FrozenSource::Engine, ..config(&fake.address) };
    let (report, _) = train(config);
    assert_eq!((report.frozen_bytes_total, requests(&fake)), (0, 0));
}

#[test]
fn learner_without_adapter_support_leaves_before_any_download() {
    let fake = syncer(FaultScript::default());
    let config = RunConfig { frozen: FrozenSource::Unsupported, ..config(&fake.address) };
    let (result, _) = learn(config, |_| false);
    assert!(result.unwrap_err().to_string().contains("`native-learner join`"));
    assert_eq!(requests(&fake), 0);
}
