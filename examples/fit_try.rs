use fsdpsim::calibrate::*;
use fsdpsim::{schedule, spec::{Fsdp, Spec}};
use std::collections::BTreeMap;
use std::io::Read;
fn load(path: &str) -> (Vec<HostEvent>, Vec<(i64, i64)>) {
    let mut s = String::new();
    flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap()).read_to_string(&mut s).unwrap();
    let v: serde_json::Value = serde_json::from_str(&s).unwrap();
    let mut out = vec![]; let mut steps = vec![];
    for e in v["traceEvents"].as_array().unwrap() {
        if e["ph"] != "X" { continue; }
        let cat = e["cat"].as_str().unwrap_or("");
        if !["cpu_op", "user_annotation", "cuda_runtime", "cuda_driver"].contains(&cat) { continue; }
        let start_ns = (e["ts"].as_f64().unwrap() * 1000.0).round() as i64;
        let duration_ns = (e["dur"].as_f64().unwrap() * 1000.0).round() as u64;
        let name = e["name"].as_str().unwrap().to_owned();
        if name.starts_with("ProfilerStep") { steps.push((start_ns, start_ns + duration_ns as i64)); }
        out.push(HostEvent { annotation: cat == "user_annotation", runtime: cat.starts_with("cuda"), thread: e["tid"].as_u64().unwrap(), name, start_ns, duration_ns });
    }
    (out, steps)
}
fn main() {
    let dir = "calibration/data/h200-1gpu/traces";
    let hyb = ["ddp.num_distributed_optimizer_instances=4", "ddp.outer_dp_sharding_strategy=optim"];
    let list: Vec<(&str, Fsdp, &[&str], f64)> = vec![("ddp", Fsdp::Ddp, &[], 148.3), ("v1", Fsdp::V1, &[], 0.0), ("v2-second", Fsdp::V2, &[], 232.5), ("v1-hybrid", Fsdp::V1, &hyb, 163.9), ("v2", Fsdp::V2, &[], 0.0)];
    let mut progs = vec![]; let mut samples = vec![];
    for (n, f, sets, _) in &list {
        let spec = Spec::load("dsv3-proxy", sets, Some(*f)).unwrap();
        let p = schedule::build(&spec, *f).unwrap();
        let (ev, steps) = load(&format!("{dir}/{n}.json.gz"));
        let mut ss = vec![];
        for (a, b) in steps {
            let items = recorded_items(&ev, a, b);
            let s = step_samples(&p, &items);
            let m: f64 = s.matched_ns.values().sum(); let u: f64 = s.unmatched_ns.values().sum();
            let ops: u32 = s.operators.iter().chain(&s.gaps).map(|e| e.events.operators).sum();
            let rt: u32 = s.operators.iter().chain(&s.gaps).map(|e| e.events.runtime).sum::<u32>() + s.launches.values().map(|v| v.len() as u32).sum::<u32>();
            println!("{n}: step {:.1} total {:.1} matched {:.1} unmatched {:.2} missing {} extra {} ops {ops} rt {rt} {:?}", (b - a) as f64 / 1e6, s.total_ns / 1e6, m / 1e6, u / 1e6, s.missing_items, s.extra_items, s.matched_ns.iter().map(|(k, v)| (k, (v / 1e5).round() / 10.0)).collect::<Vec<_>>());
            ss.push(s);
        }
        progs.push(p); samples.push(ss);
    }
    let mut known = BTreeMap::new();
    known.insert("cuda.wait_stream/record".into(), 2500.0); known.insert("cuda.wait_stream/wait".into(), 800.0);
    known.insert("cuda.event_record".into(), 5600.0); known.insert("cuda.wait_event".into(), 830.0);
    let mut ts = vec![];
    for (p, ss) in progs.iter().zip(&samples) { for s in ss { ts.push(TracedStep { program: p, samples: s, inflation: Inflation { operator_ns: 700.0, runtime_ns: 2000.0, slowness: 1.0 } }); } }
    let c = fit_classes(&ts, &known);
    let mut by: Vec<_> = c.iter().collect();
    by.sort_by(|a, b| b.1.ns.total_cmp(&a.1.ns));
    for (k, v) in by.iter().take(60) { println!("{k:70} {:9.1} us n {} s {:.2}", v.ns / 1e3, v.samples, v.log_sigma); }
    for (k, v) in &c { if k.ends_with("/python") || k.starts_with("c10d") || k.starts_with("launch") { println!("{k:60} {:9.2} us n {}", v.ns / 1e3, v.samples); } }
    for (i, (n, ..)) in list.iter().enumerate() {
        let p = &progs[i];
        let mut tot = BTreeMap::new();
        for (_, a) in p.actions(0) { let w = p.host_work(a); if w.class.is_empty() { continue; } let ns = c.get(&w.class).map(|x| x.ns).unwrap_or_else(|| { 0.0 }) * w.count as f64; *tot.entry(format!("{:?}", p.tag(a).phase)).or_insert(0.0) += ns / 1e6; }
        println!("{n} predicted {:.1} {:?}", tot.values().sum::<f64>(), tot.iter().map(|(k, v)| (k, (v * 10.0_f64).round() / 10.0)).collect::<Vec<_>>());
    }
}
