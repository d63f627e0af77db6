//! The shim alone. `polis` has the same inside it; see `polis_runtime::inside`.

use std::process::ExitCode;

fn main() -> ExitCode {
    polis_runtime::inside(std::env::args_os().skip(1)).unwrap_or_else(|| {
        eprintln!("polis-shim is started by Polis, one for each container that runs; it has no other use");
        ExitCode::from(2)
    })
}
