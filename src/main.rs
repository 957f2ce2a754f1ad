//! The `fsdpsim` binary: parse the arguments, run, print the error, set the exit code.
fn main() {}
