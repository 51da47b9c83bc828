//! Engine without a model: it queues requests for the program's tensors at the bridge.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU16;
use std::sync::Arc;

use archipelago::Engine;
use archipelago::engine::{Encoded, EngineError, Exchange, StepStats};
use archipelago::learner::{Codec, Replica, ReplicaError};
use archipelago::model::{ApplyPolicy, Fragments, Layout, RunSpec};
use archipelago::wire::{FragmentId, Serial};

use crate::bridge::{ProgramBridge, ProgramError};
use crate::tensors::ParameterMap;

/// Engine that encodes fragments copied out by the program, and sends changes to the program.
///
/// For any policy of the run, a change of a fragment has the form `θ = kept · θ + values`. Thus only the program
/// needs θ: `values` is the replica's result for a θ of 0.
pub struct BridgeEngine {
    bridge: Arc<ProgramBridge>,
    fit: ParameterMap,
    fragments: Arc<Fragments>,
    replica: Replica,
    apply: ApplyPolicy,
    describe: String,
    /// Whether the program can measure a loss.
    measures: bool,
    /// Tokens of a window, including the last target.
    window: usize,
    /// Buffer of all parameters for the replica, `[len]`. Only the fragment in use has valid contents.
    flat: Vec<f32>,
    /// Requested copies, by fragment.
    awaited: BTreeMap<FragmentId, PendingCopy>,
    loaded: BTreeSet<FragmentId>,
    encoded: VecDeque<Encoded>,
    steps_begun: u64,
}

/// Copy that the program has not delivered yet, and the work that waits for it.
struct PendingCopy {
    id: u64,
    serial: Serial,
    later: VecDeque<Work>,
}

/// Work on a fragment.
enum Work {
    Encode(Serial),
    Include,
    Apply(Vec<u8>),
    Load { values: Vec<f32>, keep: bool },
}

impl BridgeEngine {
    /// Returns an engine for the run `spec`, and clears `bridge`. `describe` names the program's device, and
    /// `measures` is true if the program can measure a loss.
    ///
    /// # Errors
    /// [`EngineError::Codec`]: the run's codec is invalid. [`EngineError::NoFragments`]: the run has no fragments.
    pub fn new(
        spec: &RunSpec,
        fit: ParameterMap,
        bridge: Arc<ProgramBridge>,
        describe: String,
        measures: bool,
    ) -> Result<Self, EngineError> {
        let count = NonZeroU16::new(spec.exchange.fragments).ok_or(EngineError::NoFragments)?;
        let codec = Codec::new(&spec.exchange)?;
        let fragments = Arc::new(Fragments::plan(&fit.layout, count));
        let replica = Replica::new(Arc::clone(&fragments), codec, spec.exchange.apply);
        bridge.clear();
        Ok(Self {
            flat: vec![0.0; fit.layout.len()],
            window: spec.model.context as usize + 1,
            apply: spec.exchange.apply,
            awaited: BTreeMap::new(),
            loaded: BTreeSet::new(),
            encoded: VecDeque::new(),
            steps_begun: 0,
            bridge,
            fit,
            fragments,
            replica,
            describe,
            measures,
        })
    }

    /// Does `work` on `fragment` after all earlier work on it.
    fn request(&mut self, fragment: FragmentId, work: Work) -> Result<(), EngineError> {
        match self.awaited.get_mut(&fragment) {
            Some(awaited) => awaited.later.push_back(work),
            None => self.carry_out(fragment, work)?,
        }
        Ok(())
    }

