//! Audit policy (`audit.k8s.io/v1`): at which level a request is recorded, and at which stages.
//!
//! The first rule that matches a request determines its level, as in kube-apiserver. Two things are stricter
//! here, because an audit log is read by more people than the objects that it describes:
//!
//! - A rule records the bodies of Secrets and tokens only if it names their resource. A rule for all
//!   resources, or for all of a group, records them at [`AuditLevel::Metadata`].
//! - A refused request that no rule matches is recorded at [`AuditLevel::Metadata`]
//!   ([`AuditDecision::of_refusal`]). A rule of the level `None` excludes it.

use std::str::FromStr;

use serde::Deserialize;
use serde_json::Value;

use crate::decode;

/// How much of a request an audit event contains. Each level contains the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum AuditLevel {
    /// The request is not recorded.
    None,
    /// User, verb, object, response code, times; no bodies.
    Metadata,
    /// The body of the request, too.
    Request,
    /// The body of the response, too.
    RequestResponse,
}

impl AuditLevel {
    /// The name in events and policies.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Metadata => "Metadata",
            Self::Request => "Request",
            Self::RequestResponse => "RequestResponse",
        }
    }
}

impl FromStr for AuditLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::None, Self::Metadata, Self::Request, Self::RequestResponse]
            .into_iter()
            .find(|level| level.as_str().eq_ignore_ascii_case(text))
            .ok_or_else(|| {
                format!("{text:?} is not an audit level: use None, Metadata, Request or RequestResponse")
            })
    }
}

/// A stage of a request at which an event can be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum AuditStage {
    /// The request is authenticated; nothing has been done.
    RequestReceived,
    /// The head of the response is sent; only for watches.
    ResponseStarted,
    /// The response is complete, or the client is gone.
    ResponseComplete,
    /// The handler panicked.
    Panic,
}

impl AuditStage {
    /// The name in events and policies.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RequestReceived => "RequestReceived",
            Self::ResponseStarted => "ResponseStarted",
            Self::ResponseComplete => "ResponseComplete",
            Self::Panic => "Panic",
        }
    }
}

/// A set of stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stages(u8);

impl Stages {
    fn of(stages: &[AuditStage]) -> Self {
        Self(stages.iter().fold(0, |set, stage| set | 1 << *stage as u8))
    }

    fn has(self, stage: AuditStage) -> bool {
        self.0 & 1 << stage as u8 != 0
    }
}

/// What a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditTarget<'a> {
    /// A collection, an object or a subresource. Parts that the path does not have are empty.
    Resource {
        /// API group; empty for core.
        group: &'a str,
        /// Plural resource name.
        resource: &'a str,
        /// Subresource.
        subresource: &'a str,
        /// Namespace.
        namespace: &'a str,
        /// Object name.
        name: &'a str,
    },
    /// A path that is no resource, such as `/healthz`.
    Path(&'a str),
}

impl AuditTarget<'_> {
    /// Whether bodies contain credentials: Secrets, requested tokens and reviewed tokens.
    pub fn is_sensitive(&self) -> bool {
        match *self {
            Self::Resource { group: "", resource: "secrets", .. }
            | Self::Resource { group: "", resource: "serviceaccounts", subresource: "token", .. } => true,
            Self::Resource { group: "authentication.k8s.io", resource, .. } => resource == "tokenreviews",
            _ => false,
        }
    }
}

/// A request, as the rules of a policy match it.
#[derive(Clone, Copy, Debug)]
pub struct AuditAttributes<'a> {
    /// The authenticated user, before impersonation; empty if authentication failed.
    pub user: &'a str,
    /// The groups of the user.
    pub groups: &'a [String],
    /// The verb of the API; for other paths the HTTP method in lower case.
    pub verb: &'a str,
    /// What the request is about.
    pub target: AuditTarget<'a>,
}

/// How a policy records one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditDecision {
    /// The level of the events.
    pub level: AuditLevel,
    /// Whether `metadata.managedFields` is left out of bodies.
    pub omit_managed_fields: bool,
    omit_stages: Stages,
    /// Whether a rule matched.
    matched: bool,
}

