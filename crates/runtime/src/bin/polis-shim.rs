//! The shim as a separate binary. `polis` contains the same code; see `polis_runtime::run_internal_command`.

use std::process::ExitCode;

fn main() -> ExitCode {
    polis_runtime::run_internal_command(std::env::args_os().skip(1)).unwrap_or_else(|| {
        eprintln!("polis-shim: the Polis runtime starts this program for each running container; it has no other use");
        ExitCode::from(2)
    })
}
