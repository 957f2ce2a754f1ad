//! `fsdpsim run`: what it refuses and how, what its figures add up to, and that a seed is a result.

use std::fs;

use assert_cmd::Command as Cli;
use predicates::str::{contains, is_empty};
use serde_json::Value;

fn run(args: &[&str]) -> Cli {
    let mut command = Cli::cargo_bin("fsdpsim").expect("built");
    command
        .arg("run")
        .args(args)
        .env_remove("FSDPSIM_CALIBRATION");
    command
}

fn refused(args: &[&str], code: i32, messages: &[&str]) {
    let mut assert = run(args).assert().code(code).stdout(is_empty());
    for &message in messages {
        assert = assert.stderr(contains(message));
    }
    assert.stderr(contains("help: "));
}

fn result(args: &[&str]) -> Value {
    let output = run(&[args, &["--format", "json"]].concat())
        .assert()
        .success();
    // Notes say what of a spec is not followed; nothing else belongs on stderr.
    let stderr = String::from_utf8_lossy(&output.get_output().stderr).into_owned();
    assert!(
        stderr.lines().all(|line| line.starts_with("note: ")),
        "{stderr}"
    );
    let value: Value = serde_json::from_slice(&output.get_output().stdout).expect("json");
    value["result"].clone()
}

fn ns(value: &Value, key: &str) -> i64 {
    value[key].as_i64().expect("whole nanoseconds")
}

#[test]
fn a_calibration_that_is_not_there_or_not_readable_ends_with_3_and_the_shipped_names() {
    for name in ["no-such.toml", "/"] {
        let messages = [
            format!("error: {name}: cannot be read"),
            "help: ".to_owned(),
        ];
        let messages: Vec<&str> = messages.iter().map(String::as_str).collect();
        refused(&["dsv3-proxy", "--calibration", name], 3, &messages);
        refused(&["dsv3-proxy", "--calibration", name], 3, &["h200-1gpu"]);
    }
}

#[test]
fn a_calibration_that_does_not_read_ends_with_3_and_its_line() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("c.toml");
    let file = path.display().to_string();
    let shipped = fs::read_to_string("calibration/h200-1gpu.toml").expect("shipped");
    let line = 1 + shipped
        .lines()
        .position(|line| line == "speed = 1.0")
        .expect("host speed");
    let at = format!("line {line}, column 1");
    let edited = |from: &str, to: &str| shipped.replacen(from, to, 1);
    for (text, messages) in [
        (String::new(), ["c.toml", "schema_version"]),
        (
            "schema_version = \n".to_owned(),
            ["c.toml", "line 1, column 18"],
        ),
        (
            edited("schema_version = 1", "schema_version = 99"),
            ["schema 99", "reads schema 1"],
        ),
        (
            edited("\nspeed = 1.0", "\nsped = 1.0"),
            ["unknown field `sped`", &at],
        ),
        (
            edited("\nspeed = 1.0", "\nspeed = \"fast\""),
            ["invalid type: string \"fast\"", "c.toml"],
        ),
        (
            edited("\nspeed = 1.0", "\nspeed = -1.0"),
            ["host.speed is -1", "a positive number"],
        ),
        (
            edited("\nspeed = 1.0", "\nspeed = nan"),
            ["host.speed is NaN", "a positive number"],
        ),
    ] {
        fs::write(&path, text).expect("written");
        refused(&["dsv3-proxy", "--calibration", &file], 3, &messages);
    }
    fs::write(&path, [0xff, 0xfe, 0x00]).expect("written");
    refused(
        &["dsv3-proxy", "--calibration", &file],
        3,
        &["c.toml", "UTF-8"],
    );
}

#[test]
fn a_wrong_spec_ends_with_2_its_place_and_a_remedy() {
    for (set, message) in [
        ("model.num_layer=3", "did you mean `model.num_layers`?"),
        ("modle.num_layers=3", "did you mean `model`?"),
        ("model.num_layers=many", "invalid type: string \"many\""),
        ("model.num_layers=-1", "--set model.num_layers=-1"),
        (
            "parallel.expert_model_parallel_size=3",
            "32 experts cannot be spread evenly over 3 ranks",
        ),
        ("parallel.world_size=7", "--set parallel.world_size=7"),
        (
            "ddp.num_distributed_optimizer_instances=3",
            "ddp.num_distributed_optimizer_instances",
        ),
        ("run.cuda_graph=full_iteration", "run.cuda_graph"),
    ] {
        refused(&["dsv3-proxy", "--set", set], 2, &["error: ", message]);
    }
    refused(
        &["dsv3-proxy", "--host-speed", "0"],
        2,
        &["--host-speed is 0", "1.1 is a host"],
    );
    refused(&["no-such-spec"], 2, &["no-such-spec", "dsv3-proxy"]);
    run(&["dsv3-proxy", "--iterations", "0"])
        .assert()
        .code(2)
        .stderr(contains("--iterations"));
    run(&["dsv3-proxy", "--fsdp", "v3"])
        .assert()
        .code(2)
        .stderr(contains("v1, v2, ddp"));
}