    fn carry_out(&mut self, fragment: FragmentId, work: Work) -> Result<(), EngineError> {
        let places = self.fit.places(&self.fragments, fragment);
        if let Work::Encode(serial) = work {
            let id = self.bridge.read(places);
            self.awaited.insert(fragment, PendingCopy { id, serial, later: VecDeque::new() });
            return Ok(());
        }
        let zeros = vec![0.0; self.fragments.len(fragment)];
        self.fragments.scatter(fragment, &zeros, &mut self.flat);
        let kept = match work {
            Work::Encode(_) | Work::Include => {
                self.replica.include(fragment, &mut self.flat)?;
                1.0
            }
            Work::Apply(body) => {
                self.replica.apply(fragment, &body, &mut self.flat)?;
                self.kept()
            }
            Work::Load { values, keep } => {
                self.replica.load(fragment, &values, keep, &mut self.flat)?;
                self.loaded.insert(fragment);
                if keep { self.kept() } else { 0.0 }
            }
        };
        self.bridge.change(kept, self.fragments.gather(fragment, &self.flat), places);
        if self.loaded.len() == usize::from(self.fragments.count()) {
            self.bridge.loaded();
        }
        Ok(())
    }

    /// Returns the part of unmerged progress that is kept at a change, 0 to 1.
    fn kept(&self) -> f32 {
        match self.apply {
            ApplyPolicy::Keep { .. } => 1.0,
            ApplyPolicy::Overwrite => 0.0,
            ApplyPolicy::Blend { alpha } => alpha,
        }
    }

    /// Encodes the fragments that the program has copied out, and does the work that waited for them.
    fn collect(&mut self) -> Result<(), EngineError> {
        while let Some(copied) = self.bridge.take_copy()? {
            let found = self.awaited.iter().find(|(_, awaited)| awaited.id == copied.id);
            let Some(fragment) = found.map(|(fragment, _)| *fragment) else { continue };
            let Some(PendingCopy { serial, mut later, .. }) = self.awaited.remove(&fragment) else {
                continue;
            };
            if copied.values.len() != self.fragments.len(fragment) {
                let (expected, actual) = (self.fragments.len(fragment), copied.values.len());
                return Err(ReplicaError::Length { expected, actual }.into());
            }
            self.fragments.scatter(fragment, &copied.values, &mut self.flat);
            let body = match self.replica.encode(fragment, &self.flat) {
                Ok(body) => body,
                Err(error) => return Err(self.report_fault(error)),
            };
            let digest = self.replica.digest(fragment);
            self.encoded.push_back(Encoded { serial, fragment, body, digest });
            // If the work requests another copy of the fragment, the remaining work waits for that copy.
            while let Some(work) = later.pop_front() {
                self.carry_out(fragment, work)?;
                if let Some(awaited) = self.awaited.get_mut(&fragment) {
                    awaited.later = std::mem::take(&mut later);
                }
            }
        }
        Ok(())
    }

    /// Reports the tensor with a value that is not finite to the program.
    fn report_fault(&self, error: ReplicaError) -> EngineError {
        if let ReplicaError::NotFinite { fragment, index } = error {
            let name = self.fit.name(&self.fragments, fragment, index);
            self.bridge.report_fault(ProgramError::NotFinite { what: format!("a value of tensor {name}") });
        }
        error.into()
    }
}

impl Exchange for BridgeEngine {
    fn layout(&self) -> &Layout {
        &self.fit.layout
    }

    fn fragments(&self) -> &Arc<Fragments> {
        &self.fragments
    }

    fn encode(&mut self, serial: Serial, fragment: FragmentId) -> Result<(), EngineError> {
        self.request(fragment, Work::Encode(serial))
    }

    fn encoded(&mut self) -> Result<Option<Encoded>, EngineError> {
        self.collect()?;
        Ok(self.encoded.pop_front())
    }

    fn include(&mut self, fragment: FragmentId) -> Result<(), EngineError> {
        self.request(fragment, Work::Include)
    }

    fn apply(&mut self, fragment: FragmentId, body: &[u8]) -> Result<(), EngineError> {
        self.request(fragment, Work::Apply(body.to_vec()))
    }

    fn load(&mut self, fragment: FragmentId, values: &[f32], keep: bool) -> Result<(), EngineError> {
        self.request(fragment, Work::Load { values: values.to_vec(), keep })
    }
}

impl Engine for BridgeEngine {
    fn exchange(&self) -> &dyn Exchange {
        self
    }

    fn exchange_mut(&mut self) -> &mut dyn Exchange {
        self
    }

