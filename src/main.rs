//! The `fsdpsim` binary; everything it does is in [`fsdpsim::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    fsdpsim::cli::main()
}
