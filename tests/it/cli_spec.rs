//! The command line around specs: exit codes, what goes to stdout and what to stderr.

use std::fs;
use std::process::{Command, Stdio};

use assert_cmd::Command as Cli;
use predicates::prelude::*;
use predicates::str::{contains, is_empty};

fn fsdpsim(args: &[&str]) -> Cli {
    let mut command = Cli::cargo_bin("fsdpsim").expect("built");
    command.args(args).env_remove("FSDPSIM_CALIBRATION");
    command
}

#[test]
fn check_prints_a_configuration_that_reads_back_as_itself() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("effective.toml");
    let set = [
        "check",
        "dsv3-proxy",
        "--fsdp",
        "v2",
        "--set",
        "train.seq_length=1024",
    ];
    let first = fsdpsim(&set)
        .assert()
        .success()
        .stderr(is_empty())
        .get_output()
        .stdout
        .clone();
    fs::write(&path, &first).expect("written");
    let path = path.display().to_string();
    let second = fsdpsim(&["check", &path])
        .assert()
        .success()
        .get_output()
        .stdout
        .clone();
    let body = |text: &[u8]| {
        let text = String::from_utf8(text.to_vec()).expect("text");
        text.lines()
            .skip(1)
            .map(|line| format!("{line}\n"))
            .collect::<String>()
    };
    assert_eq!(
        body(&first),
        body(&second),
        "all but the line that names the file"
    );
    assert!(body(&first).contains("seq_length = 1024"));
}

#[test]
fn check_as_json_holds_the_spec_and_what_follows_from_it() {
    let output = fsdpsim(&["check", "dsv3-proxy", "--format", "json"])
        .assert()
        .success();
    let value: serde_json::Value =
        serde_json::from_slice(&output.get_output().stdout).expect("json");
    assert_eq!(value["schema_version"], 1);
    assert_eq!(value["spec"]["model"]["hidden_size"], 1024);
    assert_eq!(value["derived"]["rank_parameter_tensors"], 146);
    assert_eq!(value["derived"]["rank_parameters"], 170_505_216);
}

#[test]
fn a_wrong_file_ends_with_2_and_its_place() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("typo.toml");
    fs::write(&path, "[model]\nnum_layer = 4\n").expect("written");
    fsdpsim(&["check", &path.display().to_string()])
        .assert()
        .code(2)
        .stdout(is_empty())
        .stderr(contains("typo.toml:2:1: unknown field `num_layer`"))
        .stderr(contains("help: did you mean `num_layers`?"))
        .stderr(contains("2 | num_layer = 4\n  | ^^^^^^^^^"));
}

#[test]
fn usage_errors_end_with_2() {
    for (args, message) in [
        (
            &["check", "dsv3-proxi"][..],
            "help: did you mean `dsv3-proxy`?",
        ),
        (
            &["check", "dsv3-proxy", "--set", "ddp.bucket_sise=1"],
            "did you mean `ddp.bucket_size`?",
        ),
        (
            &["check", "dsv3-proxy", "--set", "parallel.world_size=7"],
            "not divisible by it (2)",
        ),
        (
            &["check", "dsv3-proxy", "--fsdp", "v3"],
            "[possible values: v1, v2, ddp]",
        ),
        (&["check"], "<SPEC>"),
        (&["models", "show", "lama3-8b"], "did you mean `llama3-8b`?"),
        (&["nonsense"], "unrecognized subcommand"),
        (&[], "Usage: fsdpsim <COMMAND>"),
    ] {
        let output = fsdpsim(args).assert().code(2).stdout(is_empty());
        output.stderr(contains(message));
    }
}

#[test]
fn unreadable_and_unwritable_files_end_with_3() {
    let dir = tempfile::tempdir().expect("dir");
    let folder = dir.path().display().to_string();
    fsdpsim(&["check", &folder])
        .assert()
        .code(3)
        .stderr(contains("error: cannot read"));
    let missing = dir
        .path()
        .join("no/such/folder/out.toml")
        .display()
        .to_string();
    fsdpsim(&["check", "dsv3-proxy", "-o", &missing])
        .assert()
        .code(3)
        .stderr(
            contains("error: cannot write")
                .and(contains("caused by:"))
                .and(contains("help:")),
        );
}

#[test]
fn a_result_goes_to_the_file_asked_for_and_nothing_to_stdout() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("out.json");
    let out = path.display().to_string();
    fsdpsim(&["models", "--format", "json", "-o", &out])
        .assert()
        .success()
        .stdout(is_empty());
    let text = fs::read_to_string(&path).expect("written");
    assert!(text.contains("\"dsv3-proxy\""));
    fsdpsim(&["models", "--format", "json", "-o", "-"])
        .assert()
        .success()
        .stdout(text);
}

#[test]
fn models_show_prints_the_file_as_shipped() {
    let file = fs::read_to_string("models/llama3-8b.toml").expect("in the repository");
    fsdpsim(&["models", "show", "llama3-8b"])
        .assert()
        .success()
        .stdout(file);
}

#[test]
fn every_file_in_models_is_shipped() {
    for entry in fs::read_dir("models").expect("folder") {
        let name = entry
            .expect("entry")
            .file_name()
            .into_string()
            .expect("text");
        let shipped = fsdpsim::spec::ShippedSpec::find(&name);
        let text = fs::read_to_string(format!("models/{name}")).expect("read");
        assert_eq!(
            shipped.map(|shipped| shipped.toml),
            Some(text.as_str()),
            "{name}"
        );
    }
}

#[test]
fn the_binary_works_away_from_the_repository() {
    let dir = tempfile::tempdir().expect("dir");
    fsdpsim(&["check", "deepseek-v3-671b"])
        .current_dir(dir.path())
        .assert()
        .success();
    fsdpsim(&["check", "models/dsv3-proxy.toml"])
        .current_dir(dir.path())
        .assert()
        .success();
}

#[test]
fn a_closed_pipe_ends_quietly() {
    for args in [
        &["models"][..],
        &["check", "dsv3-proxy"],
        &["man"],
        &["completions", "bash"],
    ] {
        let (reader, writer) = std::io::pipe().expect("pipe");
        drop(reader);
        let output = Command::new(env!("CARGO_BIN_EXE_fsdpsim"))
            .args(args)
            .stdout(writer)
            .stderr(Stdio::piped())
            .output()
            .expect("ran");
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{args:?}");
    }
}

#[test]
fn every_help_ends_with_examples() {
    fn visit(command: &clap::Command, path: &str) {
        let help = command.clone().render_help().to_string();
        assert!(
            help.contains("\nExamples:\n"),
            "`{path} --help` has no examples"
        );
        for sub in command
            .get_subcommands()
            .filter(|sub| sub.get_name() != "help")
        {
            visit(sub, &format!("{path} {}", sub.get_name()));
        }
    }
    visit(&fsdpsim::cli::command(), "fsdpsim");
    fsdpsim::cli::command().debug_assert();
}

#[test]
fn completions_and_man_pages_know_the_subcommands() {
    for shell in ["bash", "zsh", "fish"] {
        fsdpsim(&["completions", shell])
            .assert()
            .success()
            .stdout(contains("check"));
    }
    let dir = tempfile::tempdir().expect("dir");
    fsdpsim(&["man", "--dir", &dir.path().display().to_string()])
        .assert()
        .success();
    let page = fs::read_to_string(dir.path().join("fsdpsim-check.1")).expect("page");
    assert!(page.contains(".TH fsdpsim-check 1"));
}
