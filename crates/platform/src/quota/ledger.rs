//! The quota ledger of a project: its limits, its usage, and the decisions on its claims.
//!
//! A pure function. The limit of a resource is the sum of all active grants. Its usage is the sum of what
//! claims hold, including claims that are being deleted or were denied another resource, until they are gone.
//! Pending requests are decided in the order in which the claims were created. A request for an unregistered
//! resource is not decided: the registration may follow, and a denial is final.

use std::collections::{BTreeMap, BTreeSet};

use polis_api::ObjectExt;
use polis_api::conditions::{ACTIVE, GRANTED};
use polis_api::quota::{
    ALLOCATION_DENIED, ALLOCATION_GRANTED, ALLOCATION_PENDING, AllowanceBucket, AllowanceBucketSpec,
    AllowanceBucketStatus, ConsumerReference, RequestAllocation, ResourceClaim, ResourceGrant,
    ResourceRegistration, ResourceRequest,
};
use polis_api::reasons;
use polis_core::Time;
use polis_core::conditions::{self, DesiredCondition};
use sha2::{Digest, Sha256};

use super::{NAMESPACE, consumer};
use crate::managed_metadata;

/// The maximum number of requests in one claim.
const MAX_REQUESTS: usize = 20;

/// The quota objects of one project.
#[derive(Clone, Copy)]
pub(super) struct Ledger<'a> {
    pub(super) project: &'a str,
    pub(super) registrations: &'a [ResourceRegistration],
    pub(super) grants: &'a [ResourceGrant],
    pub(super) claims: &'a [ResourceClaim],
    pub(super) buckets: &'a [AllowanceBucket],
}

