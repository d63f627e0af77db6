//! The books of a project: what it has, what it uses, and what becomes of its claims.
//!
//! Pure. The limit of a resource is the sum of all grants that count; what is used is the sum of what claims hold,
//! deleted or denied elsewhere or not, until they are gone. Undecided requests are decided in the order in which the
//! claims were made. A request that names a resource nobody has registered is not decided at all: the registration may
//! be on its way, and a denial could not be taken back.

use std::collections::{BTreeMap, BTreeSet};

use polis_api::conditions::{ACTIVE, GRANTED};
use polis_api::quota::{
    ALLOCATION_DENIED, ALLOCATION_GRANTED, ALLOCATION_PENDING, AllowanceBucket, AllowanceBucketSpec,
    AllowanceBucketStatus, ConsumerReference, RequestAllocation, ResourceClaim, ResourceGrant,
    ResourceRegistration, ResourceRequest,
};
use polis_api::reasons;
use polis_core::conditions::{self, Verdict};
use polis_core::{Time, owner};
use sha2::{Digest, Sha256};

use super::{NAMESPACE, consumer};
use crate::made_here;

/// The most requests that one claim may hold.
const MOST_REQUESTS: usize = 20;

/// Everything that counts in one project.
#[derive(Clone, Copy)]
pub(super) struct Books<'a> {
    pub(super) project: &'a str,
    pub(super) registrations: &'a [ResourceRegistration],
    pub(super) grants: &'a [ResourceGrant],
    pub(super) claims: &'a [ResourceClaim],
    pub(super) buckets: &'a [AllowanceBucket],
}

