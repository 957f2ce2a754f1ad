//! Reads a trace and says how fast: `read_trace FILE`. Run it under `/usr/bin/time -v` for memory.
#![allow(clippy::print_stdout, reason = "it is a program")]

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("expected a file")?;
    let start = std::time::Instant::now();
    let trace = fsdpsim::trace::read(std::path::Path::new(&path))?;
    let seconds = start.elapsed().as_secs_f64();
    let megabytes = trace.report.bytes as f64 / 1e6;
    println!(
        "{megabytes:.0} MB in {seconds:.2} s: {:.0} MB/s; {} events, {} names, {} arrows",
        megabytes / seconds,
        trace.events.len(),
        trace.names.len(),
        trace.flows.len()
    );
    for warning in trace.report.warnings() {
        println!("warning: {warning}");
    }
    Ok(())
}