/// The objects to write: the existing object (none to create it) and the desired one.
#[derive(Debug, Default, PartialEq)]
pub(super) struct LedgerChanges<'a> {
    pub(super) grants: Vec<(&'a ResourceGrant, ResourceGrant)>,
    pub(super) buckets: Vec<(Option<&'a AllowanceBucket>, AllowanceBucket)>,
    pub(super) claims: Vec<(&'a ResourceClaim, ResourceClaim)>,
}

#[cfg(test)]
impl LedgerChanges<'_> {
    pub(super) fn is_empty(&self) -> bool {
        self.grants.is_empty() && self.buckets.is_empty() && self.claims.is_empty()
    }
}

/// The account of one resource.
#[derive(Clone, Debug, Default)]
struct Account {
    /// Saturates at `i64::MAX`.
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

impl<'a> Ledger<'a> {
    /// Computes the changes.
    pub(super) fn reconcile(&self, now: &Time) -> LedgerChanges<'a> {
        let mut changes = LedgerChanges::default();
        let mut accounts: BTreeMap<String, Account> = BTreeMap::new();
        self.count_grants(&mut accounts, &mut changes, now);
        self.count_claims(&mut accounts);
        self.decide(&mut accounts, &mut changes, now);
        self.update_buckets(&accounts, &mut changes, now);
        changes
    }

    fn count_grants(
        &self,
        accounts: &mut BTreeMap<String, Account>,
        changes: &mut LedgerChanges<'a>,
        now: &Time,
    ) {
        for grant in self.grants.iter().filter(|grant| !grant.is_deleting()) {
            let condition = self.evaluate_grant(grant);
            if condition.status == conditions::ConditionStatus::True {
                for allowance in &grant.spec.allowances {
                    let account = accounts.entry(allowance.resource_type.clone()).or_default();
                    let given = allowance.buckets.iter().map(|bucket| bucket.amount);
                    account.limit = given.fold(account.limit, i64::saturating_add);
                    account.grants += 1;
                }
            }
            let mut desired = grant.clone();
            let status = desired.status.get_or_insert_default();
            conditions::set(&mut status.conditions, &condition, grant.metadata.generation, now);
            status.observed_generation = grant.metadata.generation;
            if desired != *grant {
                changes.grants.push((grant, desired));
            }
        }
    }

    fn evaluate_grant(&self, grant: &ResourceGrant) -> DesiredCondition {
        let invalid =
            |message: String| DesiredCondition::new_false(ACTIVE, reasons::VALIDATION_FAILED, message);
        if let Some(message) = self.foreign_consumer(&grant.spec.consumer_ref) {
            return invalid(message);
        }
        for allowance in &grant.spec.allowances {
            if let Some(bucket) = allowance.buckets.iter().find(|bucket| bucket.amount < 0) {
                return invalid(format!("{}: amount {} is negative", allowance.resource_type, bucket.amount));
            }
            if self.registration(&allowance.resource_type).is_none() {
                let message = format!("resource {} is not registered", allowance.resource_type);
                return DesiredCondition::new_false(ACTIVE, reasons::GRANT_PENDING, message);
            }
        }
        DesiredCondition::new_true(ACTIVE, reasons::GRANT_ACTIVE, "the grant is active")
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

    fn decide(&self, accounts: &mut BTreeMap<String, Account>, changes: &mut LedgerChanges<'a>, now: &Time) {
        let mut pending: Vec<&ResourceClaim> =
            self.claims.iter().filter(|claim| !claim.is_deleting()).collect();
        pending.sort_by_key(|claim| {
            (claim.metadata.creation_timestamp.as_ref(), claim.namespace(), claim.name())
        });
        for claim in pending {
            let mut desired = claim.clone();
            let status = desired.status.get_or_insert_default();
            let invalid = self.validation_error(claim);
            if claim.spec.requests.len() <= MAX_REQUESTS {
                for request in &claim.spec.requests {
                    let index =
                        status.allocations.iter().position(|a| a.resource_type == request.resource_type);
                    let decided = index.is_some_and(|at| status.allocations[at].status != ALLOCATION_PENDING);
                    if decided {
                        continue;
                    }
                    let account = accounts.entry(request.resource_type.clone()).or_default();
                    let Some(decision) = self.decide_request(request, invalid.as_deref(), account, now)
                    else {
                        continue;
                    };
                    match index {
                        Some(at) => status.allocations[at] = decision,
                        None => status.allocations.push(decision),
                    }
                }
            }
            let condition = granted_condition(claim, &status.allocations, invalid.as_deref());
            conditions::set(&mut status.conditions, &condition, claim.metadata.generation, now);
            status.observed_generation = claim.metadata.generation;
            if desired != *claim {
                changes.claims.push((claim, desired));
            }
        }
    }

    /// Decides on one request; none while the resource is not registered.
    fn decide_request(
        &self,
        request: &ResourceRequest,
        invalid: Option<&str>,
        account: &mut Account,
        now: &Time,
    ) -> Option<RequestAllocation> {
        let mut decision = RequestAllocation {
            resource_type: request.resource_type.clone(),
            status: ALLOCATION_DENIED.into(),
            last_transition_time: Some(now.clone()),
            ..Default::default()
        };
        if let Some(message) = invalid {
            decision.reason = Some(reasons::VALIDATION_FAILED.into());
            decision.message = Some(message.to_owned());
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
            decision.message = Some(format!("requested {}, available {left} of {limit}", request.amount));
        }
        Some(decision)
    }

    /// Why a claim is invalid. The decision is final.
    fn validation_error(&self, claim: &ResourceClaim) -> Option<String> {
        let spec = &claim.spec;
        if let Some(message) = self.foreign_consumer(&spec.consumer_ref) {
            return Some(message);
        }
        if spec.requests.is_empty() || spec.requests.len() > MAX_REQUESTS {
            return Some(format!(
                "the claim has {} requests; it must have 1 to {MAX_REQUESTS}",
                spec.requests.len()
            ));
        }
        let Some(reference) = spec.resource_ref.as_ref().filter(|r| !r.kind.is_empty() && !r.name.is_empty())
        else {
            return Some("resourceRef must have a kind and a name".into());
        };
        let mut requested = BTreeSet::new();
        for request in &spec.requests {
            let resource = &request.resource_type;
            if !requested.insert(resource) {
                return Some(format!("{resource} is requested twice"));
            }
            if request.amount <= 0 {
                return Some(format!("{resource}: amount {} is not positive", request.amount));
            }
            let Some(registration) = self.registration(resource) else { continue };
            let claiming = registration.spec.claiming_resources.iter().any(|kind| {
                kind.kind.eq_ignore_ascii_case(&reference.kind)
                    && kind.api_group.as_deref().unwrap_or_default()
                        == reference.api_group.as_deref().unwrap_or_default()
            });
            if !claiming {
                return Some(format!("{resource} cannot be claimed for kind {}", reference.kind));
            }
        }
        None
    }

    /// Why a consumer is not this project. Quota of one project is never counted on the plane of another.
    fn foreign_consumer(&self, consumer_ref: &ConsumerReference) -> Option<String> {
        let own = consumer(self.project);
        let same = consumer_ref.kind == own.kind
            && consumer_ref.name == own.name
            && consumer_ref.api_group == own.api_group;
        (!same).then(|| {
            format!(
                "consumerRef names {} {:?}, but this is Project {}",
                consumer_ref.kind, consumer_ref.name, self.project
            )
        })
    }

    fn registration(&self, resource: &str) -> Option<&'a ResourceRegistration> {
        self.registrations.iter().find(|r| r.spec.resource_type == resource)
    }

    fn update_buckets(
        &self,
        accounts: &BTreeMap<String, Account>,
        changes: &mut LedgerChanges<'a>,
        now: &Time,
    ) {
        let zero = Account::default();
        let existing = self.buckets.iter().map(|bucket| (bucket.spec.resource_type.as_str(), Some(bucket)));
        let new = accounts.keys().filter(|resource| {
            self.registration(resource).is_some()
                && !self.buckets.iter().any(|bucket| bucket.spec.resource_type == **resource)
        });
        for (resource, existing) in existing.chain(new.map(|resource| (resource.as_str(), None))) {
            let account = accounts.get(resource).unwrap_or(&zero);
            let mut desired = existing.cloned().unwrap_or_else(|| self.mk_bucket(resource));
            let before = desired.status.clone().unwrap_or_default();
            let status = AllowanceBucketStatus {
                limit: account.limit,
                allocated: account.used,
                available: account.left(),
                claim_count: account.claims,
                grant_count: account.grants,
                ..before.clone()
            };
            if existing.is_none() || desired.status.is_none() || status != before {
                desired.status =
                    Some(AllowanceBucketStatus { last_reconciliation: Some(now.clone()), ..status });
                changes.buckets.push((existing, desired));
            }
        }
    }

    fn mk_bucket(&self, resource: &str) -> AllowanceBucket {
        AllowanceBucket {
            metadata: managed_metadata(Some(NAMESPACE), &bucket_name(self.project, resource)),
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

/// The `Granted` condition of a claim, from the decisions on its requests.
fn granted_condition(
    claim: &ResourceClaim,
    allocations: &[RequestAllocation],
    invalid: Option<&str>,
) -> DesiredCondition {
    let denied: Vec<String> = allocations
        .iter()
        .filter(|a| a.status == ALLOCATION_DENIED)
        .map(|a| format!("{}: {}", a.resource_type, a.message.as_deref().unwrap_or("denied")))
        .collect();
    let granted = |request: &ResourceRequest| {
        let of = |a: &&RequestAllocation| a.resource_type == request.resource_type;
        allocations.iter().find(of).is_some_and(|a| a.status == ALLOCATION_GRANTED)
    };
    if let Some(message) = invalid.filter(|_| denied.len() == allocations.len()) {
        return DesiredCondition::new_false(GRANTED, reasons::VALIDATION_FAILED, message);
    }
    if !denied.is_empty() {
        return DesiredCondition::new_false(GRANTED, reasons::QUOTA_EXCEEDED, denied.join("; "));
    }
    if !claim.spec.requests.is_empty() && claim.spec.requests.iter().all(granted) {
        return DesiredCondition::new_true(GRANTED, reasons::QUOTA_AVAILABLE, "all requests are granted");
    }
    DesiredCondition::new_false(
        GRANTED,
        reasons::PENDING_EVALUATION,
        "a requested resource is not registered yet",
    )
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
