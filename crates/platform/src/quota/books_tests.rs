//! The rules of the books, as a table of cases.

use super::*;
use crate::quota::{Allowance, mk_default_grant, registrations};
use polis_api::k8s_openapi::jiff::Timestamp;
use polis_api::quota::{RESOURCE_INSTANCES, RESOURCE_MEMORY, RESOURCE_VCPUS, ResourceReference};

fn at(second: i64) -> Time {
    Time(Timestamp::from_second(second).unwrap())
}

fn mk_grant(instances: i64) -> ResourceGrant {
    mk_default_grant("acme", &Allowance { instances, millicores: 8000, mebibytes: 16384 })
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

/// A project's books that are written back until nothing is left to write.
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
        project.settle();
        project
    }

    fn settle(&mut self) {
        for round in 0.. {
            let books = Books {
                project: "acme",
                registrations: &self.registrations,
                grants: &self.grants,
                claims: &self.claims,
                buckets: &self.buckets,
            };
            let balance = books.balance(&at(200));
            if balance.is_settled() {
                assert!(round <= 1, "one pass writes everything, the next finds nothing to do");
                return;
            }
            let grants: Vec<_> = balance.grants.into_iter().map(|(_, new)| new).collect();
            let claims: Vec<_> = balance.claims.into_iter().map(|(_, new)| new).collect();
            let buckets: Vec<_> = balance.buckets.into_iter().map(|(_, new)| new).collect();
            put(&mut self.grants, grants, |g| owner::name(&g.metadata).to_owned());
            put(&mut self.claims, claims, |c| owner::name(&c.metadata).to_owned());
            put(&mut self.buckets, buckets, |b| owner::name(&b.metadata).to_owned());
        }
    }

    fn says(&self, claim: &str) -> (String, String) {
        let claim = self.claims.iter().find(|c| owner::name(&c.metadata) == claim).unwrap();
        let condition = conditions::find(&claim.status.as_ref().unwrap().conditions, GRANTED).unwrap();
        (condition.status.clone(), condition.reason.clone())
    }

    fn bucket(&self, resource: &str) -> (i64, i64, i64) {
        let bucket = self.buckets.iter().find(|b| b.spec.resource_type == resource).unwrap();
        let status = bucket.status.as_ref().unwrap();
        (status.limit, status.allocated, status.available)
    }

    fn drop_claim(&mut self, name: &str) {
        self.claims.retain(|claim| owner::name(&claim.metadata) != name);
        self.settle();
    }
}

fn put<T>(into: &mut Vec<T>, new: Vec<T>, name: impl Fn(&T) -> String) {
    for object in new {
        into.retain(|standing| name(standing) != name(&object));
        into.push(object);
    }
}

const YES: (&str, &str) = ("True", "QuotaAvailable");
const NO: (&str, &str) = ("False", "QuotaExceeded");
const WRONG: (&str, &str) = ("False", "ValidationFailed");
const PENDING: (&str, &str) = ("False", "PendingEvaluation");

fn words((status, reason): (&str, &str)) -> (String, String) {
    (status.to_owned(), reason.to_owned())
}

#[test]
fn claims_are_granted_in_the_order_of_their_age_until_nothing_is_left() {
    let mut oldest = one("z-oldest");
    oldest.metadata.creation_timestamp = Some(at(1));
    let project = Project::new(vec![mk_grant(2)], vec![one("a"), one("b"), oldest]);
    assert_eq!(project.says("z-oldest"), words(YES));
    assert_eq!(project.says("a"), words(YES));
    assert_eq!(project.says("b"), words(NO));
    assert_eq!(project.bucket(RESOURCE_INSTANCES), (2, 2, 0));
}

#[test]
fn denied_is_final_whatever_is_granted_later() {
    let mut project = Project::new(vec![mk_grant(0)], vec![one("a")]);
    assert_eq!(project.says("a"), words(NO));
    project.grants = vec![mk_grant(10)];
    project.settle();
    assert_eq!(project.says("a"), words(NO));
    project.drop_claim("a");
    project.claims.push(one("a"));
    project.settle();
    assert_eq!(project.says("a"), words(YES));
}

#[test]
fn without_a_grant_the_limit_is_zero() {
    let project = Project::new(vec![], vec![one("a")]);
    assert_eq!(project.says("a"), words(NO));
    assert_eq!(project.bucket(RESOURCE_INSTANCES), (0, 0, 0));
}

#[test]
fn a_claim_denied_on_one_resource_goes_on_holding_another_until_it_is_deleted() {
    let greedy = mk_claim("greedy", &[(RESOURCE_INSTANCES, 1), (RESOURCE_VCPUS, 9000)]);
    let mut project = Project::new(vec![mk_grant(1)], vec![greedy]);
    assert_eq!(project.says("greedy"), words(NO));
    assert_eq!(project.bucket(RESOURCE_INSTANCES), (1, 1, 0));
    project.drop_claim("greedy");
    assert_eq!(project.bucket(RESOURCE_INSTANCES), (1, 0, 1));
}