impl AuditDecision {
    /// Whether an event is recorded at a stage.
    pub fn records(&self, stage: AuditStage) -> bool {
        self.level > AuditLevel::None && !self.omit_stages.has(stage)
    }

    /// The decision about a request that was refused (401, 403, 429): recorded, unless a rule excludes it.
    pub fn of_refusal(self) -> Self {
        match self.matched {
            true => self,
            false => Self { level: self.level.max(AuditLevel::Metadata), ..self },
        }
    }
}

/// Why a policy cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuditPolicyError {
    /// The text is not a Policy of `audit.k8s.io/v1`.
    #[error("the audit policy is not valid: {0}")]
    Malformed(String),
    /// A rule contradicts itself.
    #[error("rule {index} of the audit policy is not valid: {why}")]
    Rule {
        /// Index of the rule, from 0.
        index: usize,
        /// What is wrong, and what to do.
        why: String,
    },
}

/// An audit policy.
#[derive(Clone, Debug)]
pub struct AuditPolicy {
    rules: Vec<Rule>,
    omit_stages: Stages,
    omit_managed_fields: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PolicyObject {
    api_version: String,
    kind: String,
    #[serde(default)]
    #[allow(dead_code, reason = "accepted, as in Kubernetes, and without effect")]
    metadata: Value,
    rules: Vec<Rule>,
    #[serde(default)]
    omit_stages: Vec<AuditStage>,
    #[serde(default)]
    omit_managed_fields: bool,
}

/// A rule; an empty list matches everything.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Rule {
    level: AuditLevel,
    #[serde(default)]
    users: Vec<String>,
    #[serde(default)]
    user_groups: Vec<String>,
    #[serde(default)]
    verbs: Vec<String>,
    #[serde(default)]
    resources: Vec<GroupResources>,
    #[serde(default)]
    namespaces: Vec<String>,
    #[serde(default, rename = "nonResourceURLs")]
    non_resource_urls: Vec<String>,
    #[serde(default)]
    omit_stages: Vec<AuditStage>,
    omit_managed_fields: Option<bool>,
}

/// Resources of one group; without names all resources of the group.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct GroupResources {
    group: String,
    resources: Vec<String>,
    resource_names: Vec<String>,
}

/// All groups, in the default policy. Policies of Kubernetes name each group, so [`Rule::check`] refuses it.
const ALL_GROUPS: &str = "*";
/// Verbs that change objects, and methods that change state at other paths.
const WRITES: [&str; 7] = ["create", "update", "patch", "delete", "deletecollection", "post", "put"];
/// Verbs that read objects.
const READS: [&str; 3] = ["get", "list", "watch"];

fn has(list: &[String], item: &str) -> bool {
    list.iter().any(|known| known == item)
}

fn strings(items: &[&str]) -> Vec<String> {
    items.iter().map(|item| (*item).to_owned()).collect()
}

impl AuditPolicy {
    /// Parses a Policy of `audit.k8s.io/v1`, in YAML or JSON.
    pub fn parse(text: &str) -> Result<Self, AuditPolicyError> {
        let malformed = |why: String| AuditPolicyError::Malformed(why);
        let decoded = decode::yaml(text.as_bytes()).map_err(|error| malformed(error.to_string()))?;
        let object: PolicyObject =
            serde_json::from_value(decoded.value).map_err(|error| malformed(error.to_string()))?;
        if object.api_version != "audit.k8s.io/v1" || object.kind != "Policy" {
            return Err(malformed(format!(
                "it is {} of {}: use kind Policy of audit.k8s.io/v1",
                object.kind, object.api_version
            )));
        }
        if object.rules.is_empty() {
            return Err(malformed("it has no rules: add one, for example {level: Metadata}".to_owned()));
        }
        for (index, rule) in object.rules.iter().enumerate() {
            rule.check().map_err(|why| AuditPolicyError::Rule { index, why })?;
        }
        Ok(Self {
            rules: object.rules,
            omit_stages: Stages::of(&object.omit_stages),
            omit_managed_fields: object.omit_managed_fields,
        })
    }