/// What is to be written: what stands (none if it is to be made), and what it should be.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Balance<'a> {
    pub(super) grants: Vec<(&'a ResourceGrant, ResourceGrant)>,
    pub(super) buckets: Vec<(Option<&'a AllowanceBucket>, AllowanceBucket)>,
    pub(super) claims: Vec<(&'a ResourceClaim, ResourceClaim)>,
}

#[cfg(test)]
impl Balance<'_> {
    pub(super) fn is_settled(&self) -> bool {
        self.grants.is_empty() && self.buckets.is_empty() && self.claims.is_empty()
    }
}

/// One resource of the project.
#[derive(Clone, Debug, Default)]
struct Account {
    /// May be far more than a number can hold; grants are summed up wider and cut off.
    limit: i64,
    used: i64,
    claims: i32,
    grants: i32,
}

impl Account {
    fn left(&self) -> i64 {
        self.limit.saturating_sub(self.used).max(0)
    }
}

impl<'a> Books<'a> {
    /// What is to be written.
    pub(super) fn balance(&self, now: &Time) -> Balance<'a> {
        let mut balance = Balance::default();
        let mut accounts: BTreeMap<String, Account> = BTreeMap::new();
        self.count_grants(&mut accounts, &mut balance, now);
        self.count_claims(&mut accounts);
        self.decide(&mut accounts, &mut balance, now);
        self.fill_buckets(&accounts, &mut balance, now);
        balance
    }

    fn count_grants(&self, accounts: &mut BTreeMap<String, Account>, balance: &mut Balance<'a>, now: &Time) {
        for grant in self.grants.iter().filter(|grant| !owner::is_deleting(&grant.metadata)) {
            let verdict = self.judge_grant(grant);
            if verdict.truth == conditions::Truth::True {
                for allowance in &grant.spec.allowances {
                    let account = accounts.entry(allowance.resource_type.clone()).or_default();
                    let given = allowance.buckets.iter().map(|bucket| bucket.amount);
                    account.limit = given.fold(account.limit, i64::saturating_add);
                    account.grants += 1;
                }
            }
            let mut wanted = grant.clone();
            let status = wanted.status.get_or_insert_default();
            conditions::set(&mut status.conditions, &verdict, grant.metadata.generation, now);
            status.observed_generation = grant.metadata.generation;
            if wanted != *grant {
                balance.grants.push((grant, wanted));
            }
        }
    }

    fn judge_grant(&self, grant: &ResourceGrant) -> Verdict {
        let wrong = |words: String| Verdict::no(ACTIVE, reasons::VALIDATION_FAILED, words);
        if let Some(words) = self.stranger(&grant.spec.consumer_ref) {
            return wrong(words);
        }
        for allowance in &grant.spec.allowances {
            if let Some(bucket) = allowance.buckets.iter().find(|bucket| bucket.amount < 0) {
                return wrong(format!("{}: {} is less than nothing", allowance.resource_type, bucket.amount));
            }
            if self.registration(&allowance.resource_type).is_none() {
                let words = format!("resource {} is not registered", allowance.resource_type);
                return Verdict::no(ACTIVE, reasons::GRANT_PENDING, words);
            }
        }
        Verdict::yes(ACTIVE, reasons::GRANT_ACTIVE, "the grant counts")
    }

    fn count_claims(&self, accounts: &mut BTreeMap<String, Account>) {
        for claim in self.claims {
            for held in claim.status.iter().flat_map(|status| &status.allocations) {
                if held.status == ALLOCATION_GRANTED {
                    let account = accounts.entry(held.resource_type.clone()).or_default();
                    account.used = account.used.saturating_add(held.allocated_amount.unwrap_or(0).max(0));
                    account.claims += 1;
                }
            }
        }
    }

    fn decide(&self, accounts: &mut BTreeMap<String, Account>, balance: &mut Balance<'a>, now: &Time) {
        let mut waiting: Vec<&ResourceClaim> =
            self.claims.iter().filter(|claim| !owner::is_deleting(&claim.metadata)).collect();
        waiting.sort_by_key(|claim| {
            let meta = &claim.metadata;
            (meta.creation_timestamp.as_ref(), meta.namespace.as_deref(), owner::name(meta))
        });
        for claim in waiting {
            let mut wanted = claim.clone();
            let status = wanted.status.get_or_insert_default();
            let wrong = self.fault(claim);
            if claim.spec.requests.len() <= MOST_REQUESTS {
                for request in &claim.spec.requests {
                    let known =
                        status.allocations.iter().position(|a| a.resource_type == request.resource_type);
                    let decided = known.is_some_and(|at| status.allocations[at].status != ALLOCATION_PENDING);
                    if decided {
                        continue;
                    }
                    let account = accounts.entry(request.resource_type.clone()).or_default();
                    let Some(decision) = self.answer(request, wrong.as_deref(), account, now) else {
                        continue;
                    };
                    match known {
                        Some(at) => status.allocations[at] = decision,
                        None => status.allocations.push(decision),
                    }
                }
            }
            let verdict = fold(claim, &status.allocations, wrong.as_deref());
            conditions::set(&mut status.conditions, &verdict, claim.metadata.generation, now);
            status.observed_generation = claim.metadata.generation;
            if wanted != *claim {
                balance.claims.push((claim, wanted));
            }
        }
    }

    /// The decision on one request; none while it cannot be made.
    fn answer(
        &self,
        request: &ResourceRequest,
        wrong: Option<&str>,
        account: &mut Account,
        now: &Time,
    ) -> Option<RequestAllocation> {
        let mut decision = RequestAllocation {
            resource_type: request.resource_type.clone(),
            status: ALLOCATION_DENIED.into(),
            last_transition_time: Some(now.clone()),
            ..Default::default()
        };
        if let Some(wrong) = wrong {
            decision.reason = Some(reasons::VALIDATION_FAILED.into());
            decision.message = Some(wrong.to_owned());
        } else if self.registration(&request.resource_type).is_none() {
            return None;
        } else if request.amount <= account.left() {
            account.used += request.amount;
            account.claims += 1;
            decision.status = ALLOCATION_GRANTED.into();
            decision.reason = Some(reasons::QUOTA_AVAILABLE.into());
            decision.allocated_amount = Some(request.amount);
            decision.allocating_bucket = Some(bucket_name(self.project, &request.resource_type));
        } else {
            decision.reason = Some(reasons::QUOTA_EXCEEDED.into());
            let (left, limit) = (account.left(), account.limit);
            decision.message = Some(format!("{} asked for, {left} of {limit} left", request.amount));
        }
        Some(decision)
    }

    /// What is wrong with a claim, in words; decided once and for all.
    fn fault(&self, claim: &ResourceClaim) -> Option<String> {
        let spec = &claim.spec;
        if let Some(words) = self.stranger(&spec.consumer_ref) {
            return Some(words);
        }
        if spec.requests.is_empty() || spec.requests.len() > MOST_REQUESTS {
            return Some(format!("{} requests; a claim has 1 to {MOST_REQUESTS}", spec.requests.len()));
        }
        let Some(reference) = spec.resource_ref.as_ref().filter(|r| !r.kind.is_empty() && !r.name.is_empty())
        else {
            return Some("resourceRef must name the kind and the name of what the claim is for".into());
        };
        let mut named = BTreeSet::new();
        for request in &spec.requests {
            let resource = &request.resource_type;
            if !named.insert(resource) {
                return Some(format!("{resource} is asked for twice"));
            }
            if request.amount <= 0 {
                return Some(format!("{resource}: {} is not a positive amount", request.amount));
            }
            let Some(registration) = self.registration(resource) else { continue };
            let claiming = registration.spec.claiming_resources.iter().any(|kind| {
                kind.kind.eq_ignore_ascii_case(&reference.kind)
                    && kind.api_group.as_deref().unwrap_or_default()
                        == reference.api_group.as_deref().unwrap_or_default()
            });
            if !claiming {
                return Some(format!("{resource} may not be claimed for a {}", reference.kind));
            }
        }
        None
    }

    /// Why a consumer has no business in this project. Quota is never counted for one project on the plane of another.
    fn stranger(&self, named: &ConsumerReference) -> Option<String> {
        let own = consumer(self.project);
        let same = named.kind == own.kind && named.name == own.name && named.api_group == own.api_group;
        (!same).then(|| {
            format!("it is for {} {:?}, and this is Project {}", named.kind, named.name, self.project)
        })
    }

    fn registration(&self, resource: &str) -> Option<&'a ResourceRegistration> {
        self.registrations.iter().find(|r| r.spec.resource_type == resource)
    }

    fn fill_buckets(&self, accounts: &BTreeMap<String, Account>, balance: &mut Balance<'a>, now: &Time) {
        let zero = Account::default();
        let known = self.buckets.iter().map(|bucket| (bucket.spec.resource_type.as_str(), Some(bucket)));
        let new = accounts.keys().filter(|resource| {
            self.registration(resource).is_some()
                && !self.buckets.iter().any(|bucket| bucket.spec.resource_type == **resource)
        });
        for (resource, standing) in known.chain(new.map(|resource| (resource.as_str(), None))) {
            let account = accounts.get(resource).unwrap_or(&zero);
            let mut wanted = standing.cloned().unwrap_or_else(|| self.mk_bucket(resource));
            let before = wanted.status.clone().unwrap_or_default();
            let status = AllowanceBucketStatus {
                limit: account.limit,
                allocated: account.used,
                available: account.left(),
                claim_count: account.claims,
                grant_count: account.grants,
                ..before.clone()
            };
            if standing.is_none() || wanted.status.is_none() || status != before {
                wanted.status =
                    Some(AllowanceBucketStatus { last_reconciliation: Some(now.clone()), ..status });
                balance.buckets.push((standing, wanted));
            }
        }
    }

    fn mk_bucket(&self, resource: &str) -> AllowanceBucket {
        AllowanceBucket {
            metadata: made_here(Some(NAMESPACE), &bucket_name(self.project, resource)),
            spec: AllowanceBucketSpec {
                consumer_ref: consumer(self.project),
                resource_type: resource.to_owned(),
                ..Default::default()
            },
            status: None,
        }
    }
}

