//! Files as they are and as they should not be: what is read, and what is said about the rest.

use std::io::Write as _;

use super::*;
use crate::trace::record::{Category, Label, NO_ID, RankSource};
use crate::trace::report::Flaw;

/// A file around `events`.
fn file(events: &[&str]) -> Vec<u8> {
    let events = events.join(",\n");
    format!("{{\"schemaVersion\":1,\n\"traceEvents\":[\n{events}\n],\"traceName\":\"t.json\"}}")
        .into_bytes()
}

/// A complete event of a host thread.
fn op(name: &str, ts: &str, dur: &str) -> String {
    format!(r#"{{"ph":"X","cat":"cpu_op","name":"{name}","pid":1,"tid":2,"ts":{ts},"dur":{dur}}}"#)
}

/// A kernel.
fn kernel(ts: &str, dur: &str, correlation: &str) -> String {
    format!(
        r#"{{"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":{ts},"dur":{dur},"args":{{"stream":7,"correlation":{correlation}}}}}"#
    )
}

fn read_bytes(bytes: &[u8]) -> Result<TraceFile, TraceError> {
    read_from(bytes, "trace.json", &ReadOptions::default())
}

fn names(trace: &TraceFile) -> Vec<&str> {
    trace.events.iter().map(|event| trace.name(event)).collect()
}

/// The flaws that were met and how often.
fn flaws(trace: &TraceFile) -> Vec<(Flaw, u64)> {
    trace
        .report
        .flaws()
        .map(|(flaw, entry)| (flaw, entry.count))
        .collect()
}

#[test]
fn a_whole_event_keeps_every_field() {
    let event = r#"{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":681,"tid":729,
        "ts":5247983969112.311,"dur":50.697,"args":{"External id":2051,"cbid":211,"correlation":8368}}"#;
    let trace = read_bytes(&file(&[event])).unwrap();
    let read = trace.events[0];
    assert_eq!(
        (read.start_ns, read.dur_ns),
        (5_247_983_969_112_311, 50_697)
    );
    assert_eq!((read.correlation, read.external_id), (8368, 2051));
    assert_eq!(
        (read.sequence, read.lane, read.detail),
        (NO_ID, NO_ID, NO_ID)
    );
    assert_eq!(read.category, Category::CudaRuntime);
    let track = &trace.tracks[0];
    assert_eq!(
        (track.pid, track.tid),
        (Label::Number(681), Label::Number(729))
    );
    assert_eq!(flaws(&trace), []);
}

#[test]
fn collectives_keep_their_arguments() {
    let event = r#"{"ph":"X","cat":"kernel","name":"nccl","pid":0,"tid":20,"ts":1,"dur":2,"args":{
        "stream":20,"Collective name":"_allgather_base","In msg nelems":4,"Out msg nelems":32,
        "Group size":8,"dtype":"BFloat16","Process Group Name":"9","Seq":17,
        "Process Group Ranks":"[0, 1]"}}"#;
    let trace = read_bytes(&file(&[event])).unwrap();
    let detail = trace.detail(&trace.events[0]).unwrap();
    assert_eq!(trace.names.get(detail.collective), "_allgather_base");
    assert_eq!(trace.names.get(detail.dtype), "BFloat16");
    assert_eq!((detail.in_elements, detail.out_elements), (4, 32));
    assert_eq!((detail.group_size, detail.collective_sequence), (8, 17));
}

#[test]
fn events_come_by_track_and_longer_first() {
    let inner = op("inner", "10", "5");
    let outer = op("outer", "10", "9");
    let trace = read_bytes(&file(&[&kernel("3", "1", "1"), &inner, &outer])).unwrap();
    assert_eq!(names(&trace), ["gemm", "outer", "inner"]);
    assert_eq!(trace.on_track(1).len(), 2);
}

#[test]
fn gzip_and_plain_arrays_read_the_same() {
    let text = file(&[&op("a", "1", "2")]);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&text).unwrap();
    let gzip = gzip.finish().unwrap();
    let array = format!("\u{feff}[{}", op("a", "1", "2"));
    for bytes in [text, gzip, array.into_bytes()] {
        assert_eq!(names(&read_bytes(&bytes).unwrap()), ["a"]);
    }
}

