//! Tools that are Go programs: found on the PATH, or built from the pins in `testbed/<module>` and cached.
//!
//! Each tool has its own directory in the cache of the test bed, so a change of its pins does not rebuild the
//! other programs.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use polis_testbed::{go, pins::BUILD_ENV};

use crate::crds::root;
use crate::oci;

/// A program of a Go module that `go.mod` and `go.sum` in `testbed/<module>` pin.
pub(crate) struct GoTool {
    pub(crate) name: &'static str,
    pub(crate) module: &'static str,
    pub(crate) package: &'static str,
    pub(crate) tags: &'static str,
    /// How long a build takes on two cores.
    pub(crate) takes: &'static str,
}

impl GoTool {
    /// The tool on the PATH or in the cache.
    pub(crate) fn find(&self) -> Result<Option<PathBuf>> {
        let path = env::var_os("PATH").unwrap_or_default();
        let mut installed = env::split_paths(&path).map(|dir| dir.join(self.name));
        Ok(match installed.find(|file| file.is_file()) {
            Some(installed) => Some(installed),
            None => Some(self.cached()?).filter(|file| file.is_file()),
        })
    }

    /// The tool, built if it is neither installed nor cached.
    pub(crate) fn find_or_build(&self) -> Result<PathBuf> {
        match self.find()? {
            Some(tool) => Ok(tool),
            None => self.build(),
        }
    }

    /// Builds the tool into the cache.
    pub(crate) fn build(&self) -> Result<PathBuf> {
        let go = go::find()?;
        let cached = self.cached()?;
        let dir = cached.parent().context("a cached tool has a parent directory")?;
        fs::create_dir_all(dir)?;
        println!("building {}: about {} on two cores, once", self.name, self.takes);
        // Built under another name and renamed, so that the cache never holds an incomplete program.
        let scratch = tempfile::Builder::new().prefix(".build-").tempdir_in(dir)?;
        let built = scratch.path().join(self.name);
        let status = Command::new(&go.path)
            .args(["build", "-trimpath", "-ldflags", "-s -w", "-tags", self.tags, "-o"])
            .args([built.as_os_str(), self.package.as_ref()])
            .envs(BUILD_ENV)
            .current_dir(self.pins())
            .status()
            .context("failed to start go")?;
        if !status.success() {
            bail!("failed to build {}: go build ended with {status}", self.name);
        }
        fs::rename(&built, &cached).with_context(|| format!("failed to write {}", cached.display()))?;
        Ok(cached)
    }

    fn pins(&self) -> PathBuf {
        root().join("testbed").join(self.module)
    }

    /// The path in the cache; it depends on the pins.
    fn cached(&self) -> Result<PathBuf> {
        let pins = [fs::read(self.pins().join("go.mod"))?, fs::read(self.pins().join("go.sum"))?].concat();
        let key = oci::digest(&pins).replace("sha256:", "");
        Ok(polis_testbed::state_dir::cache()?.join(format!("{}-{}", self.name, &key[..16])).join(self.name))
    }
}

/// Runs a tool and fails when it fails.
pub(crate) fn run(tool: &Path, args: &[&str], dir: &Path) -> Result<()> {
    let status = Command::new(tool)
        .args(args)
        .current_dir(dir)
        .status()
        .with_context(|| format!("failed to start {}", tool.display()))?;
    if !status.success() {
        bail!("{} {} ended with {status}", tool.display(), args.join(" "));
    }
    Ok(())
}
