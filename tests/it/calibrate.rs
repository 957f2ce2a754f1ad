//! `fsdpsim calibrate`: the same bytes from the same data, planted costs found again, data that is
//! wrong refused with its place.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command as Cli;
use predicates::prelude::*;
use predicates::str::{contains, is_empty};

use fsdpsim::calibrate::{
    Events, ExpectedItem, Inflation, RecordedItem, TracedStep, expected_items, fit_classes,
    is_unrecorded, step_samples,
};
use fsdpsim::program::Program;
use fsdpsim::schedule::build;
use fsdpsim::spec::{Fsdp, Spec};

const DATA: &str = "calibration/data";

fn calibrate(data: &Path, output: &Path) -> Cli {
    let mut command = Cli::cargo_bin("fsdpsim").expect("built");
    command.arg("calibrate").arg(data).arg("-o").arg(output);
    command
}

#[test]
fn calibrating_the_shipped_data_gives_the_shipped_calibration_every_time() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("made.toml");
    let shipped = fs::read_to_string("calibration/h200-1gpu.toml").expect("shipped");
    let report = calibrate(Path::new(DATA), &path)
        .assert()
        .success()
        .stderr(is_empty());
    report.stdout(contains("host classes, mean phase error"));
    let made = fs::read_to_string(path).expect("written");
    // Not assert_eq: a whole calibration on the terminal helps nobody.
    assert!(made == shipped, "make calibration/h200-1gpu.toml again");
    let stdout = calibrate(Path::new(DATA), Path::new("-"))
        .assert()
        .success();
    assert!(stdout.get_output().stdout == shipped.as_bytes());
}

/// A data folder that reads the shipped files through absolute paths, its manifest edited.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new(edit: impl FnOnce(&str) -> String) -> Self {
        let dir = tempfile::tempdir().expect("dir");
        let data = fs::canonicalize(DATA).expect("data");
        let text = fs::read_to_string(data.join("manifest.toml")).expect("manifest");
        let absolute = text.replace("\"h200-", &format!("\"{}/h200-", data.display()));
        // The preset's name is no path.
        let absolute = absolute.replace(&format!("\"{}/h200-1gpu\"", data.display()), "\"test\"");
        fs::write(dir.path().join("manifest.toml"), edit(&absolute)).expect("written");
        Folder(dir)
    }

    /// The folder whose manifest reads `name` here instead of `file` in the shipped data.
    fn with(file: &str, name: &str, contents: &[u8]) -> Self {
        let shipped = fs::canonicalize(DATA).expect("data").join(file);
        let folder = Folder::new(|text| {
            let from = format!("\"{}\"", shipped.display());
            assert!(text.contains(&from), "{from} is in the manifest");
            text.replace(&from, &format!("\"{name}\""))
        });
        fs::write(folder.path().join(name), contents).expect("written");
        folder
    }

    fn path(&self) -> PathBuf {
        self.0.path().to_path_buf()
    }

    /// Calibrates; expects exit code 3, nothing on stdout, no file, and every message on stderr.
    fn refused(&self, messages: &[&str]) {
        let output = self.path().join("out.toml");
        let mut assert = calibrate(&self.path(), &output)
            .assert()
            .code(3)
            .stdout(is_empty());
        for &message in messages {
            assert = assert.stderr(contains(message));
        }
        assert.stderr(contains("help: "));
        assert!(!output.exists(), "nothing half-made is left");
    }
}

#[test]
fn an_edited_manifest_reads_the_same_data() {
    let folder = Folder::new(str::to_owned);
    let output = folder.path().join("out.toml");
    calibrate(&folder.path(), &output).assert().success();
    let classes = |text: &str| text.split("[host.classes]").nth(1).map(str::to_owned);
    let shipped = fs::read_to_string("calibration/h200-1gpu.toml").expect("shipped");
    let made = fs::read_to_string(output).expect("made");
    assert!(classes(&made) == classes(&shipped));
}

#[test]
fn a_folder_without_a_manifest_is_refused() {
    let dir = tempfile::tempdir().expect("dir");
    calibrate(dir.path(), &dir.path().join("out.toml"))
        .assert()
        .code(3)
        .stderr(contains("manifest.toml").and(contains("No such file")));
}