#[test]
fn the_parts_of_a_step_add_up_and_the_proxy_is_bound_by_its_host() {
    for fsdp in ["ddp", "v1", "v2"] {
        let result = result(&["dsv3-proxy", "--fsdp", fsdp]);
        let step = ns(&result, "step_centre_ns");
        let parts = [
            "host_ns",
            "launch_ns",
            "exposed_communication_ns",
            "device_wait_ns",
        ];
        assert_eq!(
            parts.map(|part| ns(&result, part)).iter().sum::<i64>(),
            step,
            "{fsdp}"
        );
        assert_eq!(
            ns(&result, "device_busy_ns") + ns(&result, "device_idle_ns"),
            step,
            "{fsdp}"
        );
        let phases = result["phases_ns"].as_object().expect("phases").values();
        let phases: i64 = phases.filter_map(Value::as_i64).sum();
        assert_eq!(
            phases,
            ns(&result, "host_ns") + ns(&result, "launch_ns"),
            "{fsdp}"
        );
        // 10.5 ms in the traces.
        let busy_ms = ns(&result, "device_busy_ns") as f64 / 1e6;
        assert!((busy_ms / 10.5 - 1.0).abs() < 0.15, "{fsdp}: {busy_ms}");
        assert!(ns(&result, "host_ns") * 10 > step * 9, "{fsdp}");
        let order = ["step_min_ns", "step_ns", "step_max_ns"].map(|key| ns(&result, key));
        assert!(
            order.is_sorted() && order[0] < order[2],
            "{fsdp}: {order:?}"
        );
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes_on_one_thread_or_two() {
    let bytes = |seed: &str, threads: &str| {
        let args = [
            "dsv3-proxy",
            "--fsdp",
            "v2",
            "--seed",
            seed,
            "--format",
            "json",
        ];
        let output = run(&args)
            .env("RAYON_NUM_THREADS", threads)
            .assert()
            .success();
        output.get_output().stdout.clone()
    };
    let first = bytes("5", "1");
    assert!(first == bytes("5", "1"));
    assert!(first == bytes("5", "2"));
    assert!(first != bytes("6", "1"));
}

#[test]
fn a_faster_host_and_another_calibration_change_the_step() {
    let centre = |args: &[&str]| ns(&result(args), "step_centre_ns") as f64;
    let base = centre(&["dsv3-proxy"]);
    let fast = centre(&["dsv3-proxy", "--host-speed", "2"]);
    assert!(
        (base / fast - 2.0).abs() < 0.02,
        "host-bound: {base} {fast}"
    );
    // The environment names a calibration too; an argument goes first.
    run(&["dsv3-proxy"])
        .env("FSDPSIM_CALIBRATION", "no-such.toml")
        .assert()
        .code(3);
    run(&["dsv3-proxy", "--calibration", "h200-1gpu"])
        .env("FSDPSIM_CALIBRATION", "no-such.toml")
        .assert()
        .success();
}

/// What the machine's scatter leaves of the figures: medians and ratios of twenty steps stay with the
/// step without jitter, whatever the seed.
#[test]
fn twenty_steps_tell_what_the_step_without_jitter_tells() {
    for seed in ["0", "1", "2"] {
        let mut command = Cli::cargo_bin("fsdpsim").expect("built");
        let args = [
            "compare",
            "dsv3-proxy",
            "--fsdp",
            "v1,v2",
            "--seed",
            seed,
            "--format",
            "json",
        ];
        let output = command
            .args(args)
            .env_remove("FSDPSIM_CALIBRATION")
            .assert()
            .success();
        let value: Value = serde_json::from_slice(&output.get_output().stdout).expect("json");
        let results = value["results"].as_array().expect("results");
        for result in results {
            let centre = ns(result, "step_centre_ns") as f64;
            let off = ns(result, "step_ns") as f64 / centre - 1.0;
            assert!(off.abs() < 0.035, "seed {seed}: {off}");
        }
        let centre = |index: usize| ns(&results[index], "step_centre_ns") as f64;
        let ratio = value["ratios"][1].as_f64().expect("a ratio");
        assert!(
            (ratio / (centre(1) / centre(0)) - 1.0).abs() < 0.02,
            "seed {seed}: {ratio}"
        );
    }
}

#[test]
fn a_setting_that_is_not_followed_is_said_by_every_command_that_predicts() {
    let setting = "run.cuda_device_max_connections=1";
    for command in ["run", "compare", "explain"] {
        let output = assert_cmd::Command::cargo_bin("fsdpsim")
            .unwrap()
            .args([command, "dsv3-proxy", "--set", setting])
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {stderr}");
        let said = stderr
            .matches("`run.cuda_device_max_connections` is not followed")
            .count();
        assert_eq!(said, 1, "{command}: {stderr}");
        assert!(!String::from_utf8_lossy(&output.stdout).contains("note: "));
    }
}
