//! `cargo xtask sim`: the whole federation in one deterministic thread, by seed.
//!
//! Builds and starts the program of `crates/sim`, so that the tasks themselves need not be compiled with the
//! whole product.

use anyhow::{Context, Result, bail};

use crate::crds::root;
use crate::outside;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Build with optimisation: worth it from a few minutes of search on.
    #[arg(long)]
    release: bool,
    /// Arguments of the simulation: `--seed N [--trace] [--until STEP] [--twice]`, or a search with
    /// `--minutes M` or `--seeds N`, `--from SEED`, `--jobs J`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<String>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let mut cargo = outside::command("cargo");
    cargo.args(["run", "--quiet", "--package", "polis-sim", "--all-features"]);
    if args.release {
        cargo.arg("--release");
    }
    cargo.arg("--").args(&args.arguments).current_dir(root());
    let status = cargo.status().context("failed to start cargo")?;
    if !status.success() {
        bail!("the simulation failed");
    }
    Ok(())
}
