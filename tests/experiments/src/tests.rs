//! Tests of the settings of every subject.

use super::*;

fn simulate(flags: &str) -> Result<String, SimulateError> {
    let words = ["simulate"].into_iter().chain(flags.split_whitespace()).map(Into::into);
    let given = archipelago_cli::parse::<Cli>(words).unwrap_or_else(|error| panic!("{flags}: {error:?}"));
    run(&given.cli, &mut |_| {})
}

/// Checks that each of `values` is refused at once with the flag's name: without a panic and without any computation.
fn check(subject: &str, flag: &str, values: &[&str]) {
    for value in values {
        let error = simulate(&format!("{subject} --{flag}={value}")).unwrap_err();
        assert_eq!(error.exit(), Exit::Settings, "{subject} --{flag}={value}: {error}");
        assert!(error.to_string().contains(&format!("--{flag} ")), "{subject} {value}: {error}");
    }
}

#[test]
fn bad_flags_are_named() {
    let huge = u64::MAX.to_string();
    for subject in ["run --vary beta2=0.9", "heterogeneity", "failures"] {
        check(subject, "batch", &["0", "4097", "4294967295"]);
        check(subject, "steps", &["0", "1000001", &huge]);
        check(subject, "learners", &["0", "257", "4000000000"]);
        check(subject, "lr", &["0", "-1", "NaN", "inf"]);
        check(subject, "beta2", &["1", "NaN"]);
        check(subject, "weight-decay", &["-1", "inf"]);
        check(subject, "seeds", &["0", "4294967295"]);
        check(subject, "jobs", &["1000000"]);
        check(subject, "step-ms", &["0", &huge]);
        for flag in ["latency-ms", "latency-jitter-ms"] {
            check(subject, flag, &[&huge]);
        }
        for flag in ["grace-ratio", "warmup", "lr-min-ratio", "momentum-warmup"] {
            check(subject, flag, &["-0.1", "1.1", "NaN"]);
        }
        check(subject, "sync-every", &["0", "4294967295"]);
        check(subject, "fragments", &["0", "65535"]);
        check(subject, "rounds-in-flight", &["0", "4294967295"]);
        check(subject, "outer-lr", &["0", "inf", "NaN"]);
        check(subject, "block", &["0", "4294967288"]);
    }
    check("heterogeneity", "speed-gap", &["-1", "inf", "1e300"]);
    check("heterogeneity", "variation", &["-1", "0.58", "NaN"]);
    // They do not divide a batch of 32 windows.
    check("failures", "learners", &["3", "20"]);
    check("goodput", "chips", &["0", &huge]);
    check("goodput", "learners", &["0", "65537"]);
    check("goodput", "slice-chips", &["0"]);
    for flag in ["hours", "mtbi-years", "away-scale-s", "away-shape", "away-exponent"] {
        check("goodput", flag, &["0", "-1", "NaN", "inf", "1e300"]);
    }
    for flag in ["step-s", "down-scale-s", "up-scale-s", "gather-s", "restart-s", "speed-spread"] {
        check("goodput", flag, &["-1", "NaN", "inf", "1e300"]);
    }
    check("bandwidth", "fragments", &["0", "4294967295"]);
    check("bandwidth", "rounds-in-flight", &["0", "4294967295"]);
    check("bandwidth", "latency-ms", &["-1", "inf", "NaN"]);
    for flag in ["params-billions", "step-s", "utilisation", "layer-share"] {
        check("bandwidth", flag, &["0", "-1", "NaN", "inf", "1e300"]);
    }
    check("scavenging", "learners", &["0", "65"]);
    check("scavenging", "extra", &["65"]);
    check("scavenging", "steps", &["0", "19", "100001"]);
    check("scavenging", "step-ms", &["0", "9", "60001", &huge]);
    for flag in ["state-gb", "link-gbit-s", "change-every-s"] {
        check("scavenging", flag, &["-1", "NaN", "inf", "1e300"]);
    }
    check("regions", "step-ms", &["0", "9", "600001", &huge]);
    check("regions", "fragments", &["0", "257"]);
    check("regions", "rounds-in-flight", &["0", "65"]);
    for flag in ["params-billions", "world-gbit-s", "states-gbit-s"] {
        check("regions", flag, &["0", "-1", "NaN", "inf", "1e300"]);
    }
}

