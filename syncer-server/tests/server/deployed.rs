//! Tests of the files in `deploy` for one machine and for several: the program accepts their settings.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use archipelago_core::wire::http::{HEALTH, READY};
use syncer_server::{Cli, Role, ServeConfig, Verb, parse};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy")
}

fn read(name: &str) -> String {
    fs::read_to_string(folder().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns the commands of `verb` in a YAML file, one word each.
fn commands(text: &str, verb: &str) -> Vec<Vec<String>> {
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().starts_with('#')).collect();
    let starts = (0..lines.len()).filter(|at| lines[*at].trim() == format!("- {verb}"));
    let words = |at: usize| {
        let indent = lines[at].len() - lines[at].trim_start().len();
        let same = lines[at..].iter().take_while(|line| {
            line.trim_start().starts_with("- ") && line.len() - line.trim_start().len() == indent
        });
        same.map(|line| filled(line.trim().trim_start_matches("- "))).collect()
    };
    starts.map(words).collect()
}

/// Replaces variables with a name, and the settings file with the one in the repository.
fn filled(word: &str) -> String {
    let run = folder().join("cluster/run.toml");
    let word = word.replace("/etc/archipelago/run.toml", run.to_str().unwrap());
    match word.split_once("${") {
        Some((before, rest)) => format!("{before}train.example{}", rest.split_once('}').unwrap().1),
        None => word,
    }
}

fn settings(words: &[String]) -> ServeConfig {
    let arguments = ["syncer-server"].into_iter().map(OsString::from).chain(words.iter().map(OsString::from));
    match parse(arguments).unwrap_or_else(|error| panic!("{words:?}: {error:?}")).verb {
        Verb::Serve(config) | Verb::Doctor(config) => *config,
        verb => panic!("{verb:?}"),
    }
}

/// Parses the commands in a file, and checks each one.
fn check(name: &str, expected: &[(&str, Option<Role>)]) -> Vec<ServeConfig> {
    let text = read(name);
    let mut found = Vec::new();
    let mut configs = Vec::new();
    for verb in ["serve", "doctor"] {
        for words in commands(&text, verb) {
            let config = settings(&words);
            found.push((verb, config.cluster.role));
            configs.push(config);
        }
    }
    assert_eq!(found, expected, "{name}");
    configs
}

#[test]
fn programs_are_started_with_flags_that_they_know() {
    check("compose.yaml", &[("serve", None)]);
    let (owner, gateway) = (Some(Role::Owner), Some(Role::Gateway));
    let several = [
        ("cluster/compose.yaml", &[("serve", owner), ("serve", gateway), ("doctor", owner)][..]),
        ("cluster/kubernetes/owners.yaml", &[("serve", owner)]),
        ("cluster/kubernetes/gateways.yaml", &[("serve", gateway)]),
    ];
    for (name, expected) in several {
        for config in check(name, expected) {
            assert_eq!(config.cluster.cluster, "poems", "{name} has the settings of run.toml");
            assert_eq!(config.cluster.blobs.as_deref(), Some("s3://runs"));
            let is_open = config.listen == "0.0.0.0:7700";
            assert_eq!(is_open, config.cluster.role == gateway, "{name}: learners come to gateways alone");
        }
    }
    let dockerfile = read("Dockerfile");
    let command = dockerfile.lines().find_map(|line| line.strip_prefix("CMD ")).unwrap();
    assert_eq!(settings(&serde_json::from_str::<Vec<String>>(command).unwrap()).listen, "0.0.0.0:7700");
}

#[test]
fn variables_are_those_of_flags() {
    let command = archipelago_cli::command::<Cli>();
    let serve = command.find_subcommand("serve").unwrap();
    let known: Vec<_> = serve.get_arguments().filter_map(|arg| arg.get_env()?.to_str()).collect();
    let text = read("cluster/secrets.env.example");
    let given: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let of = |name: &str| given.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).unwrap();
    let ours =
        given.iter().filter_map(|line| line.split('=').next()).filter(|it| it.starts_with("ARCHIPELAGO_"));
    let ours: Vec<_> = ours.collect();
    assert_eq!(ours.len(), 3, "{ours:?}");
    assert!(ours.iter().all(|name| known.contains(name)), "{ours:?}");
    let serve = ["serve", "--role=owner", "--blobs=s3://runs"].map(str::to_owned);
    let secrets = [
        format!("--bus={}", of("ARCHIPELAGO_BUS")),
        format!("--invite={}", of("ARCHIPELAGO_INVITE")),
        format!("--admin-token={}", of("ARCHIPELAGO_ADMIN_TOKEN")),
    ];
    let config = settings(&[&serve[..], &secrets].concat());
    assert_eq!(config.cluster.bus.len(), 3, "each record is on three servers");
    assert!(config.cluster.bus.iter().all(|url| url.contains(of("NATS_PASSWORD"))), "one password");
}

#[test]
fn probes_ask_routes_that_there_are_on_the_port_that_is_listened_on() {
    let text = read("cluster/kubernetes/gateways.yaml");
    let asked: Vec<_> =
        text.split("httpGet: {path: ").skip(1).map(|rest| rest.split(',').next().unwrap()).collect();
    assert_eq!(asked, [HEALTH, HEALTH, READY]);
    assert!(text.contains("{name: learners, containerPort: 7700}") && text.contains("targetPort: learners"));
}

#[test]
fn every_file_of_kubernetes_is_applied() {
    let text = read("cluster/kustomization.yaml");
    let mut named: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("  - kubernetes/")).collect();
    let there = fs::read_dir(folder().join("cluster/kubernetes")).unwrap();
    let mut there: Vec<_> = there.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
    named.sort_unstable();
    there.sort_unstable();
    assert_eq!(named, there);
    assert!(folder().join("cluster/nats.conf").exists() && text.contains("files: [nats.conf]"));
}
