//! The rules of the quota ledger.

use super::*;
use crate::quota::{DefaultAllowance, mk_default_grant, registrations};
use polis_api::ObjectExt;
use polis_api::k8s_openapi::jiff::Timestamp;
use polis_api::quota::{RESOURCE_INSTANCES, RESOURCE_MEMORY, RESOURCE_VCPUS, ResourceReference};

fn at(second: i64) -> Time {
    Time(Timestamp::from_second(second).unwrap())
}

fn mk_grant(instances: i64) -> ResourceGrant {
    mk_default_grant("acme", &DefaultAllowance { instances, millicores: 8000, mebibytes: 16384 })
}

fn mk_claim(name: &str, requests: &[(&str, i64)]) -> ResourceClaim {
    let mut claim = ResourceClaim::default();
    claim.metadata.name = Some(name.into());
    claim.metadata.namespace = Some("shop".into());
    claim.metadata.creation_timestamp = Some(at(100));
    claim.spec.consumer_ref = consumer("acme");
    claim.spec.resource_ref = Some(ResourceReference {
        api_group: Some("resourcemanager.miloapis.com".into()),
        kind: "Project".into(),
        name: "acme".into(),
        ..Default::default()
    });
    let request = |(resource, amount): &(&str, i64)| ResourceRequest {
        resource_type: resource.to_string(),
        amount: *amount,
        ..Default::default()
    };
    claim.spec.requests = requests.iter().map(request).collect();
    claim
}

fn one(name: &str) -> ResourceClaim {
    mk_claim(name, &[(RESOURCE_INSTANCES, 1)])
}

/// The quota objects of a project. Changes are applied until the ledger has none.
struct Project {
    registrations: Vec<ResourceRegistration>,
    grants: Vec<ResourceGrant>,
    claims: Vec<ResourceClaim>,
    buckets: Vec<AllowanceBucket>,
}

impl Project {
    fn new(grants: Vec<ResourceGrant>, claims: Vec<ResourceClaim>) -> Self {
        let mut project =
            Project { registrations: registrations().into(), grants, claims, buckets: Vec::new() };
        project.reconcile();
        project
    }

    fn reconcile(&mut self) {
        for round in 0.. {
            let ledger = Ledger {
                project: "acme",
                registrations: &self.registrations,
                grants: &self.grants,
                claims: &self.claims,
                buckets: &self.buckets,
            };
            let changes = ledger.reconcile(&at(200));
            if changes.is_empty() {
                assert!(round <= 1, "one reconcile writes everything and the next finds no change");
                return;
            }
            let grants: Vec<_> = changes.grants.into_iter().map(|(_, new)| new).collect();
            let claims: Vec<_> = changes.claims.into_iter().map(|(_, new)| new).collect();
            let buckets: Vec<_> = changes.buckets.into_iter().map(|(_, new)| new).collect();
            put(&mut self.grants, grants, |g| g.name().to_owned());
            put(&mut self.claims, claims, |c| c.name().to_owned());
            put(&mut self.buckets, buckets, |b| b.name().to_owned());
        }
    }

    fn granted(&self, claim: &str) -> (String, String) {
        let claim = self.claims.iter().find(|c| c.name() == claim).unwrap();
        let condition = conditions::find(&claim.status.as_ref().unwrap().conditions, GRANTED).unwrap();
        (condition.status.clone(), condition.reason.clone())
    }

    fn bucket(&self, resource: &str) -> (i64, i64, i64) {
        let bucket = self.buckets.iter().find(|b| b.spec.resource_type == resource).unwrap();
        let status = bucket.status.as_ref().unwrap();
        (status.limit, status.allocated, status.available)
    }

    fn drop_claim(&mut self, name: &str) {
        self.claims.retain(|claim| claim.name() != name);
        self.reconcile();
    }
}

fn put<T>(into: &mut Vec<T>, new: Vec<T>, name: impl Fn(&T) -> String) {
    for object in new {
        into.retain(|existing| name(existing) != name(&object));
        into.push(object);
    }
}