#[test]
fn bad_flags_of_a_plan_are_named() {
    let huge = u64::MAX.to_string();
    let plan = "run --vary beta2=0.9";
    check(plan, "tokens", &["0", "2047", &huge]);
    check(plan, "link-kbit", &["0", &huge]);
    check(plan, "leave-every-ms", &[&huge]);
    check(&format!("{plan} --leave-every-ms 100"), "away-ms", &["0", "301"]);
    check(plan, "choosing-seeds", &["4294967295"]);
    check(plan, "average", &["-0.1", "1.1", "NaN"]);
    check(plan, "samples", &["1001"]);
    check(plan, "step-jitter", &["-1", "2", "NaN"]);
    for flag in ["width", "context"] {
        check(plan, flag, &["0", "12", "4294967295"]);
    }
    check(plan, "start-learners", &["0", "5"]);
    check(plan, "cohort-max", &["0", "257"]);
    check(plan, "batches", &["513", "8+4294967295"]);
    check(plan, "far-ms", &[&huge]);
    check(plan, "cut-steps", &["4294967295"]);
    for flag in ["cut-from-steps", "ramp-steps"] {
        check(plan, flag, &["0", "4294967295"]);
    }
    for flag in ["turns-max", "half-life-turns"] {
        check(plan, flag, &["0", "-1", "inf", "NaN"]);
    }
    check(plan, "hostile", &["91", "5", "4294967295"]);
    check(&format!("{plan} --attack edge --extra 1"), "hostile", &["25"]);
    check(plan, "norm-ratio-max", &["-1", "1001", "NaN"]);
}

/// Goal: one file may have the settings of several tables, and flags override it.
#[test]
fn a_file_gives_settings() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("simulate.toml");
    fs::write(&file, "hours = 5\nlearners = [2]\nchips = [1000, 2000]\nutilisation = 0.5\njson = true")
        .unwrap();
    let said = simulate(&format!("goodput --config {} --chips 3000", file.display())).unwrap();
    let cases: Value = serde_json::from_str(&said).unwrap();
    let names: Vec<&str> =
        cases.as_array().unwrap().iter().filter_map(|case| case["case"].as_str()).collect();
    assert_eq!(names, ["not elastic, 3 k chips", "M = 2, 3 k chips"]);
}

/// Goal: quick plots of the evidence are those of the present state machines.
#[test]
fn quick_plots_of_the_evidence_are_reproduced() {
    let folder = tempfile::tempdir().unwrap();
    let there = concat!(env!("CARGO_MANIFEST_DIR"), "/../evidence");
    for subject in ["goodput", "bandwidth", "scavenging", "regions"] {
        let drawn = folder.path().join(subject);
        simulate(&format!("{subject} --plots {}", drawn.display())).unwrap();
        for plot in fs::read_dir(&drawn).unwrap().map(|entry| entry.unwrap()) {
            let kept = fs::read_to_string(Path::new(there).join(plot.file_name())).unwrap();
            let again = format!(
                "{:?}: `simulate {subject} --plots tests/evidence`, and see to its page",
                plot.file_name()
            );
            assert!(kept == fs::read_to_string(plot.path()).unwrap(), "{again}");
        }
    }
}

/// Goal: each setting has a flag, and `clap` finds no errors.
#[test]
fn the_command_line_holds_together() {
    let mut command = archipelago_cli::command::<Cli>();
    command.build();
    for subject in command.get_subcommands().filter(|subject| subject.get_name() != "help") {
        let nameless = subject.get_arguments().find(|arg| arg.get_long().is_none());
        assert!(nameless.is_none(), "{}: {nameless:?}", subject.get_name());
    }
}

#[test]
fn settings_without_a_value_are_not_listed() {
    let args = serde_json::json!({ "choose": "", "context": null, "extra": [0, 4], "seeds": 2 });
    let told = constants(&args);
    let told: Vec<_> = told.iter().map(|(flag, value)| (flag.as_str(), value.as_str())).collect();
    assert_eq!(told, [("extra", "0,4"), ("seeds", "2")]);
}
