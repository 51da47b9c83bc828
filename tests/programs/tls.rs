//! Test of TLS with real programs: a syncer with a certificate of a private authority, and a learner that trusts it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use archipelago_tests::processes::program;
use archipelago_tests::processes::whole_machine;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::Value;

/// Process that is killed when dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // Fails only if the process has already ended, which is fine.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Writes the certificate of an authority, and a certificate for this machine that it issued, with its key. Returns the
/// files.
fn certificates(dir: &Path) -> [String; 3] {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, "an authority of our own");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let leaf =
        CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    [("ca.pem", authority), ("cert.pem", leaf.pem()), ("key.pem", key.serialize_pem())].map(|(name, text)| {
        let path = dir.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    })
}

fn run(name: &str, arguments: &[&str]) -> Output {
    Command::new(program(name)).args(arguments).output().unwrap()
}

/// Goal: printed links use TLS, and a learner that trusts the authority trains and downloads over it. A learner that
/// does not trust it, or that uses plain text, reports a remedy.
#[test]
fn a_learner_trains_over_tls_with_a_private_authority() {
    let _machine = whole_machine();
    let dir = tempfile::tempdir().unwrap();
    let [ca, cert, key] = certificates(dir.path());
    let folder = dir.path().join("run");
    let small = ["--preset", "tiny", "--corpus-bytes", "200kB", "--no-eval", "--json", "--quiet"];
    let mut syncer = Command::new(program("syncer-server"));
    syncer.args(["serve", "--listen", "127.0.0.1:0", "--dir", folder.to_str().unwrap()]).args(small);
    syncer.args(["--tls-cert", &cert, "--tls-key", &key]).stdout(Stdio::piped());
    let mut syncer = Killed(syncer.spawn().unwrap());
    let mut line = String::new();
    let mut said = BufReader::new(syncer.0.stdout.take().unwrap());
    said.read_line(&mut line).unwrap();
    let said: Value = serde_json::from_str(&line).unwrap();
    let (url, join) = (said["url"].as_str().unwrap(), said["join"].as_str().unwrap());
    assert!(url.starts_with("https://127.0.0.1:") && join.starts_with("wss://127.0.0.1:"), "{said}");

    let identity = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let mut learner = Command::new(program("native-learner"));
    learner.args(["join", url, "--ca", &ca, "--engine", "cpu", "--threads", "1", "--json", "--verbose"]);
    learner.args(["--identity", &identity("anne")]).stdout(Stdio::piped());
    let mut learner = Killed(learner.spawn().unwrap());
    let told = BufReader::new(learner.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    let merged = told.take(100_000).find(|line| line.contains("\"event\":\"merged\""));
    assert!(merged.is_some(), "an update is merged");

    let status = run("syncer-server", &["status", "--url", url, "--ca", &ca, "--json"]);
    assert!(status.status.success(), "{status:?}");
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert!(status["tokensMerged"].as_u64().unwrap() > 0, "{status}");
    let doctor = run("native-learner", &["doctor", join, "--ca", &ca, "--engine", "cpu"]);
    let text = String::from_utf8(doctor.stdout).unwrap();
    assert!(text.contains("ok   http") && text.contains("ok   socket"), "{text}");

    let bert = identity("bert");
    let stranger = ["--identity", &bert, "--engine", "cpu", "--max-contact", "1s"];
    let refused = |address: &str, more: &[&str], code: i32, part: &str| {
        let output = run("native-learner", &[&["join", address], &stranger[..], more].concat());
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains(part), "{part}: {text}");
    };
    refused(join, &[], 3, "an authority that is not trusted here");
    refused(&join.replacen("wss", "ws", 1), &[], 3, "accepts only https");
    refused(join, &["--ca", &key], 2, "holds no certificate");
    refused(join, &["--ca", "no such file"], 2, "--ca no such file");
}
