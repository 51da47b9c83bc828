//! Tests of a run with a model that this program does not know, and of the learner that may measure it.

use std::path::Path;

use archipelago_core::data::{HELD_OUT_BYTES_MAX, parse_held_out};
use archipelago_core::wire::{Architecture, Hello, LearnerId, Message, Version};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::Value;
use syncer_server::ServeConfig;

use crate::support::{Client, Learner, PATIENCE, Server, config, hello};

/// Returns the settings of a run with two tensors in `dir`. Its evaluator is the learner called `learner 2`.
fn own(dir: &Path) -> ServeConfig {
    let file = dir.join("own.safetensors");
    if !file.exists() {
        let bytes = vec![0; 4 * 96];
        let tensor = |shape: &[usize]| {
            let len = 4 * shape.iter().product::<usize>();
            TensorView::new(Dtype::F32, shape.to_vec(), &bytes[..len]).unwrap()
        };
        let tensors = [("a", tensor(&[12, 8])), ("b", tensor(&[8]))];
        safetensors::serialize_to_file(tensors, None, &file).unwrap();
    }
    ServeConfig {
        params: Some(file),
        architecture: Some("bigrams".into()),
        architecture_settings: Some("width 8".into()),
        evaluator: Some("learner 2".into()),
        eval_every: "10ms".parse().unwrap(),
        no_eval: false,
        ..config(&dir.join("run"))
    }
}

/// Returns the next question: its number, and the versions that it is about. It may arrive before the fate of an
/// update.
async fn question(learner: &mut Learner) -> (u32, Vec<Version>) {
    loop {
        if let Some(question) = learner.questions.pop_front() {
            return question;
        }
        learner.until(|message| matches!(message, Message::Measure { .. }).then_some(())).await;
    }
}

async fn answer(learner: &mut Learner, number: u32, loss: Option<f32>) {
    let run = learner.welcome.run;
    learner.client.send(&Message::Measured { run, number, loss }).await;
}

/// Returns the losses of the run, each with its evaluator, once there are `count` of them.
async fn losses(server: &Server, count: usize) -> Vec<(f64, Option<u64>)> {
    let looking = async {
        loop {
            let (_, _, body) = server.http("GET /v1/series").await;
            let series: Value = serde_json::from_slice(&body).unwrap();
            let found = series["evaluations"].as_array().unwrap().iter();
            let found: Vec<_> =
                found.map(|one| (one["loss"].as_f64().unwrap(), one["measuredBy"].as_u64())).collect();
            if found.len() >= count {
                return found;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, looking).await.unwrap()
}

#[tokio::test]
async fn who_is_trusted_is_asked_and_believed_within_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(own(dir.path())).await;
    let _other = Learner::join(&server, 1).await;
    let mut judge = Learner::join(&server, 2).await;
    let LearnerId(id) = judge.welcome.learner;
    let (first, versions) = question(&mut judge).await;
    assert_eq!(versions.len(), usize::from(judge.welcome.spec.exchange.fragments));
    answer(&mut judge, first, Some(5.5)).await;
    assert_eq!(losses(&server, 1).await, [(5.5, Some(id.into()))]);

    // Invalid losses are ignored, and the next question is about the newest versions.
    let mut before = versions;
    for (at, loss) in [f32::NAN, -0.5, 1_001.0, 2.0].into_iter().enumerate() {
        judge.merge().await;
        let (number, versions) = question(&mut judge).await;
        assert_eq!(number as usize, first as usize + at + 1);
        assert!(versions > before, "{versions:?}");
        before = versions;
        answer(&mut judge, number, Some(loss)).await;
    }
    assert_eq!(losses(&server, 2).await, [(5.5, Some(id.into())), (2.0, Some(id.into()))]);
    let status = server.status().await;
    assert_eq!((&status["valLossLast"], &status["valMeasuredBy"]), (&2.0.into(), &id.into()));

    // An evaluator that cannot measure is not asked again until it reconnects.
    judge.merge().await;
    let (number, _) = question(&mut judge).await;
    answer(&mut judge, number, None).await;
    judge.merge().await;
    answer(&mut judge, number, Some(1.0)).await;
    let end = judge.client.end().await;
    assert_eq!(end.bye, 4_007, "{end:?}");
    let mut judge = Learner::join(&server, 2).await;
    let (number, _) = question(&mut judge).await;
    answer(&mut judge, number, Some(1.0)).await;
    assert_eq!(losses(&server, 3).await.last(), Some(&(1.0, Some(id.into()))));
    server.stop().await;
}

#[tokio::test]
async fn nobody_else_measures() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(own(dir.path())).await;
    let mut judge = Learner::join(&server, 2).await;
    let (number, _) = question(&mut judge).await;
    let mut liar = Learner::join(&server, 1).await;
    answer(&mut liar, number, Some(0.0)).await;
    assert_eq!(liar.client.end().await.bye, 4_007);
    answer(&mut judge, number, Some(5.0)).await;
    assert_eq!(losses(&server, 1).await.len(), 1);
    server.stop().await;
}

