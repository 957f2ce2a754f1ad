use fsdpsim::calibrate::*;
fn main() {
    let c = calibrate(std::path::Path::new("calibration/data")).unwrap();
    for s in &c.steps {
        println!(
            "{} {:.1} cov {:.2} slow {:?}",
            s.file,
            s.recorded_ms,
            s.coverage_percent,
            s.slowness
                .iter()
                .map(|(k, v)| format!("{k} {v:.2}"))
                .collect::<Vec<_>>()
        );
    }
    for p in &c.phases {
        println!(
            "{} {} plain {:.1} fitted {:.1}",
            p.version, p.phase, p.plain_ms, p.fitted_ms
        );
    }
    println!(
        "{:?} {} {} {:?}",
        c.calibration.provenance,
        c.calibration.host.recorded_operator_ns,
        c.calibration.host.recorded_runtime_ns,
        c.calibration.host.jitter
    );
    println!("{:?}", c.factors);
    std::fs::write("calibration/h200-1gpu.toml", c.calibration.to_toml()).unwrap();
}
