//! Where results go: stdout, or a file that appears whole or not at all.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;
use serde_json::{Value, json};

use super::failure::Failure;

/// Version of the JSON that subcommands print; raised when a key changes its meaning.
const SCHEMA_VERSION: u32 = 1;

/// Writes a result to `output`, or to stdout if it is absent or `-`.
///
/// # Errors
/// A [`Failure`] that is silent when the reader of stdout has gone.
pub fn write_result(output: Option<&Path>, bytes: &[u8]) -> Result<(), Failure> {
    match output {
        Some(path) if path != Path::new("-") => write_file(path, bytes),
        _ => {
            let mut stdout = io::stdout().lock();
            stdout
                .write_all(bytes)
                .and_then(|()| stdout.flush())
                .map_err(Failure::stdout)
        }
    }
}

/// Writes a file under a temporary name beside it and renames it, so that readers never see a part.
///
/// # Errors
/// Exit code 3, naming the file.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let temporary = temporary_name(path);
    let written = fs::write(&temporary, bytes).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // What is left of the attempt; the error below is the one that matters.
        let _ = fs::remove_file(&temporary);
    }
    written
        .with_context(|| format!("cannot write `{}`", path.display()))
        .map_err(|error| Failure::data(error).help("check that the folder exists and is writable"))
}

fn temporary_name(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    path.with_file_name(name)
}

/// A JSON document: `schema_version`, `tool` and the fields of `body`, indented, with a final line
/// break.
pub fn json_document(body: impl Serialize) -> String {
    let mut document = json!({
        "schema_version": SCHEMA_VERSION,
        "tool": { "name": env!("CARGO_PKG_NAME"), "version": env!("CARGO_PKG_VERSION") },
    });
    let body = serde_json::to_value(body).unwrap_or(Value::Null);
    if let (Value::Object(document), Value::Object(body)) = (&mut document, body) {
        document.extend(body);
    }
    let mut text = serde_json::to_string_pretty(&document).unwrap_or_default();
    text.push('\n');
    text
}

/// A line of CSV; fields with a comma, a quote or a line break are quoted.
pub fn csv_line(fields: &[String]) -> String {
    let quoted = |field: &String| {
        if field.contains([',', '"', '\n', '\r']) {
            format!("\"{}\"", field.replace('"', "\"\""))
        } else {
            field.clone()
        }
    };
    let fields: Vec<String> = fields.iter().map(quoted).collect();
    format!("{}\n", fields.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_quotes_only_what_needs_it() {
        let fields = ["a", "b,c", "say \"x\""].map(str::to_owned);
        assert_eq!(csv_line(&fields), "a,\"b,c\",\"say \"\"x\"\"\"\n");
    }

    #[test]
    fn a_file_is_replaced_whole_and_leaves_no_temporary_behind() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("out.json");
        for text in ["first", "second"] {
            write_file(&path, text.as_bytes()).expect("written");
            assert_eq!(fs::read_to_string(&path).expect("read"), text);
        }
        assert_eq!(fs::read_dir(dir.path()).expect("list").count(), 1);
        assert!(write_file(&dir.path().join("no/such/dir"), b"x").is_err());
    }

    #[test]
    fn json_documents_state_their_schema_and_tool() {
        let text = json_document(json!({"step_ns": 1}));
        let value: Value = serde_json::from_str(&text).expect("json");
        assert_eq!(value["schema_version"], 1);
        assert_eq!(value["tool"]["name"], "fsdpsim");
        assert_eq!(value["step_ns"], 1);
    }
}
