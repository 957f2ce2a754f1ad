//! Holds the code to the invariants of ARCHITECTURE.md by reading it, mostly for what is absent.
//!
//! Comments and strings do not count, and neither do tests: a module under `#[cfg(test)]` may use
//! what the library may not.

use std::fs;
use std::path::{Path, PathBuf};

/// A source file with comments, string contents and test modules blanked out.
struct Source {
    path: String,
    lines: usize,
    code: String,
}

fn rust_files(dir: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(dir)
        .expect("folder")
        .map(|entry| entry.expect("entry").path())
        .collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn sources() -> Vec<Source> {
    let mut paths = Vec::new();
    rust_files(Path::new("src"), &mut paths);
    let source = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("source");
        Source {
            path: path.display().to_string(),
            lines: text.lines().count(),
            code: without_tests(&blanked(&text)),
        }
    };
    paths.into_iter().map(source).collect()
}

/// Files that hold only tests: `tests.rs` and `*_tests.rs`.
fn is_test_file(path: &str) -> bool {
    path.ends_with("tests.rs") || path.contains("/tests/")
}

/// Replaces comments and the contents of string literals by spaces, line breaks kept.
fn blanked(text: &str) -> String {
    let bytes: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    let blank = |out: &mut String, c: char| out.push(if c == '\n' { '\n' } else { ' ' });
    while at < bytes.len() {
        let rest = |offset: usize| bytes.get(at + offset).copied().unwrap_or(' ');
        match bytes[at] {
            '/' if rest(1) == '/' => {
                while at < bytes.len() && bytes[at] != '\n' {
                    blank(&mut out, bytes[at]);
                    at += 1;
                }
            }
            '/' if rest(1) == '*' => {
                while at < bytes.len() && !(bytes[at] == '*' && bytes.get(at + 1) == Some(&'/')) {
                    blank(&mut out, bytes[at]);
                    at += 1;
                }
                at += 2;
            }
            '"' => {
                let hashes = raw_hashes(&bytes, at);
                let end = string_end(&bytes, at + 1, hashes);
                out.push('"');
                for &c in &bytes[at + 1..end] {
                    blank(&mut out, c);
                }
                out.push('"');
                at = end + 1;
            }
            // A character literal may hold a quote.
            '\'' if rest(1) == '\\' || rest(2) == '\'' => {
                let end = (at + 2..bytes.len()).find(|&i| bytes[i] == '\'' && i > at + 1);
                at = end.unwrap_or(bytes.len()) + 1;
                out.push_str("' '");
            }
            c => {
                out.push(c);
                at += 1;
            }
        }
    }
    out
}

/// Number of hashes of a raw string that opens at `quote`; `None` for an ordinary string.
fn raw_hashes(text: &[char], quote: usize) -> Option<usize> {
    let hashes = text[..quote]
        .iter()
        .rev()
        .take_while(|&&c| c == '#')
        .count();
    (quote > hashes && text[quote - hashes - 1] == 'r').then_some(hashes)
}

/// The index of the closing quote.
fn string_end(text: &[char], from: usize, raw: Option<usize>) -> usize {
    let mut at = from;
    while at < text.len() {
        match (text[at], raw) {
            ('\\', None) => at += 1,
            ('"', None) => return at,
            ('"', Some(hashes)) if text[at + 1..].iter().take(hashes).all(|&c| c == '#') => {
                return at;
            }
            _ => {}
        }
        at += 1;
    }
    text.len().saturating_sub(1)
}

/// Cuts what follows the first `#[cfg(test)]`: tests stand last in a file by convention.
fn without_tests(code: &str) -> String {
    match code.find("#[cfg(test)]\nmod tests {") {
        Some(at) => code[..at].to_owned(),
        None => code.to_owned(),
    }
}

/// Fails if a file chosen by `applies` names one of `words`.
fn forbid(what: &str, words: &[&str], applies: impl Fn(&str) -> bool) {
    let mut faults = Vec::new();
    let mut checked = 0;
    for source in sources() {
        if is_test_file(&source.path) || !applies(&source.path) {
            continue;
        }
        checked += 1;
        for (number, line) in source.code.lines().enumerate() {
            for word in words.iter().filter(|word| names(line, word)) {
                faults.push(format!("{}:{}: {word}", source.path, number + 1));
            }
        }
    }
    assert!(checked > 0, "{what}: no file was checked");
    assert!(faults.is_empty(), "{what}\n{}", faults.join("\n"));
}

/// Whether `line` holds `word` as a word of its own.
fn names(line: &str, word: &str) -> bool {
    let inside = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let starts_inside = word.starts_with(|c: char| c.is_alphanumeric()) && inside(before);
        let ends_inside = word.ends_with(|c: char| c.is_alphanumeric()) && inside(after);
        !starts_inside && !ends_inside
    })
}

fn within(folders: &[&str]) -> impl Fn(&str) -> bool {
    let folders: Vec<String> = folders
        .iter()
        .map(|folder| format!("src/{folder}"))
        .collect();
    move |path| {
        folders
            .iter()
            .any(|folder| path.starts_with(folder.as_str()))
    }
}

fn outside(folders: &[&str]) -> impl Fn(&str) -> bool {
    let inside = within(folders);
    move |path| !inside(path)
}

/// Paths into the crate that a module may not name.
fn modules(names: &[&str]) -> Vec<String> {
    let path = |name: &&str| [format!("crate::{name}"), format!("fsdpsim::{name}")];
    names.iter().flat_map(path).collect()
}

#[test]
fn the_engine_knows_no_fsdp() {
    let paths = modules(&[
        "schedule",
        "spec",
        "model",
        "calibrate",
        "trace",
        "report",
        "cli",
    ]);
    let mut words: Vec<&str> = paths.iter().map(String::as_str).collect();
    words.extend(["fsdp", "Fsdp", "FSDP", "unshard", "dtensor"]);
    forbid("the engine runs any Program", &words, within(&["engine/"]));
}