#[test]
fn a_manifest_that_does_not_read_is_refused_with_its_line() {
    let misspelt = Folder::new(|text| text.replacen("plain_ms", "plane_ms", 1));
    misspelt.refused(&["manifest.toml", "unknown field `plane_ms`", "line "]);
    let wrong_type =
        Folder::new(|text| text.replacen("microbatches = 2", "microbatches = \"2\"", 1));
    wrong_type.refused(&["manifest.toml", "microbatches = \"2\"", "expected u64"]);
    let newer = Folder::new(|text| text.replacen("schema_version = 1", "schema_version = 9", 1));
    newer.refused(&["manifest.toml", "schema 9", "reads schema 1"]);
    let version = Folder::new(|text| text.replacen("fsdp = \"v1\"", "fsdp = \"v7\"", 1));
    version.refused(&["manifest.toml", "`v7`"]);
    let spec = Folder::new(|text| text.replacen("\"dsv3-proxy\"", "\"dsv3-proxi\"", 1));
    spec.refused(&["manifest.toml", "dsv3-proxi"]);
    let reference = Folder::new(|text| text.replacen("tag = \"base\" }", "tag = \"bass\" }", 1));
    reference.refused(&["manifest.toml", "preset.reference"]);
}

#[test]
fn a_missing_file_is_refused_by_name() {
    let folder = Folder::new(|text| text.replacen("traces/v1.json.gz", "traces/v9.json.gz", 1));
    folder.refused(&["traces/v9.json.gz", "No such file"]);
}

#[test]
fn torn_and_foreign_traces_are_refused_by_name() {
    let whole = fs::read(format!("{DATA}/h200-1gpu/traces/v1.json.gz")).expect("a trace");
    let file = "h200-1gpu/traces/v1.json.gz";
    Folder::with(file, "torn.json.gz", &whole[..whole.len() / 2]).refused(&["torn.json.gz"]);
    Folder::with(file, "plain.json.gz", b"{\"traceEvents\": []}").refused(&["plain.json.gz"]);
    Folder::with(file, "empty.json.gz", b"").refused(&["empty.json.gz"]);
}

#[test]
fn a_torn_row_is_refused_with_its_line() {
    let file = "h200-1gpu/paired.jsonl";
    let rows = fs::read_to_string(format!("{DATA}/{file}")).expect("rows");
    let torn = &rows[..rows.len() - 100];
    let line = torn.lines().count();
    Folder::with(file, "rows.jsonl", torn.as_bytes())
        .refused(&["rows.jsonl", &format!("line {line} is not a measured row")]);
    let file = "h200-1gpu/host_ops.jsonl";
    let ops = fs::read_to_string(format!("{DATA}/{file}")).expect("host ops");
    let without: Vec<&str> = ops
        .lines()
        .filter(|line| !line.contains("\"stream.wait_event\""))
        .collect();
    Folder::with(file, "ops.jsonl", without.join("\n").as_bytes())
        .refused(&["ops.jsonl", "stream.wait_event"]);
}

#[test]
fn an_output_that_cannot_be_written_ends_with_3() {
    let dir = tempfile::tempdir().expect("dir");
    calibrate(Path::new(DATA), &dir.path().join("no/such/out.toml"))
        .assert()
        .code(3)
        .stdout(is_empty())
        .stderr(contains("error: cannot write"));
}

/// A planted world: what every class costs the host, and how a profiler slows it.
struct Planted {
    operator_ns: f64,
    runtime_ns: f64,
    slowness: f64,
    launch_ns: f64,
}

impl Planted {
    /// Cost of a class: anything between 0.5 and 8 us, by its name.
    fn own_ns(&self, class: &str) -> f64 {
        let hash = class
            .bytes()
            .fold(7u32, |h, b| h.wrapping_mul(31).wrapping_add(b.into()));
        500.0 + f64::from(hash % 7500)
    }

    /// Host time before a recorded operator that no work accounts for.
    const GAP_NS: f64 = 900.0;