#[test]
fn a_claim_on_its_way_out_holds_what_it_has_and_gets_nothing_new() {
    let mut project = Project::new(vec![mk_grant(1)], vec![one("a")]);
    project.claims[0].metadata.deletion_timestamp = Some(at(150));
    project.claims.push(one("b"));
    project.settle();
    assert_eq!(project.says("b"), words(NO));
    let mut going = one("c");
    going.metadata.deletion_timestamp = Some(at(150));
    let project = Project::new(vec![mk_grant(1)], vec![going]);
    assert_eq!(project.claims[0].status, None);
}

#[test]
fn lowering_a_grant_takes_nothing_back_and_gives_nothing_new() {
    let mut project = Project::new(vec![mk_grant(2)], vec![one("a"), one("b")]);
    project.grants = vec![mk_grant(1)];
    project.claims.push(one("c"));
    project.settle();
    assert_eq!(
        [project.says("a"), project.says("b"), project.says("c")],
        [words(YES), words(YES), words(NO)]
    );
    assert_eq!(project.bucket(RESOURCE_INSTANCES), (1, 2, 0));
}

#[test]
fn grants_add_up_and_absurd_ones_end_at_the_largest_number() {
    let mut second = mk_grant(i64::MAX);
    second.metadata.name = Some("second".into());
    let project = Project::new(vec![mk_grant(i64::MAX), second], vec![one("a")]);
    assert_eq!(project.bucket(RESOURCE_INSTANCES), (i64::MAX, 1, i64::MAX - 1));
}

#[test]
fn a_grant_for_another_project_or_of_less_than_nothing_does_not_count_and_says_so() {
    let mut foreign = mk_grant(5);
    foreign.spec.consumer_ref = consumer("shop");
    for wrong in [foreign, mk_grant(-5)] {
        let project = Project::new(vec![wrong], vec![one("a")]);
        let status = project.grants[0].status.as_ref().unwrap();
        let active = conditions::find(&status.conditions, ACTIVE).unwrap();
        assert_eq!((active.status.as_str(), active.reason.as_str()), WRONG);
        assert_eq!(project.says("a"), words(NO));
    }
}

#[test]
fn a_claim_that_makes_no_sense_is_refused_with_the_reason_and_holds_nothing() {
    let mut foreign = one("a");
    foreign.spec.consumer_ref = consumer("shop");
    let mut aimless = one("a");
    aimless.spec.resource_ref = None;
    let mut nameless = one("a");
    nameless.spec.resource_ref.as_mut().unwrap().name.clear();
    let mut for_a_pod = one("a");
    for_a_pod.spec.resource_ref.as_mut().unwrap().kind = "Pod".into();
    let many: Vec<_> = (0..21).map(|_| (RESOURCE_INSTANCES, 1)).collect();
    let wrong = [
        foreign,
        aimless,
        nameless,
        for_a_pod,
        mk_claim("a", &[]),
        mk_claim("a", &many),
        mk_claim("a", &[(RESOURCE_INSTANCES, 0)]),
        mk_claim("a", &[(RESOURCE_INSTANCES, -1)]),
        mk_claim("a", &[(RESOURCE_INSTANCES, i64::MIN)]),
        mk_claim("a", &[(RESOURCE_INSTANCES, 1), (RESOURCE_INSTANCES, 1)]),
    ];
    for claim in wrong {
        let project = Project::new(vec![mk_grant(5)], vec![claim.clone()]);
        assert_eq!(project.says("a"), words(WRONG), "{:?}", claim.spec);
        assert_eq!(project.bucket(RESOURCE_INSTANCES).1, 0);
    }
}

#[test]
fn the_largest_amount_is_denied_and_breaks_nothing() {
    let project = Project::new(vec![mk_grant(5)], vec![mk_claim("a", &[(RESOURCE_MEMORY, i64::MAX)])]);
    assert_eq!(project.says("a"), words(NO));
}

#[test]
fn a_kind_is_known_in_any_case_and_an_instance_may_be_claimed_for() {
    let mut claim = one("a");
    let reference = claim.spec.resource_ref.as_mut().unwrap();
    reference.api_group = Some("compute.datumapis.com".into());
    reference.kind = "instance".into();
    assert_eq!(Project::new(vec![mk_grant(5)], vec![claim]).says("a"), words(YES));
}

#[test]
fn a_resource_that_nobody_registered_is_waited_for() {
    let claim = mk_claim("a", &[(RESOURCE_INSTANCES, 1), ("example.com/gpus", 1)]);
    let mut project = Project::new(vec![mk_grant(5)], vec![claim]);
    assert_eq!(project.says("a"), words(PENDING));
    let mut gpus = registrations()[0].clone();
    gpus.spec.resource_type = "example.com/gpus".into();
    project.registrations.push(gpus);
    project.settle();
    assert_eq!(project.says("a"), words(NO), "registered, and nothing was granted of it");
}

#[test]
fn the_books_are_closed_until_the_resources_of_compute_are_registered() {
    let all = registrations();
    assert!(crate::quota::opened(&all));
    for missing in 0..all.len() {
        let mut known = all.to_vec();
        known.remove(missing);
        assert!(!crate::quota::opened(&known), "{:?}", all[missing].spec.resource_type);
    }
}