const GRANTED_REASON: (&str, &str) = ("True", "QuotaAvailable");
const DENIED_REASON: (&str, &str) = ("False", "QuotaExceeded");
const INVALID_REASON: (&str, &str) = ("False", "ValidationFailed");
const PENDING_REASON: (&str, &str) = ("False", "PendingEvaluation");

fn owned((status, reason): (&str, &str)) -> (String, String) {
    (status.to_owned(), reason.to_owned())
}

#[test]
fn claims_are_granted_in_the_order_of_their_age_until_nothing_is_left() {
    let mut oldest = one("z-oldest");
    oldest.metadata.creation_timestamp = Some(at(1));
    let project = Project::new(vec![mk_grant(2)], vec![one("a"), one("b"), oldest]);
    assert_eq!(project.granted("z-oldest"), owned(GRANTED_REASON));
    assert_eq!(project.granted("a"), owned(GRANTED_REASON));
    assert_eq!(project.granted("b"), owned(DENIED_REASON));
    assert_eq!(project.bucket(RESOURCE_INSTANCES), (2, 2, 0));
}

#[test]
fn denied_is_final_whatever_is_granted_later() {
    let mut project = Project::new(vec![mk_grant(0)], vec![one("a")]);
    assert_eq!(project.granted("a"), owned(DENIED_REASON));
    project.grants = vec![mk_grant(10)];
    project.reconcile();
    assert_eq!(project.granted("a"), owned(DENIED_REASON));
    project.drop_claim("a");
    project.claims.push(one("a"));
    project.reconcile();
    assert_eq!(project.granted("a"), owned(GRANTED_REASON));
}

#[test]
fn without_a_grant_the_limit_is_zero() {
    let project = Project::new(vec![], vec![one("a")]);
    assert_eq!(project.granted("a"), owned(DENIED_REASON));
    assert_eq!(project.bucket(RESOURCE_INSTANCES), (0, 0, 0));
}

#[test]
fn a_claim_denied_on_one_resource_goes_on_holding_another_until_it_is_deleted() {
    let greedy = mk_claim("greedy", &[(RESOURCE_INSTANCES, 1), (RESOURCE_VCPUS, 9000)]);
    let mut project = Project::new(vec![mk_grant(1)], vec![greedy]);
    assert_eq!(project.granted("greedy"), owned(DENIED_REASON));
    assert_eq!(project.bucket(RESOURCE_INSTANCES), (1, 1, 0));
    project.drop_claim("greedy");
    assert_eq!(project.bucket(RESOURCE_INSTANCES), (1, 0, 1));
}

#[test]
fn a_terminating_claim_keeps_its_grants_and_gets_no_new_ones() {
    let mut project = Project::new(vec![mk_grant(1)], vec![one("a")]);
    project.claims[0].metadata.deletion_timestamp = Some(at(150));
    project.claims.push(one("b"));
    project.reconcile();
    assert_eq!(project.granted("b"), owned(DENIED_REASON));
    let mut terminating = one("c");
    terminating.metadata.deletion_timestamp = Some(at(150));
    let project = Project::new(vec![mk_grant(1)], vec![terminating]);
    assert_eq!(project.claims[0].status, None);
}

#[test]
fn lowering_a_grant_revokes_nothing_and_grants_nothing() {
    let mut project = Project::new(vec![mk_grant(2)], vec![one("a"), one("b")]);
    project.grants = vec![mk_grant(1)];
    project.claims.push(one("c"));
    project.reconcile();
    assert_eq!(
        [project.granted("a"), project.granted("b"), project.granted("c")],
        [owned(GRANTED_REASON), owned(GRANTED_REASON), owned(DENIED_REASON)]
    );
    assert_eq!(project.bucket(RESOURCE_INSTANCES), (1, 2, 0));
}

