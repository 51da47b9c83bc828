//! Tests of the commands that inspect a run, through its syncer and in its folder.

use std::path::Path;

use serde_json::Value;
use syncer_server::{EventsArgs, PlaceArgs, ServerError, TableArgs, inspect};

use crate::support::{Learner, Server, config};

type Printed = Result<String, ServerError>;

fn asking(server: &Server) -> PlaceArgs {
    // A link as learners receive it.
    PlaceArgs { url: format!("http://{}/#invite=x", server.address), ca: None, dir: None }
}

fn folder(dir: &Path) -> PlaceArgs {
    PlaceArgs { url: String::new(), ca: None, dir: Some(dir.to_owned()) }
}

async fn apart(look: impl FnOnce() -> Printed + Send + 'static) -> Printed {
    tokio::task::spawn_blocking(look).await.unwrap()
}

async fn status(place: &PlaceArgs, json: bool) -> Printed {
    let args = TableArgs { place: place.clone(), json, csv: false };
    apart(move || inspect::status(&args)).await
}

async fn table(look: fn(&TableArgs) -> Printed, place: &PlaceArgs, (json, csv): (bool, bool)) -> Vec<String> {
    let args = TableArgs { place: place.clone(), json, csv };
    let text = apart(move || look(&args)).await.unwrap();
    text.lines().map(str::to_owned).collect()
}

async fn events(place: &PlaceArgs, name: &str, json: bool) -> String {
    let args = EventsArgs { place: place.clone(), name: name.into(), limit: 50, json, csv: false };
    apart(move || inspect::events(&args)).await.unwrap()
}

/// Returns the values of `names` in the JSON status.
async fn figures<const N: usize>(place: &PlaceArgs, names: [&str; N]) -> [Value; N] {
    let json: Value = serde_json::from_str(&status(place, true).await.unwrap()).unwrap();
    names.map(|name| json[name].clone())
}

#[tokio::test]
async fn a_syncer_and_its_folder_tell_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let mut learner = Learner::join(&server, 1).await;
    learner.merge().await;
    let (asked, found) = (asking(&server), folder(dir.path()));

    let shown = status(&asked, false).await.unwrap();
    for part in ["1 in rounds, 1 connected, 1 ever seen", "in 1 rounds", "fine; ", "finished       no"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(shown.contains("last merge     ") && !shown.contains("last merge     –"), "{shown}");
    // While the syncer works, the folder shows the run up to the last decision, long before a snapshot.
    let names = ["run", "tokensMerged", "rounds", "learnersTotal", "finished"];
    let now = figures(&asked, names).await;
    assert!(now[1].as_u64().unwrap() > 0);
    assert_eq!(figures(&found, names).await, now);
    let shown = status(&found, false).await.unwrap();
    assert!(shown.contains("1 ever seen") && !shown.contains("disk"), "{shown}");

    for place in [&asked, &found] {
        let credits = table(inspect::learners, place, (false, false)).await;
        assert!(credits[0].contains("tokens merged") && credits[1].contains("learner 1"), "{credits:?}");
        let json: Value =
            serde_json::from_str(&table(inspect::learners, place, (true, false)).await[0]).unwrap();
        assert_eq!(json["tokensMerged"], now[1]);
        let csv = table(inspect::learners, place, (false, true)).await;
        assert!(csv[1].starts_with("1,learner 1,other,test,"), "{csv:?}");
        let csv = table(inspect::status, place, (false, true)).await;
        assert_eq!(csv.len(), 2, "{csv:?}");
        assert!(csv[1].starts_with(&format!("{},", now[0].as_str().unwrap())), "{csv:?}");
        let merged = csv[0].split(',').position(|head| head == "tokens merged").unwrap();
        assert_eq!(csv[1].split(',').nth(merged), Some(&*now[1].to_string()), "{csv:?}");
        let args =
            EventsArgs { place: place.clone(), name: String::new(), limit: 50, json: false, csv: true };
        let csv = apart(move || inspect::events(&args)).await.unwrap();
        assert!(csv.starts_with("time (ms since 1970),kind,") && csv.contains("learner 1 joined"), "{csv}");
        assert!(events(place, "", false).await.contains("learner 1 joined (test)."));
        assert!(events(place, "LEARNER 1", false).await.contains("learner 1 joined (test)."));
        let first: Value =
            serde_json::from_str(events(place, "", true).await.lines().last().unwrap()).unwrap();
        assert_eq!(first["text"], "The run began.");
        assert_eq!(events(place, "nobody & none", false).await, "No such events.");
    }
    // The column heads are those of the dashboard, which reads such files.
    let dashboard = include_str!("../../../web-demo/pages/dashboard/table.ts");
    let csv = table(inspect::history, &asked, (false, true)).await;
    for head in csv[0].split(',') {
        assert!(dashboard.contains(&format!("\"{head}\"")), "{head}");
    }
    assert!(csv.len() > 1 && csv[1..].iter().all(|line| line.split(',').count() == 10), "{csv:?}");
    assert!(table(inspect::history, &asked, (false, false)).await[0].contains("held-out loss"));

    server.stop().await;
    let (json, shown) = (table(inspect::history, &found, (true, false)).await, status(&found, false).await);
    let series: Value = serde_json::from_str(&json[0]).unwrap();
    assert!(!series["timeS"].as_array().unwrap().is_empty(), "{series}");
    assert!(shown.unwrap().contains("as of the newest decision in its folder"));
}

#[tokio::test]
async fn says_in_one_sentence_what_is_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let error = status(&folder(dir.path()), false).await.unwrap_err();
    assert_eq!(error.exit_code(), 16, "{error}");
    // The port is free again at once.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = Server::start(config(dir.path())).await;
    let page = format!("http://{}/teach", server.address);
    for url in [format!("http://{free}"), "ftp://host".into(), "localhost".into(), page] {
        let error = status(&PlaceArgs { url: url.clone(), ca: None, dir: None }, false).await.unwrap_err();
        assert_eq!(error.exit_code(), 20, "{error}");
        let text = error.to_string();
        assert!(text.starts_with(&format!("no syncer answers at {url} (")), "{text}");
        assert!(!text.contains('\n') && text.contains("--dir"), "{text}");
    }
    server.stop().await;
}