    fn describe(&self) -> String {
        self.describe.clone()
    }

    /// Returns as soon as the batch is queued, while the program trains on the previous one. The result therefore
    /// belongs to earlier steps. Only the first step is awaited.
    async fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError> {
        let windows = (tokens.len() / self.window) as u32;
        while !self.bridge.is_leaving() && !self.bridge.offer(tokens, windows, lr)? {
            // No other work is possible meanwhile.
            self.collect()?;
            self.bridge.changed().await;
        }
        self.steps_begun += 1;
        loop {
            let (done, loss, tokens) = self.bridge.take_steps()?;
            if done > 0 || self.steps_begun > 1 || self.bridge.is_leaving() {
                return Ok(StepStats { loss, grad_norm: 0.0, tokens });
            }
            self.bridge.changed().await;
        }
    }

    /// The program measures between two steps, so this waits for the current step and the measurement.
    async fn held_out_loss(&mut self, windows: &[u32]) -> Result<Option<f32>, EngineError> {
        if !self.measures || self.bridge.is_leaving() {
            return Ok(None);
        }
        let count = (windows.len() / self.window) as u32;
        let id =
            self.bridge.request_measurement(self.replica.hat().to_vec(), self.fit.whole(), windows, count);
        loop {
            if let Some(loss) = self.bridge.take_measured(id)? {
                return Ok(loss);
            }
            self.collect()?;
            self.bridge.changed().await;
        }
    }

    async fn synchronise(&mut self) -> Result<(), EngineError> {
        self.collect()?;
        while self.is_busy() {
            self.bridge.changed().await;
            self.collect()?;
        }
        Ok(())
    }

    /// Returns true while copies are awaited. Steps are awaited by the next step.
    fn is_busy(&self) -> bool {
        !self.awaited.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use archipelago::data::token;
    use archipelago::model::{Code, DataSpec, ExchangeSpec, MergeClass, Model, Preset, ShardSpec, Tensor};
    use archipelago::{HostEngine, Trainer};
    use futures::executor::block_on;

    use super::*;
    use crate::bridge::{NextItem, ProgramRequest};
    use crate::tensors::{TensorShape, TensorSlice};

    /// Change of each parameter in one step.
    const STEP: f32 = 0.0625;

    /// Test program with its tensors, which are not in the order of the layout.
    struct TestProgram(Vec<Vec<f32>>);

    /// Guard that ends the program's work, even if the test fails.
    struct BridgeCloser<'a>(&'a ProgramBridge);