    /// What the profiler records of one expected item.
    fn record(&self, program: &Program, item: &ExpectedItem) -> RecordedItem {
        let work = |id: &fsdpsim::program::HostWorkId| &program.host_works[id.index()];
        let before: f64 = item
            .before
            .iter()
            .map(|id| self.own_ns(&work(id).class) * f64::from(work(id).count))
            .sum();
        let (own, operators) = item.work.as_ref().map_or((0.0, 0), |id| {
            (self.own_ns(&work(id).class), work(id).recorded_events)
        });
        let gap = before
            + if item.work.is_some() {
                Self::GAP_NS
            } else {
                0.0
            };
        let slow = |plain: f64, operators: u32, runtime: u32| {
            plain * self.slowness
                + self.operator_ns * f64::from(operators)
                + self.runtime_ns * f64::from(runtime)
        };
        let runtime = item.before.len() as u32;
        RecordedItem {
            name: item.name.clone(),
            gap_ns: slow(gap, 0, runtime),
            gap_events: Events {
                operators: 0,
                runtime,
            },
            self_ns: slow(own, operators, 0),
            self_events: Events {
                operators,
                runtime: 0,
            },
            launch_ns: vec![slow(self.launch_ns, 0, 1); item.launches as usize],
            ..Default::default()
        }
    }

    /// Plain host time of a Program in this world.
    fn total_ns(&self, program: &Program) -> f64 {
        let items = expected_items(program);
        let items = items.iter().map(|item| {
            let plain = Planted {
                operator_ns: 0.0,
                runtime_ns: 0.0,
                slowness: 1.0,
                ..*self
            };
            let recorded = plain.record(program, item);
            recorded.gap_ns + recorded.self_ns + recorded.launch_ns.iter().sum::<f64>()
        });
        items.sum()
    }
}

fn program(fsdp: Fsdp, sets: &[&str]) -> Program {
    let spec = Spec::load("dsv3-proxy", sets, Some(fsdp)).expect("a valid spec");
    build(&spec, fsdp).expect("a valid program")
}

/// Recorded steps of a planted world give the world's costs back, on the recorded configuration and
/// on one that nobody recorded.
#[test]
fn planted_costs_are_recovered_from_recorded_steps() {
    let planted = Planted {
        operator_ns: 1900.0,
        runtime_ns: 3000.0,
        slowness: 1.3,
        launch_ns: 4000.0,
    };
    for fsdp in [Fsdp::Ddp, Fsdp::V1, Fsdp::V2] {
        let recorded = program(fsdp, &[]);
        let items: Vec<RecordedItem> = expected_items(&recorded)
            .iter()
            .map(|item| planted.record(&recorded, item))
            .collect();
        let samples = step_samples(&recorded, &items);
        assert_eq!((samples.missing_items, samples.extra_items), (0, 0));
        let phases = [
            "zero_grad",
            "forward",
            "backward",
            "finalize",
            "optimizer",
            "outside",
        ];
        let step = TracedStep {
            program: &recorded,
            samples: &samples,
            inflation: Inflation {
                operator_ns: planted.operator_ns,
                runtime_ns: planted.runtime_ns,
                slowness: phases.map(|phase| (phase, planted.slowness)).into(),
            },
        };
        let known: BTreeMap<String, f64> = ["runtime", "driver", "memcpy", "memset"]
            .map(|kind| (format!("launch/{kind}"), planted.launch_ns))
            .into();
        let fitted = fit_classes(&[step], &known);
        let preceded: Vec<&str> = expected_items(&recorded)
            .iter()
            .filter(|item| !item.before.is_empty())
            .filter_map(|item| item.work)
            .map(|id| recorded.host_works[id.index()].class.as_str())
            .collect();
        let mut checked = 0;
        for (class, cost) in &fitted {
            let free = !is_unrecorded(class) && !preceded.contains(&class.as_str());
            if free && !known.contains_key(class) && class != "c10d.peer" {
                let expected = planted.own_ns(class) + Planted::GAP_NS;
                assert!(
                    (cost.ns - expected).abs() < 1.0,
                    "{class}: {} {expected}",
                    cost.ns
                );
                checked += 1;
            }
        }
        assert!(checked > 100, "{checked}");
        for sets in [&[][..], &["model.num_layers=7", "train.num_microbatches=3"]] {
            let other = program(fsdp, sets);
            let total: f64 = other
                .actions(0)
                .map(|(_, action)| other.host_work(action))
                .map(|work| {
                    let cost = fitted.get(&work.class).map_or(0.0, |cost| cost.ns);
                    cost * f64::from(work.count)
                })
                .sum();
            let error = 100.0 * (total / planted.total_ns(&other) - 1.0);
            eprintln!("{fsdp:?} {sets:?}: {error:.3} %");
            assert!(error.abs() < 1.0, "{fsdp:?} {sets:?}: {error:.2} %");
        }
    }
}