    /// The default policy: writes at `level`, reads of Secrets at `Metadata`, refusals, and no other reads.
    ///
    /// `controllers` is the group of the controllers of the installation. Their leases, events and access
    /// reviews are not recorded, nor is the status that they write: it follows from other writes, and would
    /// be most of the log.
    pub fn standard(level: AuditLevel, controllers: &str) -> Self {
        let in_group = |group: &str, resources: &[&str]| GroupResources {
            group: group.to_owned(),
            resources: strings(resources),
            ..GroupResources::default()
        };
        let rule = |level, verbs: &[&str], resources| Rule {
            level,
            users: Vec::new(),
            user_groups: Vec::new(),
            verbs: strings(verbs),
            resources,
            namespaces: Vec::new(),
            non_resource_urls: Vec::new(),
            omit_stages: Vec::new(),
            omit_managed_fields: None,
        };
        let routine = vec![
            in_group("coordination.k8s.io", &["leases"]),
            in_group("", &["events"]),
            in_group("events.k8s.io", &["events"]),
            in_group("authorization.k8s.io", &[]),
            in_group(ALL_GROUPS, &["*/status"]),
        ];
        let routine =
            Rule { user_groups: vec![controllers.to_owned()], ..rule(AuditLevel::None, &[], routine) };
        let reads = rule(AuditLevel::Metadata, &READS, vec![in_group("", &["secrets", "secrets/*"])]);
        Self {
            rules: vec![routine, reads, rule(level, &WRITES, Vec::new())],
            omit_stages: Stages::of(&[AuditStage::RequestReceived]),
            omit_managed_fields: true,
        }
    }

    /// Whether any request can be recorded before it is executed.
    pub fn records_received(&self) -> bool {
        !self.omit_stages.has(AuditStage::RequestReceived)
    }

    /// How a request is recorded: by the first rule that matches it.
    pub fn decide(&self, request: &AuditAttributes<'_>) -> AuditDecision {
        let Some(rule) = self.rules.iter().find(|rule| rule.matches(request)) else {
            return AuditDecision {
                level: AuditLevel::None,
                omit_managed_fields: self.omit_managed_fields,
                omit_stages: self.omit_stages,
                matched: false,
            };
        };
        let hidden = request.target.is_sensitive() && !rule.names(&request.target);
        AuditDecision {
            level: if hidden { rule.level.min(AuditLevel::Metadata) } else { rule.level },
            omit_managed_fields: rule.omit_managed_fields.unwrap_or(self.omit_managed_fields),
            omit_stages: Stages(self.omit_stages.0 | Stages::of(&rule.omit_stages).0),
            matched: true,
        }
    }
}

impl Rule {
    fn check(&self) -> Result<(), String> {
        let of_resources = !(self.resources.is_empty() && self.namespaces.is_empty());
        if of_resources && !self.non_resource_urls.is_empty() {
            return Err(
                "a rule with nonResourceURLs has no resources or namespaces: use two rules".to_owned()
            );
        }
        for url in &self.non_resource_urls {
            if url != "*" && (!url.starts_with('/') || url.trim_end_matches('*').contains('*')) {
                return Err(format!(
                    "{url:?} in nonResourceURLs is not a path: begin with /, with * at most at the end"
                ));
            }
        }
        for resources in &self.resources {
            if resources.group.contains(['/', '*']) {
                return Err(format!(
                    "{:?} is not a group: write one group without its version",
                    resources.group
                ));
            }
            if !resources.resource_names.is_empty() && resources.resources.is_empty() {
                return Err("resourceNames need resources: name them".to_owned());
            }
        }
        Ok(())
    }

    fn matches(&self, request: &AuditAttributes<'_>) -> bool {
        let user = self.users.is_empty() || has(&self.users, request.user);
        let group =
            self.user_groups.is_empty() || request.groups.iter().any(|group| has(&self.user_groups, group));
        let verb = self.verbs.is_empty() || has(&self.verbs, request.verb);
        user && group && verb && self.matches_target(&request.target)
    }

