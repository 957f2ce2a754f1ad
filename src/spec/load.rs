//! Reads a spec: the file alone, then each `--set`, then the combination.

use std::ops::Range;

use toml::{Table, Value};

use super::error::{SpecError, Violation};
use super::shipped::{SHIPPED, ShippedSpec};
use super::suggest::closest;
use super::{Fsdp, Spec};

/// Sections of a spec, in the order of the shipped files.
pub const SECTIONS: [&str; 6] = ["model", "parallel", "train", "ddp", "optimizer", "run"];

impl Spec {
    /// Reads `name` (a path, or the name of a shipped spec), applies each `section.field=value` of
    /// `sets` in order, then `fsdp` if given, and validates the result.
    ///
    /// # Errors
    /// [`SpecError`] names the place (line and column, or the `--set`) and the remedy.
    pub fn load(
        name: &str,
        sets: &[impl AsRef<str>],
        fsdp: Option<Fsdp>,
    ) -> Result<Spec, SpecError> {
        let (origin, text) = read(name)?;
        Spec::parse(&origin, &text, sets, fsdp)
    }

    /// Like [`Spec::load`], from text; `origin` names it in messages.
    ///
    /// # Errors
    /// As [`Spec::load`].
    pub fn parse(
        origin: &str,
        text: &str,
        sets: &[impl AsRef<str>],
        fsdp: Option<Fsdp>,
    ) -> Result<Spec, SpecError> {
        let mut spec: Spec = toml::from_str(text).map_err(|error| in_file(origin, text, &error))?;
        let mut table: Table =
            toml::from_str(text).map_err(|error| in_file(origin, text, &error))?;
        let mut touched: Vec<(String, String)> = Vec::new();
        for set in sets {
            let set = set.as_ref();
            let (section, field, value) = split(set)?;
            let entry = table
                .entry(section.clone())
                .or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(entry) = entry {
                match value {
                    Some(value) => entry.insert(field.clone(), value),
                    None => entry.remove(&field),
                };
            }
            // One at a time, so that the error can name the one that is wrong.
            spec = table
                .clone()
                .try_into()
                .map_err(|error: toml::de::Error| in_set(set, &section, &field, &error))?;
            touched.push((format!("{section}.{field}"), set.to_owned()));
        }
        if let Some(fsdp) = fsdp {
            spec.set_fsdp(fsdp);
        }
        let mut violations = spec.violations();
        if violations.is_empty() {
            return Ok(spec);
        }
        for violation in &mut violations {
            violation.set = blamed(violation, &touched);
        }
        Err(impossible(origin, violations))
    }

    /// Whether this combination can run.
    ///
    /// # Errors
    /// [`SpecError::Impossible`] with every reason why not.
    pub fn validate(&self) -> Result<(), SpecError> {
        let violations = self.violations();
        if violations.is_empty() {
            Ok(())
        } else {
            Err(impossible("spec", violations))
        }
    }
}

/// The last `--set` of the violated key, else of a key that the reason or the remedy names.
fn blamed(violation: &Violation, touched: &[(String, String)]) -> Option<String> {
    let told = format!("{} {}", violation.reason, violation.help);
    touched
        .iter()
        .rev()
        .find(|(key, _)| key == violation.key)
        .or_else(|| {
            touched
                .iter()
                .rev()
                .find(|(key, _)| told.contains(key.as_str()))
        })
        .map(|(_, set)| set.clone())
}

fn impossible(origin: &str, violations: Vec<Violation>) -> SpecError {
    SpecError::Impossible {
        origin: origin.to_owned(),
        violations,
    }
}

