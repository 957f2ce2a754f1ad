//! explain, compare, what-if, sweep and merge from the outside: sums, exit codes, files.

use std::fs;
use std::path::Path;

use assert_cmd::Command as Cli;
use predicates::str::{contains, is_empty};
use serde_json::Value;

fn fsdpsim(args: &[&str]) -> Cli {
    let mut command = Cli::cargo_bin("fsdpsim").expect("built");
    command.args(args).env_remove("FSDPSIM_CALIBRATION");
    command
}

fn stdout(args: &[&str]) -> String {
    let assert = fsdpsim(args).assert().success();
    String::from_utf8(assert.get_output().stdout.clone()).expect("text")
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(args)).expect("json")
}

fn ns(value: &Value) -> i64 {
    value.as_i64().expect("whole nanoseconds")
}

/// Sum of a field over a list.
fn sum(list: &Value, field: &str) -> i64 {
    list.as_array()
        .expect("list")
        .iter()
        .map(|item| ns(&item[field]))
        .sum()
}

#[test]
fn parts_causes_phases_units_and_path_each_add_up_to_the_step() {
    for fsdp in ["v1", "v2", "ddp"] {
        let document = json(&["explain", "dsv3-proxy", "--fsdp", fsdp, "--format", "json"]);
        let result = &document["result"];
        let step = ns(&result["step_ns"]);
        assert!(step > 0);
        let parts = result["parts_ns"].as_object().expect("parts");
        assert_eq!(parts.values().map(ns).sum::<i64>(), step, "{fsdp}");
        for kind in ["causes", "phases", "units"] {
            assert_eq!(sum(&result[kind], "total_ns"), step, "{fsdp} {kind}");
            assert_eq!(sum(&result[kind], "critical_ns"), step, "{fsdp} {kind}");
        }
        assert_eq!(sum(&result["cells"], "ns"), step, "{fsdp}");
        assert_eq!(sum(&result["critical_path"], "critical_ns"), step, "{fsdp}");
    }
}

#[test]
fn the_gap_adds_up_to_the_nanosecond_and_is_explained() {
    let args = [
        "explain",
        "dsv3-proxy",
        "--fsdp",
        "v2",
        "--against",
        "v1",
        "--format",
        "json",
    ];
    let document = json(&args);
    let gap = &document["gap"];
    let (left, right) = (ns(&gap["left_ns"]), ns(&gap["right_ns"]));
    assert_eq!(ns(&gap["gap_ns"]), right - left);
    let unexplained = ns(&gap["unexplained_ns"]);
    assert_eq!(
        sum(&gap["contributions"], "gap_ns") + unexplained,
        right - left
    );
    assert_eq!(ns(&document["result"]["step_ns"]), right);
    assert_eq!(ns(&document["against"]["step_ns"]), left);
    // Without what each adds, the two steps are the same within a percent.
    assert!(100 * unexplained.abs() <= left, "{unexplained} of {left}");
}

#[test]
fn the_gap_as_markdown_fits_a_pull_request() {
    let args = [
        "explain",
        "dsv3-proxy",
        "--fsdp",
        "v2",
        "--against",
        "v1",
        "--top",
        "3",
    ];
    let text = stdout(&[&args[..], &["--format", "markdown"]].concat());
    let table: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
    // Heading, rule, three causes, others, remainder, sum.
    assert_eq!(table.len(), 8, "{text}");
    assert!(table.last().expect("sum").contains("100.0"), "{text}");
    assert!(text.lines().all(|line| line.len() < 200), "{text}");
}

#[test]
fn compare_puts_steps_side_by_side_and_checks_a_limit() {
    let text = stdout(&["compare", "dsv3-proxy", "--fsdp", "v1,v2"]);
    assert!(text.starts_with("v1 "), "{text}");
    assert!(
        text.contains("/ v1") && text.contains("v2.dtensor_rebind"),
        "{text}"
    );
    let within = [
        "compare",
        "dsv3-proxy",
        "--fsdp",
        "v1,v2",
        "--fail-above",
        "90",
    ];
    fsdpsim(&within).assert().code(0).stderr(is_empty());
    let above = [
        "compare",
        "dsv3-proxy",
        "--fsdp",
        "v1,v2",
        "--fail-above",
        "1",
    ];
    fsdpsim(&above).assert().code(1).stderr(contains("v2 is"));
}