    fn matches_target(&self, target: &AuditTarget<'_>) -> bool {
        if !self.resources.is_empty() || !self.namespaces.is_empty() {
            let AuditTarget::Resource { namespace, .. } = target else { return false };
            return (self.namespaces.is_empty() || has(&self.namespaces, namespace))
                && (self.resources.is_empty() || self.resources.iter().any(|known| known.matches(target)));
        }
        if self.non_resource_urls.is_empty() {
            return true;
        }
        let AuditTarget::Path(path) = target else { return false };
        self.non_resource_urls.iter().any(|url| {
            url == path
                || url.strip_suffix('*').is_some_and(|stem| path.starts_with(stem.trim_end_matches('*')))
        })
    }

    /// Whether the rule names the resource of a target, not only its group or all resources.
    fn names(&self, target: &AuditTarget<'_>) -> bool {
        let AuditTarget::Resource { resource, .. } = target else { return false };
        self.resources.iter().any(|known| {
            known.matches(target)
                && known.resources.iter().any(|name| name.split('/').next() == Some(*resource))
        })
    }
}

impl GroupResources {
    fn matches(&self, target: &AuditTarget<'_>) -> bool {
        let AuditTarget::Resource { group, resource, subresource, name, .. } = *target else { return false };
        if self.group != group && self.group != ALL_GROUPS {
            return false;
        }
        let named = self.resource_names.is_empty() || has(&self.resource_names, name);
        self.resources.is_empty()
            || named
                && self.resources.iter().any(|known| match known.split_once('/') {
                    None => known == "*" || (subresource.is_empty() && known == resource),
                    Some(("*", sub)) => !subresource.is_empty() && sub == subresource,
                    Some((of, "*")) => of == resource,
                    Some((of, sub)) => of == resource && sub == subresource,
                })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUPS: [&str; 2] = ["devs", "system:authenticated"];

    fn mk_policy(rules: &str) -> AuditPolicy {
        AuditPolicy::parse(&format!("{{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{rules}]}}"))
            .unwrap()
    }

    fn target<'a>(group: &'a str, resource: &'a str, namespace: &'a str, name: &'a str) -> AuditTarget<'a> {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        AuditTarget::Resource { group, resource, subresource, namespace, name }
    }

    fn decide(policy: &AuditPolicy, verb: &str, target: AuditTarget<'_>) -> AuditDecision {
        policy.decide(&AuditAttributes { user: "dora", groups: &strings(&GROUPS), verb, target })
    }

    #[test]
    fn a_rule_matches_by_user_group_verb_resource_namespace_and_path() {
        let pods = target("", "pods", "n", "a");
        let log = target("", "pods/log", "n", "a");
        let health = AuditTarget::Path("/healthz/ping");
        for (rule, target, matches) in [
            ("", pods, true),
            ("users: [dora]", pods, true),
            ("users: [eve]", pods, false),
            ("userGroups: [ops, devs]", pods, true),
            ("userGroups: [ops]", pods, false),
            ("verbs: [get, list]", pods, true),
            ("verbs: [list]", pods, false),
            ("verbs: ['*']", pods, false),
            ("resources: [{group: ''}]", pods, true),
            ("resources: [{group: apps}]", pods, false),
            ("resources: [{group: '', resources: [pods]}]", pods, true),
            ("resources: [{group: '', resources: [pods]}]", log, false),
            ("resources: [{group: '', resources: [pods/log]}]", log, true),
            ("resources: [{group: '', resources: ['pods/*']}]", log, true),
            ("resources: [{group: '', resources: ['pods/*']}]", pods, true),
            ("resources: [{group: '', resources: ['*/log']}]", log, true),
            ("resources: [{group: '', resources: ['*/log']}]", pods, false),
            ("resources: [{group: '', resources: ['*']}]", log, true),
            ("resources: [{group: '', resources: [pods], resourceNames: [a]}]", pods, true),
            ("resources: [{group: '', resources: [pods], resourceNames: [b]}]", pods, false),
            ("namespaces: ['n']", pods, true),
            ("namespaces: ['']", pods, false),
            ("namespaces: ['n'], resources: [{group: apps}]", pods, false),
            ("namespaces: ['n']", health, false),
            ("nonResourceURLs: [/healthz]", health, false),
            ("nonResourceURLs: ['/healthz*']", health, true),
            ("nonResourceURLs: ['*']", health, true),
            ("nonResourceURLs: ['*']", pods, false),
            ("", health, true),
        ] {
            let comma = if rule.is_empty() { "" } else { ", " };
            let policy = mk_policy(&format!("{{level: Request{comma}{rule}}}"));
            let level = if matches { AuditLevel::Request } else { AuditLevel::None };
            assert_eq!(decide(&policy, "get", target).level, level, "{rule} {target:?}");
        }
    }

    #[test]
    fn the_first_matching_rule_determines_the_level() {
        let policy = mk_policy("{level: None, verbs: [get]}, {level: Metadata}, {level: Request}");
        let pods = target("", "pods", "n", "");
        assert_eq!(decide(&policy, "get", pods).level, AuditLevel::None);
        assert_eq!(decide(&policy, "create", pods).level, AuditLevel::Metadata);
    }

    #[test]
    fn bodies_of_secrets_and_tokens_are_recorded_only_for_rules_that_name_them() {
        let secret = target("", "secrets", "n", "a");
        let token = target("", "serviceaccounts/token", "n", "a");
        let review = target("authentication.k8s.io", "tokenreviews", "", "");
        for (rule, target, level) in [
            ("", secret, AuditLevel::Metadata),
            ("", token, AuditLevel::Metadata),
            ("", review, AuditLevel::Metadata),
            ("resources: [{group: ''}]", secret, AuditLevel::Metadata),
            ("resources: [{group: '', resources: ['*']}]", token, AuditLevel::Metadata),
            ("resources: [{group: '', resources: ['*/token']}]", token, AuditLevel::Metadata),
            ("resources: [{group: authentication.k8s.io}]", review, AuditLevel::Metadata),
            ("resources: [{group: '', resources: [secrets]}]", secret, AuditLevel::RequestResponse),
            ("resources: [{group: '', resources: [pods, secrets]}]", secret, AuditLevel::RequestResponse),
            (
                "resources: [{group: '', resources: [serviceaccounts/token]}]",
                token,
                AuditLevel::RequestResponse,
            ),
            (
                "resources: [{group: authentication.k8s.io, resources: [tokenreviews]}]",
                review,
                AuditLevel::RequestResponse,
            ),
        ] {
            let comma = if rule.is_empty() { "" } else { ", " };
            let policy = mk_policy(&format!("{{level: RequestResponse{comma}{rule}}}"));
            assert_eq!(decide(&policy, "create", target).level, level, "{rule} {target:?}");
        }
    }

    #[test]
    fn a_refusal_is_recorded_unless_a_rule_excludes_it() {
        let pods = target("", "pods", "n", "");
        let policy = mk_policy("{level: None, verbs: [watch]}, {level: Request, verbs: [create]}");
        let level = |verb| decide(&policy, verb, pods).of_refusal().level;
        assert_eq!(decide(&policy, "get", pods).level, AuditLevel::None);
        assert_eq!(
            [level("get"), level("watch"), level("create")],
            [AuditLevel::Metadata, AuditLevel::None, AuditLevel::Request]
        );
    }

    #[test]
    fn stages_are_omitted_by_the_policy_and_by_the_rule() {
        let text = "{apiVersion: audit.k8s.io/v1, kind: Policy, omitStages: [RequestReceived], omitManagedFields: true,
            rules: [{level: Metadata, verbs: [watch], omitStages: [ResponseStarted], omitManagedFields: false}, {level: Metadata}]}";
        let policy = AuditPolicy::parse(text).unwrap();
        assert!(!policy.records_received() && mk_policy("{level: None}").records_received());
        let pods = target("", "pods", "n", "");
        let recorded = |verb| {
            let decision = decide(&policy, verb, pods);
            let stages =
                [AuditStage::RequestReceived, AuditStage::ResponseStarted, AuditStage::ResponseComplete];
            (stages.map(|stage| decision.records(stage)), decision.omit_managed_fields)
        };
        assert_eq!(recorded("watch"), ([false, false, true], false));
        assert_eq!(recorded("create"), ([false, true, true], true));
        assert!(!decide(&mk_policy("{level: None}"), "get", pods).records(AuditStage::ResponseComplete));
    }