/// Name of the bucket of one resource.
fn bucket_name(project: &str, resource: &str) -> String {
    let digest = Sha256::digest(format!("{resource}Project{project}").as_bytes());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("bucket-{hex}")
}

/// What the claim as a whole is told.
fn fold(claim: &ResourceClaim, allocations: &[RequestAllocation], wrong: Option<&str>) -> Verdict {
    let denied: Vec<String> = allocations
        .iter()
        .filter(|a| a.status == ALLOCATION_DENIED)
        .map(|a| format!("{}: {}", a.resource_type, a.message.as_deref().unwrap_or("denied")))
        .collect();
    let granted = |request: &ResourceRequest| {
        let of = |a: &&RequestAllocation| a.resource_type == request.resource_type;
        allocations.iter().find(of).is_some_and(|a| a.status == ALLOCATION_GRANTED)
    };
    if let Some(wrong) = wrong.filter(|_| denied.len() == allocations.len()) {
        return Verdict::no(GRANTED, reasons::VALIDATION_FAILED, wrong);
    }
    if !denied.is_empty() {
        return Verdict::no(GRANTED, reasons::QUOTA_EXCEEDED, denied.join("; "));
    }
    if !claim.spec.requests.is_empty() && claim.spec.requests.iter().all(granted) {
        return Verdict::yes(GRANTED, reasons::QUOTA_AVAILABLE, "everything is granted");
    }
    Verdict::no(GRANTED, reasons::PENDING_EVALUATION, "a resource is not registered yet")
}

#[cfg(test)]
#[path = "books_tests.rs"]
mod tests;