    impl Drop for BridgeCloser<'_> {
        fn drop(&mut self) {
            self.0.end(Err(ProgramError::Failed("over".into())));
        }
    }

    /// Trainer with the same parameters in the order of the layout.
    struct TestTrainer(Layout, Vec<f32>);

    impl Trainer for TestTrainer {
        fn layout(&self) -> &Layout {
            &self.0
        }

        fn params(&self) -> &[f32] {
            &self.1
        }

        fn params_mut(&mut self) -> &mut [f32] {
            &mut self.1
        }

        fn step(&mut self, tokens: &[u32], _lr: f32) -> Result<StepStats, EngineError> {
            self.1.iter_mut().enumerate().for_each(|(index, value)| *value += STEP * (index % 3) as f32);
            Ok(StepStats { loss: 1.0, grad_norm: 0.0, tokens: tokens.len() as u64 })
        }

        fn describe(&self) -> String {
            "toy".into()
        }
    }

    impl TestProgram {
        /// Carries out the requests at `bridge` until the learner's loop ends.
        fn work(&mut self, bridge: &ProgramBridge) {
            loop {
                match bridge.next(Duration::from_secs(1)) {
                    Ok(NextItem::Request(request)) => self.carry_out(bridge, request),
                    Ok(NextItem::Nothing) => {}
                    Ok(NextItem::Over) | Err(_) => return,
                }
            }
        }

        fn carry_out(&mut self, bridge: &ProgramBridge, request: ProgramRequest) {
            match request {
                ProgramRequest::Step(batch) => {
                    // This matches `TestTrainer`, where the tensor `b` comes first in the layout.
                    let of_b = self.0[1].len();
                    for (tensor, offset) in [(1, 0), (0, of_b)] {
                        let values = self.0[tensor].iter_mut().enumerate();
                        values.for_each(|(index, value)| *value += STEP * ((index + offset) % 3) as f32);
                    }
                    bridge.done(batch.id, 1.0, None).unwrap();
                }
                ProgramRequest::Read { id, places } => {
                    let part = |place: &TensorSlice| &self.0[place.tensor][place.start..place.stop];
                    bridge.give(id, places.iter().flat_map(part).copied().collect());
                }
                ProgramRequest::Measure(task) => {
                    let whole: Vec<_> = task.places.iter().map(|place| (place.tensor, place.stop)).collect();
                    assert_eq!(whole, [(1, self.0[1].len()), (0, self.0[0].len())], "whole, as laid out");
                    let (sum, len) = (task.values.iter().sum::<f32>(), task.values.len() as f32);
                    bridge.measured(task.id, Some(sum / len + task.windows as f32));
                }
                ProgramRequest::Change { kept, values, places } => {
                    let mut values = values.into_iter();
                    for TensorSlice { tensor, start, stop } in places {
                        let part = &mut self.0[tensor][start..stop];
                        part.iter_mut()
                            .zip(&mut values)
                            .for_each(|(theta, value)| *theta = kept * *theta + value);
                    }
                }
            }
        }
    }

    fn spec(apply: ApplyPolicy) -> RunSpec {
        let exchange = ExchangeSpec { fragments: 3, sync_every: 4, block: 8, code: Code::F32, apply };
        let data = DataSpec {
            token_bytes: 2,
            masks: false,
            shards: vec![ShardSpec { tokens: 1_000, sha256: [0; 32] }],
        };
        let (model, inner) = (Preset::Tiny.model(256).into(), Preset::Tiny.inner());
        RunSpec { model, inner, exchange, data, seed: 1, frozen: None }
    }

    fn fit() -> ParameterMap {
        let shaped = |name: &str, shape: &[u64]| TensorShape { name: name.into(), shape: shape.into() };
        let tensors = [shaped("w", &[6, 4]), shaped("b", &[5])];
        let of_the_run = |name: &str, rows, cols| {
            let merge = MergeClass::Radial;
            Tensor { name: name.into(), rows, cols, merge }
        };
        let run = Model {
            tensors: vec![of_the_run("b", 1, 5), of_the_run("w", 6, 4)],
            ..Preset::Tiny.model(256).into()
        };
        ParameterMap::new(&tensors, &run).unwrap()
    }

    fn at_bridge(apply: ApplyPolicy) -> (BridgeEngine, Arc<ProgramBridge>) {
        let bridge = Arc::new(ProgramBridge::default());
        (BridgeEngine::new(&spec(apply), fit(), Arc::clone(&bridge), "toy".into(), true).unwrap(), bridge)
    }

    /// Uses an engine for some rounds, and returns the bodies that it encoded.
    async fn run_rounds(engine: &mut impl Engine, apply: ApplyPolicy) -> Vec<Vec<u8>> {
        let fragments = Arc::clone(engine.fragments());
        let codec = Codec::new(&spec(apply).exchange).unwrap();
        let mut bodies = Vec::new();
        let mut serial = 0;
        for fragment in fragments.ids() {
            engine.load(fragment, &vec![0.5; fragments.len(fragment)], false).unwrap();
        }
        // The last round has no changes. Its bodies show the result of the earlier ones.
        for round in 0..5_u8 {
            for _ in 0..3 {
                engine.step(&[7; 65], 1e-3).await.unwrap();
            }
            for fragment in fragments.ids() {
                serial += 1;
                engine.encode(Serial(serial), fragment).unwrap();
                if round == 4 {
                    continue;
                }
                // A change that comes before the copy is delivered must wait for the copy.
                let change = vec![0.125 * f32::from(round); fragments.len(fragment)];
                let body = codec.encode(fragments.segments(fragment).unwrap(), &change);
                if round % 2 == 0 {
                    engine.include(fragment).unwrap();
                }
                engine.apply(fragment, &body).unwrap();
            }
            engine.synchronise().await.unwrap();
            while let Some(encoded) = engine.encoded().unwrap() {
                bodies.push(encoded.body);
            }
            engine.load(FragmentId(0), &vec![0.25; fragments.len(FragmentId(0))], true).unwrap();
        }
        bodies
    }

    #[test]
    fn bridge_engine_matches_a_host_engine() {
        let policies = [
            ApplyPolicy::Keep { residue: true },
            ApplyPolicy::Keep { residue: false },
            ApplyPolicy::Overwrite,
            ApplyPolicy::Blend { alpha: 0.5 },
        ];
        for apply in policies {
            let layout = fit().layout;
            let mut host =
                HostEngine::new(&spec(apply), TestTrainer(layout.clone(), vec![0.0; layout.len()])).unwrap();
            let expected = block_on(run_rounds(&mut host, apply));
            let (mut engine, bridge) = at_bridge(apply);
            let mut program = TestProgram(vec![vec![9.0; 24], vec![9.0; 5]]);
            let found = thread::scope(|scope| {
                scope.spawn(|| program.work(&bridge));
                let _over = BridgeCloser(&bridge);
                let found = block_on(run_rounds(&mut engine, apply));
                // After the last change is carried out, no request is left.
                while !bridge.is_loaded() {
                    thread::yield_now();
                }
                found
            });
            // The order does not matter, because the program may deliver copies of fragments in any order.
            let sorted = |mut bodies: Vec<Vec<u8>>| {
                bodies.sort();
                bodies
            };
            assert_eq!(sorted(found), sorted(expected), "{apply:?}");
        }
    }

    #[test]
    fn next_batch_is_queued_while_the_program_trains() {
        let (mut engine, bridge) = at_bridge(ApplyPolicy::Overwrite);
        let wait = Duration::from_secs(5);
        thread::scope(|scope| {
            let program = scope.spawn(|| {
                let mut trained = Vec::new();
                while trained.len() < 3 {
                    let Ok(NextItem::Request(ProgramRequest::Step(batch))) = bridge.next(wait) else {
                        panic!("no batch")
                    };
                    assert_eq!((batch.windows, batch.tokens.len()), (2, 130));
                    assert_eq!(bridge.next(Duration::ZERO), Ok(NextItem::Nothing), "one at a time");
                    trained.push(batch.id);
                    bridge.done(batch.id, 0.5, None).unwrap();
                }
                trained
            });
            // The first step is awaited. Later results belong to steps that the program has finished by then.
            let first = block_on(engine.step(&[0; 130], 1e-3)).unwrap();
            assert_eq!((first.tokens, first.loss), (128, 0.5));
            let tokens: u64 = (0..3).map(|_| block_on(engine.step(&[0; 130], 1e-3)).unwrap().tokens).sum();
            assert!(tokens <= 2 * 128, "{tokens}");
            assert_eq!(program.join().unwrap().len(), 3);
        });
    }

    #[test]
    fn batch_without_targets_keeps_the_previous_loss() {
        let (_, bridge) = at_bridge(ApplyPolicy::Overwrite);
        let mut given = [7 | token::MASKED; 130];
        let step = |tokens: &[u32], loss| {
            assert!(bridge.offer(tokens, 2, 1e-3).unwrap());
            let Ok(NextItem::Request(ProgramRequest::Step(batch))) = bridge.next(Duration::ZERO) else {
                panic!("no batch")
            };
            bridge.done(batch.id, loss, None).map(|()| bridge.take_steps().unwrap())
        };
        assert_eq!(step(&[7; 130], 0.5), Ok((1, 0.5, 128)));
        // Masked tokens are trained tokens too, and the loss is that of the previous step.
        assert_eq!(step(&given, f32::NAN), Ok((2, 0.5, 128)));
        // The first token of a window is never a target.
        given[65] = 7;
        assert_eq!(step(&given, f32::NAN), Ok((3, 0.5, 128)));
        given[66] = 7;
        assert!(matches!(step(&given, f32::NAN), Err(ProgramError::NotFinite { .. })));
    }

    #[test]
    fn measurement_uses_the_published_parameters() {
        let (mut engine, bridge) = at_bridge(ApplyPolicy::Keep { residue: true });
        let mut program = TestProgram(vec![vec![9.0; 24], vec![9.0; 5]]);
        let found = thread::scope(|scope| {
            scope.spawn(|| program.work(&bridge));
            let _over = BridgeCloser(&bridge);
            block_on(async {
                let fragments = Arc::clone(Engine::fragments(&engine));
                for fragment in fragments.ids() {
                    Engine::load(&mut engine, fragment, &vec![0.5; fragments.len(fragment)], false)?;
                }
                // Progress that is not merged does not affect the measurement.
                engine.step(&[7; 65], 1e-3).await?;
                engine.held_out_loss(&[7; 130]).await
            })
        });
        assert_eq!(found.unwrap(), Some(2.5), "the mean of the parameters and two windows");
        engine.measures = false;
        assert_eq!(block_on(engine.held_out_loss(&[7; 130])).unwrap(), None);
    }

    #[test]
    fn measurement_fails_after_divergence() {
        let (mut engine, bridge) = at_bridge(ApplyPolicy::Overwrite);
        assert!(bridge.offer(&[0; 65], 1, 1e-3).unwrap());
        let Ok(NextItem::Request(ProgramRequest::Step(batch))) = bridge.next(Duration::ZERO) else {
            panic!("no batch")
        };
        bridge.done(batch.id, f32::INFINITY, None).unwrap_err();
        assert!(matches!(block_on(engine.held_out_loss(&[7; 65])), Err(EngineError::NotFinite { .. })));
    }

    #[test]
    fn non_finite_values_are_named_and_never_sent() {
        let (mut engine, bridge) = at_bridge(ApplyPolicy::Keep { residue: true });
        Engine::encode(&mut engine, Serial(1), FragmentId(0)).unwrap();
        let Ok(NextItem::Request(ProgramRequest::Read { id, places })) = bridge.next(Duration::ZERO) else {
            panic!("no copy asked for")
        };
        let len = places.iter().map(|place| place.stop - place.start).sum();
        let mut values = vec![0.0; len];
        values[0] = f32::NAN;
        bridge.give(id, values);
        assert!(matches!(
            Engine::encoded(&mut engine),
            Err(EngineError::Exchange(ReplicaError::NotFinite { .. }))
        ));
        let fault = bridge.next(Duration::ZERO).unwrap_err().to_string();
        assert!(fault.starts_with("a value of tensor ") && fault.contains("reset the optimiser"), "{fault}");

        assert!(bridge.offer(&[0; 65], 1, 1e-3).unwrap());
        let Ok(NextItem::Request(ProgramRequest::Step(batch))) = bridge.next(Duration::ZERO) else {
            panic!("no batch")
        };
        assert!(matches!(bridge.done(batch.id, f32::INFINITY, None), Err(ProgramError::NotFinite { .. })));
        assert!(matches!(bridge.offer(&[0; 65], 1, 1e-3), Err(EngineError::NotFinite { .. })));
        // A new engine starts from scratch, and a step of the old one is ignored.
        bridge.clear();
        assert_eq!(bridge.done(batch.id, f32::NAN, None), Ok(()));
        assert!(bridge.offer(&[0; 65], 1, 1e-3).unwrap());
    }

    #[test]
    fn letting_go_ends_the_loop() {
        let (mut engine, bridge) = at_bridge(ApplyPolicy::Overwrite);
        Engine::encode(&mut engine, Serial(1), FragmentId(0)).unwrap();
        bridge.let_go();
        assert!(block_on(engine.synchronise()).is_err() && block_on(engine.step(&[0; 65], 1e-3)).is_err());
    }
}