#[test]
fn a_program_knows_no_time() {
    let paths = modules(&[
        "engine",
        "cost",
        "schedule",
        "spec",
        "model",
        "calibrate",
        "analysis",
    ]);
    let words: Vec<&str> = paths.iter().map(String::as_str).collect();
    forbid(
        "a Program says what happens, not how long",
        &words,
        within(&["program/"]),
    );
}

#[test]
fn schedules_know_no_time() {
    let paths = modules(&["engine", "cost", "calibrate", "analysis", "report", "trace"]);
    let mut words: Vec<&str> = paths.iter().map(String::as_str).collect();
    words.push("Ns");
    forbid(
        "a schedule builds a Program",
        &words,
        within(&["schedule/", "model/"]),
    );
}

#[test]
fn costs_know_no_order() {
    let paths = modules(&["engine", "schedule", "analysis", "report", "cli"]);
    let mut words: Vec<&str> = paths.iter().map(String::as_str).collect();
    words.extend(["RankProgram", "ActionKind", "Thread"]);
    forbid(
        "a cost model prices descriptions",
        &words,
        within(&["cost/"]),
    );
}

#[test]
fn a_spec_computes_nothing() {
    let paths = modules(&[
        "model",
        "program",
        "schedule",
        "cost",
        "engine",
        "analysis",
        "calibrate",
        "trace",
        "report",
        "cli",
    ]);
    let words: Vec<&str> = paths.iter().map(String::as_str).collect();
    forbid("a spec is what the user wrote", &words, within(&["spec/"]));
}

#[test]
fn only_the_command_line_prints_exits_or_reads_the_environment() {
    let words = [
        "println!",
        "eprintln!",
        "print!",
        "eprint!",
        "stdout",
        "stderr",
        "process::exit",
        "ExitCode",
        "env::var",
        "env::args",
        "current_dir",
    ];
    forbid(
        "only src/cli prints, exits or reads the environment",
        &words,
        |path| outside(&["cli/", "main.rs"])(path),
    );
}

#[test]
fn nothing_in_the_library_depends_on_the_command_line() {
    let words = ["crate::cli", "clap", "anyhow", "indicatif", "comfy_table"];
    let applies = outside(&["cli/", "main.rs", "report/", "lib.rs"]);
    forbid(
        "the library does not know its command line",
        &words,
        applies,
    );
}

#[test]
fn only_trace_and_report_know_json_and_only_readers_of_toml_know_toml() {
    forbid(
        "file formats belong to trace, report, calibrate and cli",
        &["serde_json", "flate2"],
        outside(&["trace/", "report/", "calibrate/", "cli/"]),
    );
    forbid(
        "TOML belongs to spec, calibrate, cost and cli",
        &["toml::"],
        outside(&["spec/", "calibrate/", "cost/", "cli/"]),
    );
}

#[test]
fn no_clock_in_the_library() {
    let words = ["Instant", "SystemTime", "std::time"];
    forbid(
        "simulated time comes from the engine alone",
        &words,
        outside(&["cli/"]),
    );
}

#[test]
fn no_container_whose_order_depends_on_the_run() {
    let words = [
        "std::collections::HashMap",
        "std::collections::HashSet",
        "RandomState",
    ];
    forbid(
        "use BTreeMap, or rustc_hash where order is never read",
        &words,
        |_| true,
    );
}

#[test]
fn simulated_time_is_integer_nanoseconds() {
    let words = ["std::time::Duration", "f64::Duration"];
    forbid(
        "times are Ns (u64)",
        &words,
        within(&["engine/", "program/", "schedule/"]),
    );
}

#[test]
fn nothing_names_the_place_where_it_was_written() {
    let mut files = Vec::new();
    for dir in ["src", "tests", "benches"] {
        if Path::new(dir).exists() {
            rust_files(Path::new(dir), &mut files);
        }
    }
    for path in files {
        let text = fs::read_to_string(&path).expect("source");
        for root in ["/work/", "/tmp/", "/root/", "/home/"] {
            let root_in_quotes = format!("\"{root}");
            let own = path.ends_with("architecture.rs");
            assert!(
                own || !text.contains(&root_in_quotes),
                "{}: {root}",
                path.display()
            );
        }
    }
}

#[test]
fn files_are_short_enough_to_read() {
    // The aim is 400; a file beyond 500 has more than one job.
    const LIMIT: usize = 500;
    let long: Vec<String> = sources()
        .iter()
        .filter(|source| !is_test_file(&source.path) && source.lines > LIMIT)
        .map(|source| format!("{} has {} lines", source.path, source.lines))
        .collect();
    assert!(
        long.is_empty(),
        "split what is longer than {LIMIT} lines\n{}",
        long.join("\n")
    );
}

#[test]
fn the_reader_of_sources_sees_code_and_nothing_else() {
    let text = "a(\"x // y\"); // Instant\n/* env::var */ b('\"'); c(r#\"HashMap\"#);\n\
                let s: &'static str = d;\n#[cfg(test)]\nmod tests { Instant }";
    let code = without_tests(&blanked(text));
    for absent in ["Instant", "env::var", "HashMap", "x // y"] {
        assert!(!code.contains(absent), "{absent} in {code}");
    }
    for present in ["a(", "b(", "c(", "&'static str = d;"] {
        assert!(code.contains(present), "{present} not in {code}");
    }
    assert_eq!(code.lines().count(), text.lines().take(3).count());
    assert!(names("use crate::cost::Ns;", "crate::cost") && !names("Nsx", "Ns"));
}