#[test]
fn grants_add_up_and_saturate() {
    let mut second = mk_grant(i64::MAX);
    second.metadata.name = Some("second".into());
    let project = Project::new(vec![mk_grant(i64::MAX), second], vec![one("a")]);
    assert_eq!(project.bucket(RESOURCE_INSTANCES), (i64::MAX, 1, i64::MAX - 1));
}

#[test]
fn a_grant_for_another_project_or_with_a_negative_amount_is_not_active() {
    let mut foreign = mk_grant(5);
    foreign.spec.consumer_ref = consumer("shop");
    for invalid in [foreign, mk_grant(-5)] {
        let project = Project::new(vec![invalid], vec![one("a")]);
        let status = project.grants[0].status.as_ref().unwrap();
        let active = conditions::find(&status.conditions, ACTIVE).unwrap();
        assert_eq!((active.status.as_str(), active.reason.as_str()), INVALID_REASON);
        assert_eq!(project.granted("a"), owned(DENIED_REASON));
    }
}

#[test]
fn an_invalid_claim_is_denied_with_the_reason_and_holds_nothing() {
    let mut foreign = one("a");
    foreign.spec.consumer_ref = consumer("shop");
    let mut without_reference = one("a");
    without_reference.spec.resource_ref = None;
    let mut nameless = one("a");
    nameless.spec.resource_ref.as_mut().unwrap().name.clear();
    let mut for_a_pod = one("a");
    for_a_pod.spec.resource_ref.as_mut().unwrap().kind = "Pod".into();
    let many: Vec<_> = (0..21).map(|_| (RESOURCE_INSTANCES, 1)).collect();
    let invalid = [
        foreign,
        without_reference,
        nameless,
        for_a_pod,
        mk_claim("a", &[]),
        mk_claim("a", &many),
        mk_claim("a", &[(RESOURCE_INSTANCES, 0)]),
        mk_claim("a", &[(RESOURCE_INSTANCES, -1)]),
        mk_claim("a", &[(RESOURCE_INSTANCES, i64::MIN)]),
        mk_claim("a", &[(RESOURCE_INSTANCES, 1), (RESOURCE_INSTANCES, 1)]),
    ];
    for claim in invalid {
        let project = Project::new(vec![mk_grant(5)], vec![claim.clone()]);
        assert_eq!(project.granted("a"), owned(INVALID_REASON), "{:?}", claim.spec);
        assert_eq!(project.bucket(RESOURCE_INSTANCES).1, 0);
    }
}

#[test]
fn the_largest_amount_is_denied_without_overflow() {
    let project = Project::new(vec![mk_grant(5)], vec![mk_claim("a", &[(RESOURCE_MEMORY, i64::MAX)])]);
    assert_eq!(project.granted("a"), owned(DENIED_REASON));
}

#[test]
fn the_kind_of_resource_ref_is_case_insensitive() {
    let mut claim = one("a");
    let reference = claim.spec.resource_ref.as_mut().unwrap();
    reference.api_group = Some("compute.datumapis.com".into());
    reference.kind = "instance".into();
    assert_eq!(Project::new(vec![mk_grant(5)], vec![claim]).granted("a"), owned(GRANTED_REASON));
}

#[test]
fn a_request_for_an_unregistered_resource_stays_pending() {
    let claim = mk_claim("a", &[(RESOURCE_INSTANCES, 1), ("example.com/gpus", 1)]);
    let mut project = Project::new(vec![mk_grant(5)], vec![claim]);
    assert_eq!(project.granted("a"), owned(PENDING_REASON));
    let mut gpus = registrations()[0].clone();
    gpus.spec.resource_type = "example.com/gpus".into();
    project.registrations.push(gpus);
    project.reconcile();
    assert_eq!(project.granted("a"), owned(DENIED_REASON), "registered, without a grant");
}

#[test]
fn claims_wait_until_all_compute_resources_are_registered() {
    let all = registrations();
    assert!(crate::quota::all_registered(&all));
    for missing in 0..all.len() {
        let mut known = all.to_vec();
        known.remove(missing);
        assert!(!crate::quota::all_registered(&known), "{:?}", all[missing].spec.resource_type);
    }
}
