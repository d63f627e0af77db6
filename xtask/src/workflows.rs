//! `cargo xtask workflows`: checks the files of `.github/workflows` with actionlint.

use anyhow::Result;

use crate::crds::root;
use crate::go_tool::{self, GoTool};

#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) const ACTIONLINT: GoTool = GoTool {
    name: "actionlint",
    module: "actionlint",
    package: "github.com/rhysd/actionlint/cmd/actionlint",
    tags: "",
    takes: "20 seconds",
};

pub(crate) fn run(_: Args) -> Result<()> {
    check()
}

/// Fails when a workflow does not parse or refers to something that does not exist.
pub(crate) fn check() -> Result<()> {
    let actionlint = ACTIONLINT.find_or_build()?;
    // Without the linters that it calls where they are installed: the result must not depend on the machine.
    go_tool::run(&actionlint, &["-no-color", "-shellcheck=", "-pyflakes="], &root())
}
