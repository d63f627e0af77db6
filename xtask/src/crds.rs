//! Generated CustomResourceDefinitions: written by `cargo xtask crds`, compared by `--check`.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Compare instead of writing; a difference is an error that names the file.
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: Args) -> Result<()> {
    if args.check { check() } else { write() }
}

/// Fails when a generated file differs from the code.
pub(crate) fn check() -> Result<()> {
    let wanted = polis_api::crds::files();
    let drift = drift(&root(), &wanted)?;
    if !drift.is_empty() {
        bail!("generated files have drifted, run `cargo xtask crds`: {}", drift.join(", "));
    }
    println!("{} generated files are up to date", wanted.len());
    Ok(())
}

fn write() -> Result<()> {
    let wanted = polis_api::crds::files();
    let drift = drift(&root(), &wanted)?;
    for (path, text) in &wanted {
        let path = root().join(path);
        fs::create_dir_all(path.parent().expect("a generated file has a parent directory"))?;
        fs::write(&path, text).with_context(|| format!("failed to write {}", path.display()))?;
    }
    for path in orphans(&root(), &wanted)? {
        fs::remove_file(&path).with_context(|| format!("failed to remove {}", path.display()))?;
    }
    println!("{} generated files, {} of them changed {}", wanted.len(), drift.len(), drift.join(", "));
    Ok(())
}

/// The root of the repository: the parent of this package.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is in the repository").to_owned()
}

/// Files that differ from the code, and files that no kind generates any more.
fn drift(root: &Path, wanted: &[(PathBuf, String)]) -> Result<Vec<String>> {
    let mut drift: Vec<String> = wanted
        .iter()
        .filter(|(path, text)| fs::read_to_string(root.join(path)).ok().as_ref() != Some(text))
        .map(|(path, _)| path.display().to_string())
        .collect();
    for orphan in orphans(root, wanted)? {
        drift.push(format!("{} (no kind generates it)", orphan.strip_prefix(root)?.display()));
    }
    Ok(drift)
}

/// YAML files next to generated ones that nothing generates, except for `kustomization.yaml`.
fn orphans(root: &Path, wanted: &[(PathBuf, String)]) -> Result<Vec<PathBuf>> {
    let known: BTreeSet<PathBuf> = wanted.iter().map(|(path, _)| root.join(path)).collect();
    let dirs: BTreeSet<&Path> = known.iter().filter_map(|path| path.parent()).collect();
    let mut orphans = Vec::new();
    for dir in dirs.into_iter().filter(|dir| dir.is_dir()) {
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            let generated = path.extension().is_some_and(|e| e == "yaml")
                && path.file_name().is_some_and(|n| n != "kustomization.yaml");
            if generated && !known.contains(&path) {
                orphans.push(path);
            }
        }
    }
    orphans.sort();
    Ok(orphans)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_wanted() -> Vec<(PathBuf, String)> {
        vec![(PathBuf::from("crds/a.yaml"), "a".into()), (PathBuf::from("crds/b.yaml"), "b".into())]
    }

    #[test]
    fn changed_missing_and_orphaned_files_are_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("crds")).unwrap();
        fs::write(dir.path().join("crds/a.yaml"), "old").unwrap();
        fs::write(dir.path().join("crds/gone.yaml"), "").unwrap();
        fs::write(dir.path().join("crds/kustomization.yaml"), "").unwrap();
        let drift = drift(dir.path(), &mk_wanted()).unwrap();
        assert_eq!(drift, ["crds/a.yaml", "crds/b.yaml", "crds/gone.yaml (no kind generates it)"]);
    }

    #[test]
    fn equal_files_have_not_drifted() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("crds")).unwrap();
        for (path, text) in mk_wanted() {
            fs::write(dir.path().join(path), text).unwrap();
        }
        assert!(drift(dir.path(), &mk_wanted()).unwrap().is_empty());
    }
}