/// Joins a learner with the evaluator's name and another key. The syncer asks its evaluator each second. Checks that it
/// asks this learner nothing, although its update is merged.
async fn unasked(server: &Server) -> Learner {
    let namesake = Hello { name: "learner 2".into(), ..hello(1) };
    let (client, welcome) = Client::connect(server).await.introduced_as(namesake).await;
    let mut liar = Learner::of(client, welcome).await;
    liar.merge().await;
    let asked = tokio::time::timeout(std::time::Duration::from_millis(1_300), question(&mut liar)).await;
    assert!(asked.is_err(), "{asked:?}");
    liar
}

/// Goal: an evaluator's name stands for the first key that was asked under it, also after a restart.
#[tokio::test]
async fn a_second_key_under_the_name_does_not_measure() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(own(dir.path())).await;
    let mut judge = Learner::join(&server, 2).await;
    let (number, _) = question(&mut judge).await;
    answer(&mut judge, number, Some(5.0)).await;
    losses(&server, 1).await;
    judge.merge().await;
    drop(judge);
    let _liar = unasked(&server).await;
    server.stop().await;

    let server = Server::start(own(dir.path())).await;
    let _liar = unasked(&server).await;
    let mut judge = Learner::join(&server, 2).await;
    let (number, _) = question(&mut judge).await;
    answer(&mut judge, number, Some(4.0)).await;
    assert_eq!(losses(&server, 2).await.last().unwrap().0, 4.0);
    server.stop().await;
}

#[tokio::test]
async fn learners_are_told_the_layout_and_what_the_owner_calls_it() {
    let dir = tempfile::tempdir().unwrap();
    for given in [true, false] {
        // The second start has only the folder.
        let config = own(dir.path());
        let server = Server::start(ServeConfig { params: config.params.filter(|_| given), ..config }).await;
        let learner = Learner::join(&server, 1).await;
        let model = &learner.welcome.spec.model;
        let expected = Architecture { name: "bigrams".into(), settings: b"width 8".to_vec() };
        assert_eq!(model.architecture, expected);
        let tensors: Vec<_> =
            model.tensors.iter().map(|tensor| (&*tensor.name, tensor.rows, tensor.cols)).collect();
        assert_eq!(tensors, [("a", 12, 8), ("b", 1, 8)]);

        let run = learner.welcome.run;
        let (code, _, body) = server.http(&format!("GET /v1/runs/{run}/held-out")).await;
        assert!(code == 200 && body.len() as u64 <= HELD_OUT_BYTES_MAX, "{code}, {} bytes", body.len());
        let windows = parse_held_out(&body, model.context, model.vocab).unwrap();
        assert!(windows.len() > model.context as usize);
        assert_eq!(server.http("GET /v1/runs/0000000000000001/held-out").await.0, 404);
        assert_eq!(server.http(&format!("GET /v1/runs/{run}/model")).await.0, 404);
        server.stop().await;
    }
}

#[tokio::test]
async fn settings_that_are_no_such_run_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let check = async |change: &dyn Fn(&mut ServeConfig), part: &str| {
        let mut config = own(dir.path());
        change(&mut config);
        let error = Server::refused(config).await;
        assert!(error.exit_code() == 3 && error.to_string().contains(part), "{error}");
    };
    check(&|config| config.architecture = Some("llama".into()), "give another name").await;
    check(&|config| config.architecture = Some("x".repeat(65)), "give at most 64").await;
    check(&|config| config.architecture_settings = Some("x".repeat(4_097)), "give at most 4096").await;
    check(&|config| config.params = None, "give its tensors with --params").await;
    let decoder = |config: &mut ServeConfig| (config.params, config.architecture) = (None, None);
    check(&decoder, "--evaluator is for a model of your own").await;
}