    #[test]
    fn the_default_policy_records_writes_reads_of_secrets_and_refusals() {
        let policy = AuditPolicy::standard(AuditLevel::Metadata, "controllers");
        let level = |groups: &[&str], verb, resource| {
            let (group, resource) = resource;
            let target = target(group, resource, "n", "");
            let decision =
                policy.decide(&AuditAttributes { user: "u", groups: &strings(groups), verb, target });
            (decision.level, decision.of_refusal().level)
        };
        const NONE: AuditLevel = AuditLevel::None;
        const METADATA: AuditLevel = AuditLevel::Metadata;
        let user: &[&str] = &["devs"];
        let controller: &[&str] = &["system:masters", "controllers"];
        for (groups, verb, resource, expected) in [
            (user, "create", ("", "configmaps"), (METADATA, METADATA)),
            (user, "deletecollection", ("x.io", "widgets"), (METADATA, METADATA)),
            (user, "update", ("coordination.k8s.io", "leases"), (METADATA, METADATA)),
            (user, "get", ("", "configmaps"), (NONE, METADATA)),
            (user, "get", ("", "secrets"), (METADATA, METADATA)),
            (user, "watch", ("", "secrets"), (METADATA, METADATA)),
            (user, "create", ("", "serviceaccounts/token"), (METADATA, METADATA)),
            (controller, "update", ("coordination.k8s.io", "leases"), (NONE, NONE)),
            (controller, "create", ("events.k8s.io", "events"), (NONE, NONE)),
            (controller, "create", ("authorization.k8s.io", "subjectaccessreviews"), (NONE, NONE)),
            (controller, "patch", ("compute.datumapis.com", "instances/status"), (NONE, NONE)),
            (user, "patch", ("compute.datumapis.com", "instances/status"), (METADATA, METADATA)),
            (controller, "create", ("compute.datumapis.com", "instances"), (METADATA, METADATA)),
            (controller, "list", ("", "secrets"), (METADATA, METADATA)),
        ] {
            assert_eq!(level(groups, verb, resource), expected, "{groups:?} {verb} {resource:?}");
        }
    }

