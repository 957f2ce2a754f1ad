//! What a file says beside its events: the world, the base time, the devices, the rank.

use serde_json::Value;

use super::super::record::{Distributed, ProcessGroup, RankSource, TraceFile};

/// Takes over what a top-level key says. `Err` is a reason why it could not be understood.
pub(super) fn take(trace: &mut TraceFile, key: &[u8], value: &[u8]) -> Result<(), String> {
    let wanted: [&[u8]; 3] = [
        b"distributedInfo",
        b"baseTimeNanoseconds",
        b"deviceProperties",
    ];
    if !wanted.contains(&key) {
        return Ok(());
    }
    let text = String::from_utf8_lossy(value);
    let value: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    match key {
        b"distributedInfo" => trace.distributed = distributed(&value),
        b"baseTimeNanoseconds" => {
            trace.base_ns = integer(&value)
                .and_then(|ns| i64::try_from(ns).ok())
                .ok_or("expected whole nanoseconds")?;
        }
        _ => {
            let devices = value.as_array().map(Vec::as_slice).unwrap_or_default();
            trace.devices = devices
                .iter()
                .map(|device| string(device.get("name")))
                .collect();
        }
    }
    Ok(())
}

fn distributed(value: &Value) -> Distributed {
    let number = |key| {
        value
            .get(key)
            .and_then(integer)
            .and_then(|number| u32::try_from(number).ok())
    };
    let groups = value.get("pg_config").and_then(Value::as_array);
    let group = |group: &Value| ProcessGroup {
        name: string(group.get("pg_name")),
        description: string(group.get("pg_desc")),
        ranks: ranks(group.get("ranks")),
    };
    Distributed {
        backend: string(value.get("backend")),
        rank: number("rank"),
        world_size: number("world_size"),
        groups: groups.into_iter().flatten().map(group).collect(),
    }
}

/// A list of ranks, as an array or as the text of one. Long lists are cut by the profiler (`...`);
/// those are not taken.
fn ranks(value: Option<&Value>) -> Vec<u32> {
    match value {
        Some(Value::Array(list)) => {
            let rank = |value: &Value| integer(value).and_then(|rank| u32::try_from(rank).ok());
            list.iter()
                .map(rank)
                .collect::<Option<_>>()
                .unwrap_or_default()
        }
        Some(Value::String(text)) => rank_list(text),
        _ => Vec::new(),
    }
}

/// `[0, 2, 4]` as ranks; none if it is anything else.
pub(in crate::trace) fn rank_list(text: &str) -> Vec<u32> {
    let inner = text.trim().trim_start_matches('[').trim_end_matches(']');
    inner
        .split(',')
        .map(|rank| rank.trim().parse().ok())
        .collect::<Option<_>>()
        .unwrap_or_default()
}

fn integer(value: &Value) -> Option<i128> {
    match value {
        Value::Number(number) => number
            .as_i64()
            .map(i128::from)
            .or_else(|| number.as_u64().map(i128::from)),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

fn string(value: Option<&Value>) -> String {
    match value {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) => number.to_string(),
        _ => String::new(),
    }
}

/// The rank of the process: from the options, the text, or the file's name, in this order.
pub(super) fn rank(
    asked: Option<u32>,
    stated: Option<u32>,
    name: &str,
) -> (Option<u32>, RankSource) {
    if asked.is_some() {
        return (asked, RankSource::Option);
    }
    if stated.is_some() {
        return (stated, RankSource::File);
    }
    match rank_in_name(name) {
        Some(rank) => (Some(rank), RankSource::Name),
        None => (None, RankSource::Unknown),
    }
}

/// The number after the last `rank` in a file's name: `rank3`, `rank-3`, `rank_03`, `Rank 3`.
fn rank_in_name(name: &str) -> Option<u32> {
    let file = name.rsplit(['/', '\\']).next()?.to_ascii_lowercase();
    let (_, rest) = file.rsplit_once("rank")?;
    let digits = rest.trim_start_matches(['-', '_', ' ', '.', '=', '[', '(']);
    let end = digits
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(digits.len());
    digits[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rank_is_taken_from_where_it_is_said() {
        assert_eq!(rank(Some(5), Some(1), "rank2.json").0, Some(5));
        assert_eq!(
            rank(None, Some(1), "rank2.json"),
            (Some(1), RankSource::File)
        );
        for (name, expected) in [
            ("run/rank2.json", Some(2)),
            ("rank7/trace-rank_012.json.gz", Some(12)),
            ("trace.rank[3].json", Some(3)),
            ("frank.json", None),
            ("trace.json", None),
            ("rank99999999999.json", None),
        ] {
            assert_eq!(rank(None, None, name).0, expected, "{name}");
        }
    }

    #[test]
    fn groups_are_read_and_cut_lists_are_not_believed() {
        let mut trace = TraceFile::default();
        let text = br#"{"rank":"3","world_size":8,"backend":"nccl","pg_config":[
            {"pg_name":"0","pg_desc":"default_pg","ranks":[0,1]},
            {"pg_name":1,"ranks":"[0, 2]"},{"pg_name":"2","ranks":[0,"..."]}]}"#;
        take(&mut trace, b"distributedInfo", text).unwrap();
        let world = &trace.distributed;
        assert_eq!((world.rank, world.world_size), (Some(3), Some(8)));
        let ranks: Vec<&[u32]> = world.groups.iter().map(|g| g.ranks.as_slice()).collect();
        assert_eq!(ranks, [&[0u32, 1][..], &[0, 2], &[]]);
        assert!(take(&mut trace, b"distributedInfo", b"{").is_err());
        take(&mut trace, b"baseTimeNanoseconds", b"1790857026000000000").unwrap();
        assert_eq!(trace.base_ns, 1_790_857_026_000_000_000);
    }
}
