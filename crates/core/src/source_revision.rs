//! The revision of a project's deployment that a hub copy has, and that a cell has acted on.
//!
//! A hub that was restored from a backup shows an older spec than before. The federation would carry it to
//! the cell, and the cell would replace running instances by older ones, until the federator has written the
//! newer spec again. So the hub copy has the revision of its spec, the cell reports the newest one that it
//! has acted on, and follows no older one.
//!
//! The revision is the generation of the project's deployment. A project that was restored from a backup has
//! a smaller generation than its hub copy: the project wins, so its next change gets a number above that of
//! the copy. Revisions of two deployments (UIDs) cannot be compared; the newer deployment has another UID.

use polis_api::ObjectExt;
use polis_api::annotations::SOURCE_REVISION;
use polis_api::compute::WorkloadDeployment;

/// The value of the annotation for the hub copy of `source`. None if the existing copy keeps what it has.
pub fn of_copy(
    source: &WorkloadDeployment,
    existing: Option<&WorkloadDeployment>,
    spec_changed: bool,
) -> Option<String> {
    let generation = source.metadata.generation.filter(|_| !source.uid().is_empty())?;
    let annotated = existing.and_then(|copy| copy.annotation(SOURCE_REVISION));
    let number = match annotated.and_then(parse) {
        Some((uid, known)) if uid == source.uid() && known >= generation => {
            if !spec_changed {
                return None;
            }
            if known > generation { known + 1 } else { generation }
        }
        _ => generation,
    };
    Some(format!("{}.{number}", source.uid()))
}

/// Whether a deployment of a cell has an older revision than one that the cell has acted on.
pub fn is_outdated(deployment: &WorkloadDeployment) -> bool {
    let observed = deployment.status.as_ref().and_then(|status| status.source_revision.as_deref());
    let shown = deployment.annotation(SOURCE_REVISION);
    matches!(
        (shown.and_then(parse), observed.and_then(parse)),
        (Some((of, shown)), Some((uid, observed))) if of == uid && shown < observed
    )
}

/// Whether the status of a project's deployment is about its newest spec. A status without a revision, which
/// a cell of an earlier version writes, counts as such.
pub fn is_observed(source: &WorkloadDeployment) -> bool {
    let reported = source.status.as_ref().and_then(|status| status.source_revision.as_deref());
    match reported.and_then(parse) {
        Some((uid, number)) => {
            uid == source.uid() && source.metadata.generation.is_none_or(|own| number >= own)
        }
        None => source.status.is_some(),
    }
}

/// The generation of a project's deployment that a status of its copy is about; none if that is not known.
pub fn observed_generation(source: &WorkloadDeployment, reported: Option<&str>) -> Option<i64> {
    let (uid, number) = parse(reported?)?;
    let own = source.metadata.generation?;
    // After a restore of the project the number of the copy is above its generation.
    (uid == source.uid()).then(|| number.min(own))
}

/// The revision that the status of a deployment in a cell reports.
pub fn observed(deployment: &WorkloadDeployment) -> Option<String> {
    match is_outdated(deployment) {
        true => deployment.status.as_ref().and_then(|status| status.source_revision.clone()),
        false => deployment.annotation(SOURCE_REVISION).map(str::to_owned),
    }
}

/// The UID of the project's deployment of which a deployment of a cell is a copy.
pub fn source_uid(deployment: &WorkloadDeployment) -> Option<&str> {
    deployment.annotation(SOURCE_REVISION).and_then(parse).map(|(uid, _)| uid).filter(|uid| !uid.is_empty())
}

fn parse(revision: &str) -> Option<(&str, i64)> {
    let (uid, number) = revision.rsplit_once('.')?;
    Some((uid, number.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::map;
    use crate::testing::mk_deployment;

    fn mk_source(generation: i64) -> WorkloadDeployment {
        let mut source = mk_deployment("web");
        source.metadata.generation = Some(generation);
        source
    }

    fn mk_copy(revision: &str) -> WorkloadDeployment {
        let mut copy = mk_deployment("web");
        copy.metadata.annotations = Some(map([(SOURCE_REVISION, revision)]));
        copy
    }

    #[test]
    fn the_revision_follows_the_generation_of_the_project() {
        let of = |generation, copy: Option<&str>, spec_changed| {
            let copy = copy.map(mk_copy);
            of_copy(&mk_source(generation), copy.as_ref(), spec_changed)
        };
        let table = [
            ("a new copy", of(3, None, true), Some("uid-web.3")),
            ("unchanged", of(3, Some("uid-web.3"), false), None),
            ("a new spec", of(4, Some("uid-web.3"), true), Some("uid-web.4")),
            ("a restored hub", of(7, Some("uid-web.3"), true), Some("uid-web.7")),
            ("a restored hub with the same spec", of(7, Some("uid-web.3"), false), Some("uid-web.7")),
            ("a copy that was edited by hand", of(3, Some("uid-web.3"), true), Some("uid-web.3")),
            ("a restored project", of(3, Some("uid-web.7"), true), Some("uid-web.8")),
            ("a restored project with the same spec", of(3, Some("uid-web.7"), false), None),
            ("another deployment of the same name", of(1, Some("uid-old.9"), false), Some("uid-web.1")),
            ("no revision", of(1, Some("x"), false), Some("uid-web.1")),
        ];
        for (case, revision, expected) in table {
            assert_eq!(revision.as_deref(), expected, "{case}");
        }
    }

    #[test]
    fn a_copy_of_an_earlier_version_gets_a_revision() {
        let copy = mk_deployment("web");
        assert_eq!(of_copy(&mk_source(3), Some(&copy), false).as_deref(), Some("uid-web.3"));
        assert_eq!(of_copy(&mk_source(4), Some(&copy), true).as_deref(), Some("uid-web.4"));
    }

    #[test]
    fn a_copy_names_the_deployment_of_its_project() {
        assert_eq!(source_uid(&mk_copy("uid-web.4")), Some("uid-web"));
        for none in [mk_deployment("web"), mk_copy("x"), mk_copy(".4")] {
            assert_eq!(source_uid(&none), None);
        }
    }

    #[test]
    fn a_cell_follows_no_older_revision_of_the_same_deployment() {
        for (shown, acted_on, outdated) in [
            (Some("u.3"), Some("u.4"), true),
            (Some("u.4"), Some("u.4"), false),
            (Some("u.5"), Some("u.4"), false),
            (Some("u.10"), Some("u.9"), false),
            (Some("v.1"), Some("u.4"), false),
            (None, Some("u.4"), false),
            (Some("u.1"), None, false),
        ] {
            let mut deployment = shown.map_or_else(|| mk_deployment("web"), mk_copy);
            deployment.status.get_or_insert_default().source_revision = acted_on.map(str::to_owned);
            assert_eq!(is_outdated(&deployment), outdated, "{shown:?} {acted_on:?}");
            let expected = if outdated { acted_on } else { shown };
            assert_eq!(observed(&deployment).as_deref(), expected);
        }
    }
}