    #[test]
    fn a_policy_that_is_not_valid_is_refused_with_the_cause() {
        let rule = |rule: &str| format!("{{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{rule}]}}");
        for (text, cause) in [
            ("rules: [".to_owned(), "not valid"),
            ("{apiVersion: v1, kind: Policy, rules: [{level: None}]}".to_owned(), "Policy of v1"),
            (rule(""), "no rules"),
            (rule("{level: Everything}"), "Everything"),
            (rule("{verbs: [get]}"), "level"),
            (rule("{level: None, verb: [get]}"), "verb"),
            (rule("{level: None, omitStages: [Later]}"), "Later"),
            (rule("{level: None}, {level: None, nonResourceURLs: [/a], namespaces: ['n']}"), "rule 1"),
            (rule("{level: None, nonResourceURLs: ['/a*b']}"), "not a path"),
            (rule("{level: None, resources: [{group: apps/v1}]}"), "without its version"),
            (rule("{level: None, resources: [{group: '*'}]}"), "one group"),
            (rule("{level: None, resources: [{group: '', resourceNames: [a]}]}"), "need resources"),
        ] {
            let error = AuditPolicy::parse(&text).unwrap_err().to_string();
            assert!(error.contains(cause), "{text}: {error}");
        }
    }

    #[test]
    fn a_level_is_parsed_from_its_name() {
        assert_eq!("requestresponse".parse(), Ok(AuditLevel::RequestResponse));
        assert!("all".parse::<AuditLevel>().unwrap_err().contains("RequestResponse"));
    }
}