#[test]
fn every_proposal_is_answered_or_says_why_not() {
    let document = json(&[
        "what-if",
        "dsv3-proxy",
        "--fsdp",
        "v2",
        "--proposals",
        "--format",
        "json",
    ]);
    let answers = document["answers"].as_array().expect("answers");
    assert_eq!(answers.len(), fsdpsim::analysis::PROPOSALS.len());
    for answer in answers {
        let gains = answer["gain_ns"].is_number();
        assert_ne!(gains, answer["not_expressible"].is_string(), "{answer}");
        if gains {
            let of = |key: &str| answer[key].as_f64().expect("number");
            assert!(of("gain_low_ns") <= of("gain_ns") && of("gain_ns") <= of("gain_high_ns"));
            assert!(of("gain_ns") >= 0.0, "{answer}");
        }
    }
    let graph = answers
        .iter()
        .find(|a| a["change"] == "full-iteration-graph")
        .expect("there");
    assert!(
        graph["not_expressible"]
            .as_str()
            .expect("reason")
            .contains("alltoall")
    );
}

#[test]
fn gains_of_overlapping_changes_do_not_add() {
    let all_of = "cached-local-views,cached-grad-dtensors";
    let args = [
        "what-if",
        "dsv3-proxy",
        "--fsdp",
        "v2",
        "--all-of",
        all_of,
        "--format",
        "json",
    ];
    let document = json(&args);
    let gains: Vec<f64> = document["answers"]
        .as_array()
        .expect("answers")
        .iter()
        .map(|answer| answer["gain_ns"].as_f64().expect("number"))
        .collect();
    // Both leave out the views of the rebind.
    let [views, dtensors, joint] = gains[..] else {
        panic!("{gains:?}")
    };
    assert!(joint < views + dtensors - 1e6, "{gains:?}");
    assert!(joint > views.max(dtensors), "{gains:?}");
}

#[test]
fn each_ranks_all_causes() {
    let text = stdout(&[
        "what-if",
        "dsv3-proxy",
        "--fsdp",
        "v1",
        "--each",
        "--format",
        "csv",
    ]);
    let gains: Vec<f64> = text
        .lines()
        .skip(1)
        .map(|line| {
            line.split(',')
                .nth(3)
                .expect("gain")
                .parse()
                .expect("number")
        })
        .collect();
    assert!(gains.len() > 20);
    assert!(gains.windows(2).all(|pair| pair[0] >= pair[1]), "{gains:?}");
}

#[test]
fn questions_without_an_answer_end_with_code_2_and_a_remedy() {
    let ask = |args: &[&str]| fsdpsim(&[&["what-if", "dsv3-proxy", "--fsdp", "v2"], args].concat());
    ask(&[])
        .assert()
        .code(2)
        .stderr(contains("help: give --remove"));
    ask(&["--remove", "v2.dtensor_rebnd"])
        .assert()
        .code(2)
        .stderr(contains("did you mean `v2.dtensor_rebind`?"));
    ask(&["--scale", "v2.unshard"])
        .assert()
        .code(2)
        .stderr(contains("CAUSE=FACTOR"));
    ask(&["--scale", "v2.unshard=-1"])
        .assert()
        .code(2)
        .stderr(contains("from 0 up"));
    ask(&["--proposal", "batched-grad-copies"])
        .assert()
        .code(2)
        .stderr(contains("did you mean `batched-grad-copy`?"));
    ask(&["--proposal", "full-iteration-graph"])
        .assert()
        .code(2)
        .stderr(contains("not expressible"));
    ask(&["--set", "model.num_experts=3"])
        .assert()
        .code(2)
        .stderr(contains("model.num_experts"));
    let plot = ["explain", "dsv3-proxy", "--plot", "step.pdf"];
    fsdpsim(&plot)
        .assert()
        .code(2)
        .stderr(contains(".svg or .png"));
}

#[test]
fn plots_are_whole_images() {
    let dir = tempfile::tempdir().expect("dir");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (svg, png, lines) = (path("gap.svg"), path("step.png"), path("lines.svg"));
    stdout(&[
        "explain",
        "dsv3-proxy",
        "--fsdp",
        "v2",
        "--against",
        "v1",
        "--plot",
        &svg,
    ]);
    stdout(&["explain", "dsv3-proxy", "--fsdp", "v2", "--plot", &png]);
    stdout(&[
        "sweep",
        "dsv3-proxy",
        "--vary",
        "host_speed=1,2",
        "--plot",
        &lines,
    ]);
    let text = fs::read_to_string(&svg).expect("svg");
    for word in [
        "v2.dtensor_rebind",
        "step time (ms)",
        "not explained",
        "</svg>",
    ] {
        assert!(text.contains(word), "{word}");
    }
    assert!(
        fs::read_to_string(&lines)
            .expect("svg")
            .contains("host_speed")
    );
    let bytes = fs::read(&png).expect("png");
    assert!(bytes.starts_with(b"\x89PNG") && bytes.ends_with(&[0xae, 0x42, 0x60, 0x82]));
}

const GRID: [&str; 8] = [
    "sweep",
    "dsv3-proxy",
    "--fsdp",
    "v2",
    "--vary",
    "host_speed=0.5..1.5+0.1",
    "--vary",
    "train.num_microbatches=1,2",
];