#[test]
fn begin_and_end_make_an_event() {
    let begin = r#"{"ph":"B","cat":"cpu_op","name":"a","pid":1,"tid":2,"ts":1}"#;
    let end = r#"{"ph":"E","pid":1,"tid":2,"ts":4.5}"#;
    let trace = read_bytes(&file(&[begin, end, end, begin])).unwrap();
    assert_eq!(trace.events.len(), 1);
    assert_eq!(trace.events[0].dur_ns, 3_500);
    assert_eq!(flaws(&trace), [(Flaw::Unpaired, 2)]);
}

#[test]
fn control_bytes_do_not_stop_the_reader() {
    let trace = read_bytes(&file(&[&op("a\u{1}b", "1", "2"), &op("c", "4", "1")])).unwrap();
    assert_eq!(names(&trace), ["a\u{1}b", "c"]);
    assert_eq!(flaws(&trace), [(Flaw::ControlByte, 1)]);
    let first = trace.report.flaws().next().unwrap().1.first;
    assert_eq!(first.line, 3, "{first}");
}

#[test]
fn backslashes_that_nobody_escaped_are_taken_literally() {
    let trace = read_bytes(&file(&[
        &op(r"C:\Users\a.py", "1", "2"),
        &op(r"C:\dir\", "4", "1"),
        &op("last", "6", "1"),
    ]))
    .unwrap();
    assert_eq!(names(&trace), [r"C:\Users\a.py", r"C:\dir\", "last"]);
    assert!(trace.report.count(Flaw::BadEscape) >= 2);
    assert_eq!(trace.report.count(Flaw::Malformed), 0);
}

#[test]
fn bytes_that_are_not_utf8_are_replaced() {
    let mut text = file(&[&op("caf?", "1", "2")]);
    let at = text.iter().position(|&byte| byte == b'?').unwrap();
    text[at] = 0xe9;
    let trace = read_bytes(&text).unwrap();
    assert_eq!(names(&trace), ["caf\u{fffd}"]);
    assert_eq!(flaws(&trace), [(Flaw::NotUtf8, 1)]);
}

#[test]
fn a_cut_file_says_where_and_what_was_read() {
    let text = file(&[&op("a", "1", "2"), &op("b", "4", "1")]);
    let second = String::from_utf8(text.clone())
        .unwrap()
        .rfind("{\"ph\"")
        .unwrap();
    // Anywhere inside the second event.
    for end in second + 1..text.len() - 25 {
        let trace = read_bytes(&text[..end]).unwrap();
        assert_eq!(names(&trace), ["a"], "{end}");
        let (flaw, entry) = trace.report.flaws().next().unwrap();
        assert_eq!(
            (flaw, entry.first.byte),
            (Flaw::Truncated, second as u64),
            "{end}"
        );
        assert_eq!(entry.first.line, 4);
        assert!(trace.report.warnings()[0].contains("1 events were read up to there"));
    }
}

#[test]
fn a_torn_gzip_stream_is_read_up_to_the_tear() {
    let events: Vec<String> = (0..5000)
        .map(|i| op(&format!("op{}", i * 7919 % 5000), &i.to_string(), "1"))
        .collect();
    let events: Vec<&str> = events.iter().map(String::as_str).collect();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&file(&events)).unwrap();
    let gzip = gzip.finish().unwrap();
    let trace = read_bytes(&gzip[..gzip.len() / 2]).unwrap();
    assert!(
        (1000..4999).contains(&trace.events.len()),
        "{}",
        trace.events.len()
    );
    assert!(
        trace.report.warnings()[0].contains("torn"),
        "{:?}",
        trace.report.warnings()
    );
}

#[test]
fn a_broken_event_costs_only_itself() {
    for broken in [
        r#"{"ph":"X,"cat":"cpu_op","name":"x","pid":1,"tid":2,"ts":3,"dur":1}"#,
        r#"{"ph":"X","cat":"cpu_op","name":"x","pid":1,"tid":2,"ts":3,"dur":1"#,
        r#"{"ph":"X","name":"x","args":{"grid":[1,1,"stream":7},"ts":3,"dur":1}"#,
        r#"{"ph":"X","name":"x","ts":,"dur":1}"#,
        r#"{"ph" "X"}"#,
        r#"{"no phase":1}"#,
        r#"{}"#,
        "oops",
        "\"text\"",
        "\u{0}\u{0}\u{0}",
        "}}}]",
    ] {
        // `]` ends the list; what follows is outside it.
        if broken.ends_with(']') {
            continue;
        }
        let trace = read_bytes(&file(&[&op("a", "1", "1"), broken, &op("b", "5", "1")])).unwrap();
        assert_eq!(names(&trace), ["a", "b"], "{broken}");
        assert_eq!(trace.report.count(Flaw::Malformed), 1, "{broken}");
    }
}

#[test]
fn empty_device_events_are_dropped_and_counted() {
    let mut events = vec![op("a", "100", "2")];
    events.extend((0..1200).map(|i| kernel("0", "0", &i.to_string())));
    events.push(kernel("105", "2", "5000"));
    let events: Vec<&str> = events.iter().map(String::as_str).collect();
    let trace = read_bytes(&file(&events)).unwrap();
    assert_eq!(trace.events.len(), 2);
    assert_eq!(flaws(&trace), [(Flaw::EmptyDeviceEvent, 1200)]);
}

#[test]
fn impossible_correlations_are_left_out() {
    for (correlation, flaw) in [("-1", 1), ("99999999999", 1), ("1.5", 1), ("0", 0)] {
        let trace = read_bytes(&file(&[&kernel("1", "2", correlation)])).unwrap();
        assert_eq!(trace.events[0].correlation, NO_ID, "{correlation}");
        assert_eq!(
            trace.report.count(Flaw::BadCorrelation),
            flaw,
            "{correlation}"
        );
    }
}

#[test]
fn times_that_no_clock_shows_are_dropped() {
    for (ts, dur) in [
        ("1", "-1"),
        ("1e300", "1"),
        ("1", "1e18"),
        ("NaN", "1"),
        ("null", "1"),
        ("9223372036854775.807", "9223372036854775.807"),
    ] {
        let trace = read_bytes(&file(&[&op("a", ts, dur), &op("b", "5", "1")])).unwrap();
        assert_eq!(names(&trace), ["b"], "{ts} {dur}");
        assert_eq!(flaws(&trace), [(Flaw::AbsurdTime, 1)], "{ts} {dur}");
    }
}

#[test]
fn an_event_of_another_age_is_dropped() {
    let base = "1790857026000000.25";
    let events = [
        op("a", base, "1"),
        op("b", base, "1"),
        op("c", "0", "1"),
        op("d", base, "2"),
    ];
    let events: Vec<&str> = events.iter().map(String::as_str).collect();
    let trace = read_bytes(&file(&events)).unwrap();
    assert_eq!(trace.events.len(), 3);
    assert_eq!(flaws(&trace), [(Flaw::Outlier, 1)]);
}

#[test]
fn wrong_types_are_read_where_they_make_sense() {
    let event =
        r#"{"ph":"X","cat":"cpu_op","name":17,"pid":"1","tid":"worker","ts":"1.5","dur":"2"}"#;
    let trace = read_bytes(&file(&[event])).unwrap();
    assert_eq!(names(&trace), ["17"]);
    assert_eq!(
        (trace.events[0].start_ns, trace.events[0].dur_ns),
        (1_500, 2_000)
    );
    let track = &trace.tracks[0];
    assert_eq!(
        (trace.label(track.pid), trace.label(track.tid)),
        ("1".into(), "worker".into())
    );
    assert_eq!(track.pid, Label::Number(1));
    assert_eq!(trace.report.count(Flaw::WrongType), 2);
}

#[test]
fn missing_and_doubled_fields() {
    let no_dur = r#"{"ph":"X","cat":"cpu_op","name":"x","pid":1,"tid":2,"ts":3}"#;
    let twice = r#"{"ph":"X","cat":"cpu_op","name":"x","name":"y","pid":1,"tid":2,"ts":3,"dur":1}"#;
    let bare = r#"{"ph":"X","ts":9,"dur":1}"#;
    let trace = read_bytes(&file(&[no_dur, twice, bare])).unwrap();
    assert_eq!(names(&trace), ["y", ""]);
    assert_eq!(
        flaws(&trace),
        [(Flaw::DuplicateKey, 1), (Flaw::MissingTime, 1)]
    );
}

#[test]
fn deep_nesting_and_huge_strings_are_read_over() {
    let deep = format!(
        r#"{{"ph":"X","name":"d","ts":1,"dur":1,"args":{{"x":{}1{}}}}}"#,
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    let huge = op(&"n".repeat(2 << 20), "5", "1");
    let trace = read_bytes(&file(&[&deep, &huge])).unwrap();
    assert_eq!(trace.events.len(), 2);
    assert!(trace.names.get(trace.events[1].name).len() < 5000);
    assert_eq!(flaws(&trace), [(Flaw::LongString, 1)]);
}

#[test]
fn what_is_no_trace_is_refused_with_the_reason() {
    for (bytes, reason) in [
        (&b""[..], "empty"),
        (b"   \n ", "nothing but blanks"),
        (b"hello", "found `h`"),
        (b"\xff\xfe[\0", "UTF-16"),
        (b"\x28\xb5\x2f\xfd\0", "zstd"),
        (b"{\"a\":1}", "no `traceEvents`"),
        (b"{\"a\":1", "no `traceEvents`"),
        (b"{\"traceEvents\":7}", "the list of events"),
        (b"{\"traceEvents\":[]}", "no event"),
        (b"[", "no event"),
        (b"\x1f\x8b\x08\0\0", "nothing but blanks"),
    ] {
        let error = read_bytes(bytes).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
        assert!(error.contains("`trace.json`"), "{error}");
    }
}

#[test]
fn limits_are_named_when_they_are_reached() {
    let options = ReadOptions {
        limits: ReadLimits {
            total_bytes: 1 << 20,
            ..Default::default()
        },
        rank: None,
    };
    let endless = std::io::repeat(b' ');
    let error = read_from(endless, "x", &options).unwrap_err().to_string();
    assert!(error.contains("limit of 1048576 bytes"), "{error}");
    let string = b"{\"traceEvents\":[{\"name\":\"".chain(std::io::repeat(b'a'));
    let error = read_from(string, "x", &ReadOptions::default())
        .unwrap_err()
        .to_string();
    assert!(error.contains("limit of"), "{error}");
}

#[test]
fn a_gzip_bomb_meets_a_limit() {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gzip.write_all(b"[").unwrap();
    let events = "{\"ph\":\"M\"},".repeat(1 << 17);
    for _ in 0..50 {
        gzip.write_all(events.as_bytes()).unwrap();
    }
    let error = read_bytes(&gzip.finish().unwrap()).unwrap_err().to_string();
    assert!(error.contains("400 times the compressed size"), "{error}");
}

#[test]
fn text_made_to_be_slow_is_given_up() {
    // Every brace looks like the start of an event that never ends.
    let text = format!("[{}", "{\"ph\":[".repeat(1 << 18));
    match read_bytes(text.as_bytes()) {
        Err(TraceError::TooDamaged { .. } | TraceError::NoEvents { .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_rank_is_known_if_anything_says_it() {
    let text = file(&[&op("a", "1", "2")]);
    let rank = |name: &str, asked| {
        let options = ReadOptions {
            rank: asked,
            ..Default::default()
        };
        let trace = read_from(&text[..], name, &options).unwrap();
        (trace.rank, trace.rank_source)
    };
    assert_eq!(rank("rank3.json", None), (Some(3), RankSource::Name));
    assert_eq!(rank("rank3.json", Some(4)), (Some(4), RankSource::Option));
    assert_eq!(rank("trace.json", None), (None, RankSource::Unknown));
}