/// The text of a path or of a shipped spec, with the name that messages use. A file wins over a
/// shipped spec of the same name.
fn read(name: &str) -> Result<(String, String), SpecError> {
    match std::fs::read_to_string(name) {
        Ok(text) => Ok((name.to_owned(), text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            match ShippedSpec::find(name) {
                Some(shipped) => {
                    let origin = format!("{}.toml (shipped)", shipped.name);
                    Ok((origin, shipped.toml.to_owned()))
                }
                None => Err(not_found(name)),
            }
        }
        Err(error) => Err(SpecError::Unreadable {
            path: name.to_owned(),
            reason: error.to_string(),
        }),
    }
}

fn not_found(name: &str) -> SpecError {
    let names: Vec<&str> = SHIPPED.iter().map(|shipped| shipped.name).collect();
    let meant = closest(name, names.iter().copied())
        .map(|meant| format!("did you mean `{meant}`? "))
        .unwrap_or_default();
    SpecError::NotFound {
        name: name.to_owned(),
        help: format!(
            "{meant}give the path of a TOML file or one of the shipped specs: {}",
            names.join(", ")
        ),
    }
}

/// Splits `section.field=value`; the value is TOML if it parses as such, else a string, and absent
/// if empty, which takes the key out of the spec.
fn split(set: &str) -> Result<(String, String, Option<Value>), SpecError> {
    let fault = |message: String, help: String| SpecError::Set {
        set: set.to_owned(),
        message,
        help,
    };
    let Some((path, text)) = set.split_once('=') else {
        return Err(fault(
            "there is no `=`".to_owned(),
            "write --set section.field=value, e.g. --set train.seq_length=1024".to_owned(),
        ));
    };
    let path = path.trim();
    let Some((section, field)) = path.split_once('.') else {
        let known = SECTIONS
            .iter()
            .find(|section| fields(section).iter().any(|field| field == path));
        let help = match known {
            Some(section) => format!("did you mean `--set {section}.{path}={text}`?"),
            None => format!(
                "write --set section.field=value; the sections are {}",
                SECTIONS.join(", ")
            ),
        };
        return Err(fault(format!("`{path}` names no section"), help));
    };
    if !SECTIONS.contains(&section) {
        let meant = closest(section, SECTIONS)
            .map(|meant| format!("did you mean `{meant}`? "))
            .unwrap_or_default();
        return Err(fault(
            format!("there is no section `{section}`"),
            format!("{meant}the sections are {}", SECTIONS.join(", ")),
        ));
    }
    let value = Some(text.trim()).filter(|text| !text.is_empty()).map(value);
    if value.is_none() && !fields(section).iter().any(|known| known == field) {
        let known = fields(section);
        let meant = closest(field, known.iter().map(String::as_str));
        return Err(fault(
            format!("unknown field `{field}`"),
            match meant {
                Some(meant) => format!("did you mean `{section}.{meant}`?"),
                None => format!("[{section}] has: {}", known.join(", ")),
            },
        ));
    }
    Ok((section.to_owned(), field.to_owned(), value))
}

fn value(text: &str) -> Value {
    match toml::from_str::<Table>(&format!("value = {text}")) {
        // A line break in the text could smuggle in a second key.
        Ok(mut table) if table.len() == 1 => table
            .remove("value")
            .unwrap_or_else(|| Value::String(text.to_owned())),
        _ => Value::String(text.to_owned()),
    }
}

/// The keys of a section, from what serde says about one that cannot exist.
///
/// ```
/// assert!(fsdpsim::spec::fields("train").contains(&"seq_length".to_owned()));
/// ```
pub fn fields(section: &str) -> Vec<String> {
    let probe = format!("[{section}]\n\"?\" = 0\n");
    match toml::from_str::<Spec>(&probe) {
        Err(error) => backticked(error.message()).split_off(1),
        Ok(_) => Vec::new(),
    }
}

/// The words between backticks.
fn backticked(message: &str) -> Vec<String> {
    message
        .split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// Tells what to do about a message of serde's: the closest name, or how to write the value.
fn remedy(message: &str, field: Option<&str>) -> String {
    let words = backticked(message);
    if message.starts_with("unknown field") || message.starts_with("unknown variant") {
        if let Some((wrong, known)) = words.split_first()
            && let Some(meant) = closest(wrong, known.iter().map(String::as_str))
        {
            return format!("did you mean `{meant}`?");
        }
        if message.starts_with("unknown field")
            && let Some(wrong) = words.first()
            && let Some(section) = SECTIONS
                .iter()
                .find(|section| fields(section).iter().any(|field| field == wrong))
        {
            return format!("`{wrong}` belongs in [{section}]");
        }
        return "remove it, or use one of the names above".to_owned();
    }
    if message.starts_with("invalid type: string") && message.contains("expected u64") {
        let field = field.unwrap_or("the field");
        let text = message.split('"').nth(1).unwrap_or_default();
        let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
        let example = if digits.is_empty() { "512" } else { &digits };
        return format!(
            "write a plain integer without quotes or unit, e.g. `{field} = {example}`; \
             `fsdpsim check` and the shipped specs say what it counts"
        );
    }
    if message.starts_with("missing field") {
        return "add it; every key is described in the shipped specs (`fsdpsim models show NAME`)"
            .to_owned();
    }
    let help = if message.contains("expected a boolean") {
        "write true or false, without quotes"
    } else if message.starts_with("duplicate key") {
        "a key stands once in its section: remove one of the two"
    } else if ["invalid", "unknown", "expected"]
        .iter()
        .any(|word| message.starts_with(word))
    {
        "correct the value; `fsdpsim models show dsv3-proxy` prints a complete example"
    } else {
        "this is not TOML: write `key = value`, text in quotes, sections in square brackets"
    };
    help.to_owned()
}

/// serde's message with the Rust names of types in words.
fn in_words(message: &str) -> String {
    message
        .replace(" as i128", "")
        .replace(" as u128", "")
        .replace("expected u64", "expected an integer of at least 0")
        .replace("expected u8", "expected 0 or 1")
        .replace("expected f64", "expected a number")
        .trim_end()
        .replace('\n', " ")
}

fn in_file(origin: &str, text: &str, error: &toml::de::Error) -> SpecError {
    let message = in_words(error.message());
    let Some(span) = error.span() else {
        return SpecError::File {
            place: origin.to_owned(),
            help: remedy(error.message(), None),
            message,
            excerpt: String::new(),
        };
    };
    let (line, column, excerpt) = locate(text, &span);
    let source = text.lines().nth(line - 1).unwrap_or_default();
    let field = source.split_once('=').map(|(field, _)| field.trim());
    SpecError::File {
        place: format!("{origin}:{line}:{column}"),
        help: remedy(error.message(), field),
        message,
        excerpt,
    }
}

/// Line and column (from 1, in characters) of a byte range, and the line with carets under it.
fn locate(text: &str, span: &Range<usize>) -> (usize, usize, String) {
    let start = (0..=span.start.min(text.len()))
        .rev()
        .find(|&at| text.is_char_boundary(at))
        .unwrap_or(0);
    let before = &text[..start];
    let line = before.matches('\n').count() + 1;
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    let column = text[line_start..start].chars().count() + 1;
    let source = text[line_start..].lines().next().unwrap_or_default();
    let room = source.chars().count() + 1 - column.min(source.chars().count() + 1);
    let width = span.len().clamp(1, room.max(1));
    let gutter = " ".repeat(line.to_string().len());
    let excerpt = format!(
        "{gutter} |\n{line} | {source}\n{gutter} | {}{}",
        " ".repeat(column - 1),
        "^".repeat(width)
    );
    (line, column, excerpt)
}

fn in_set(set: &str, section: &str, field: &str, error: &toml::de::Error) -> SpecError {
    let message = error.message();
    let help = if message.starts_with("unknown field") {
        let known = fields(section);
        let others = known.join(", ");
        match closest(field, known.iter().map(String::as_str)) {
            Some(meant) => format!("did you mean `{section}.{meant}`?"),
            None => match remedy(message, Some(field)) {
                moved if moved.contains("belongs in") => moved,
                _ => format!("[{section}] has: {others}"),
            },
        }
    } else {
        remedy(message, Some(field))
    };
    SpecError::Set {
        set: set.to_owned(),
        message: in_words(message),
        help,
    }
}