#[test]
fn a_sweep_is_the_same_on_one_thread_or_two_and_in_one_part_or_three() {
    let dir = tempfile::tempdir().expect("dir");
    let whole = stdout(&[&GRID[..], &["--jobs", "1"]].concat());
    assert_eq!(whole, stdout(&[&GRID[..], &["--jobs", "2"]].concat()));
    assert_eq!(whole.lines().count(), 1 + 22);
    let part = |i: u32| {
        dir.path()
            .join(format!("part.{i}.csv"))
            .display()
            .to_string()
    };
    let parts: Vec<String> = (1..=3).map(part).collect();
    for (index, path) in parts.iter().enumerate() {
        let shard = format!("{}/3", index + 1);
        stdout(&[&GRID[..], &["--shard", &shard, "-o", path]].concat());
    }
    let merge = |paths: &[&str]| fsdpsim(&[&["merge"], paths].concat());
    let [a, b, c] = [&parts[0], &parts[1], &parts[2]].map(String::as_str);
    merge(&[c, a, b]).assert().success().stdout(whole);
    merge(&[a, b])
        .assert()
        .code(3)
        .stderr(contains("7 of 22 points are missing"));
    merge(&[a, b, c, a])
        .assert()
        .code(3)
        .stderr(contains("again in"));
    let other = dir.path().join("other.csv").display().to_string();
    stdout(&[
        "sweep",
        "dsv3-proxy",
        "--vary",
        "host_speed=1,2",
        "-o",
        &other,
    ]);
    merge(&[a, b, &other])
        .assert()
        .code(3)
        .stderr(contains("another sweep"));
    merge(&["no-such-file"])
        .assert()
        .code(3)
        .stderr(contains("cannot read"));
}

#[test]
fn a_stopped_sweep_goes_on_where_it_was() {
    for format in ["csv", "jsonl"] {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("out").display().to_string();
        let args = [&GRID[..], &["--format", format, "-o", &path]].concat();
        stdout(&args);
        let whole = fs::read_to_string(&path).expect("rows");
        // Stopped in the middle of a line, with a hole before it.
        let lines: Vec<&str> = whole.lines().collect();
        let mut stopped = [&lines[..4], &lines[6..9]].concat().join("\n");
        stopped.push('\n');
        stopped.push_str(&lines[9][..lines[9].len() / 2]);
        fs::write(&path, stopped).expect("written");
        stdout(&[&args[..], &["--resume"]].concat());
        assert_eq!(fs::read_to_string(&path).expect("rows"), whole, "{format}");
        // Another grid does not go on with this file.
        let other = [
            "sweep",
            "dsv3-proxy",
            "--vary",
            "host_speed=1,2",
            "-o",
            &path,
            "--resume",
        ];
        fsdpsim(&other)
            .assert()
            .code(3)
            .stderr(contains("holds another sweep"));
        assert_eq!(fs::read_to_string(&path).expect("rows"), whole, "{format}");
    }
}

#[test]
fn impossible_points_are_rows_with_a_reason_and_slips_are_refused() {
    let args = [
        "sweep",
        "dsv3-proxy",
        "--vary",
        "parallel.expert_model_parallel_size=2,3",
    ];
    let assert = fsdpsim(&args).assert().success();
    let output = assert
        .stderr(contains("1 of 2 points cannot be simulated"))
        .get_output()
        .clone();
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(text.lines().count(), 3);
    let sweep = |vary: &str| fsdpsim(&["sweep", "dsv3-proxy", "--vary", vary]);
    sweep("model.num_layer=1,2")
        .assert()
        .code(2)
        .stderr(contains("num_layers"));
    sweep("model.num_layers=x").assert().code(2);
    sweep("model.num_layers")
        .assert()
        .code(2)
        .stderr(contains("KEY=VALUES"));
    let shard = [
        "sweep",
        "dsv3-proxy",
        "--vary",
        "host_speed=1",
        "--shard",
        "3/2",
    ];
    fsdpsim(&shard)
        .assert()
        .code(2)
        .stderr(contains("I from 1 to N"));
    assert!(!Path::new("3/2").exists());
}

#[test]
fn json_lines_hold_typed_values() {
    let text = stdout(&[
        "sweep",
        "dsv3-proxy",
        "--vary",
        "fsdp=v1,v2",
        "--vary",
        "model.num_layers=2,4",
        "--format",
        "jsonl",
    ]);
    let rows: Vec<Value> = text
        .lines()
        .map(|l| serde_json::from_str(l).expect("json"))
        .collect();
    assert_eq!(rows.len(), 4);
    assert_eq!(rows[1]["fsdp"], "v1");
    assert_eq!(rows[1]["model.num_layers"], 4);
    assert!(rows[1]["step_ns"].as_u64() > rows[0]["step_ns"].as_u64());
    assert!(rows[0]["error"].is_null());
    assert!(!text.contains("NaN"));
}
