//! The built-in kinds and the rules in which they differ.

use std::sync::{Arc, OnceLock};

use polis_apimachinery::{meta::NameRule, table::Columns};
use serde_json::Value;

use super::{
    Kind, Origin, Version,
    schemas::{self, root_definition},
};
use crate::versioned_schema::VersionedSchema;

/// The properties of a built-in kind.
pub(crate) struct Rules {
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) singular: &'static str,
    pub(crate) short: &'static [&'static str],
    pub(crate) namespaced: bool,
    pub(crate) status: bool,
    /// Evaluated on create and never stored: reviews.
    pub(crate) ephemeral: bool,
    /// Always empty: kinds that clients list (Pod, Node, Service), of which a plane has none.
    pub(crate) empty: bool,
    /// A PUT to a name that does not exist creates the object.
    pub(crate) create_on_update: bool,
    /// A PUT without resourceVersion is allowed.
    pub(crate) unconditional_update: bool,
    /// A delete returns the object instead of a Status.
    pub(crate) returns_deleted: bool,
    /// `metadata.generation` counts changes of the spec.
    pub(crate) generation: bool,
    pub(crate) name_rule: NameRule,
    /// Fields that field selectors support besides name and namespace.
    pub(crate) selectable: &'static [&'static str],
    /// The name of the OpenAPI definition.
    pub(crate) definition: &'static str,
    pub(crate) categories: &'static [&'static str],
}

impl Rules {
    pub(crate) fn verbs(&self) -> &'static [&'static str] {
        if self.ephemeral {
            &["create"]
        } else if self.empty {
            &["get", "list", "watch"]
        } else if self.plural == "namespaces" {
            &["create", "delete", "get", "list", "patch", "update", "watch"]
        } else {
            &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
        }
    }
}

const PLAIN: Rules = Rules {
    group: "",
    version: "v1",
    kind: "",
    plural: "",
    singular: "",
    short: &[],
    namespaced: true,
    status: false,
    ephemeral: false,
    empty: false,
    create_on_update: false,
    unconditional_update: true,
    generation: false,
    returns_deleted: false,
    name_rule: NameRule::SUBDOMAIN,
    selectable: &[],
    definition: "",
    categories: &[],
};

const EVENT_FIELDS: &[&str] = &[
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
];

const REGARDING_FIELDS: &[&str] = &[
    "regarding.kind",
    "regarding.namespace",
    "regarding.name",
    "regarding.uid",
    "regarding.apiVersion",
    "regarding.resourceVersion",
    "regarding.fieldPath",
    "reason",
    "reportingController",
    "type",
];

/// A review, which is never stored.
const fn review(
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    singular: &'static str,
    namespaced: bool,
    definition: &'static str,
) -> Rules {
    Rules { group, kind, plural, singular, namespaced, ephemeral: true, definition, ..PLAIN }
}

/// A kind without objects, which kubectl and federation controllers list on every cluster.
const fn empty(
    kind: &'static str,
    plural: &'static str,
    singular: &'static str,
    short: &'static [&'static str],
    namespaced: bool,
    definition: &'static str,
) -> Rules {
    let categories: &[&str] = if namespaced { &["all"] } else { &[] };
    Rules { kind, plural, singular, short, namespaced, empty: true, definition, categories, ..PLAIN }
}

/// A role or binding. Its name can be any path segment.
const fn rbac(
    kind: &'static str,
    plural: &'static str,
    singular: &'static str,
    namespaced: bool,
    definition: &'static str,
) -> Rules {
    Rules {
        group: "rbac.authorization.k8s.io",
        kind,
        plural,
        singular,
        namespaced,
        create_on_update: true,
        name_rule: NameRule::PATH_SEGMENT,
        definition,
        ..PLAIN
    }
}

/// A webhook configuration or admission policy: cluster-scoped, with a generation.
const fn admission(
    kind: &'static str,
    plural: &'static str,
    singular: &'static str,
    status: bool,
    definition: &'static str,
) -> Rules {
    Rules {
        group: "admissionregistration.k8s.io",
        kind,
        plural,
        singular,
        namespaced: false,
        status,
        generation: true,
        unconditional_update: false,
        categories: &["api-extensions"],
        definition,
        ..PLAIN
    }
}

static RULES: &[Rules] = &[
    Rules {
        kind: "ConfigMap",
        plural: "configmaps",
        singular: "configmap",
        short: &["cm"],
        definition: "io.k8s.api.core.v1.ConfigMap",
        ..PLAIN
    },
    Rules {
        kind: "Event",
        plural: "events",
        singular: "event",
        short: &["ev"],
        create_on_update: true,
        selectable: EVENT_FIELDS,
        name_rule: NameRule::PATH_SEGMENT,
        definition: "io.k8s.api.core.v1.Event",
        ..PLAIN
    },
    Rules {
        kind: "Namespace",
        plural: "namespaces",
        singular: "namespace",
        short: &["ns"],
        namespaced: false,
        status: true,
        name_rule: NameRule::LABEL,
        selectable: &["status.phase"],
        definition: "io.k8s.api.core.v1.Namespace",
        ..PLAIN
    },
    empty("Node", "nodes", "node", &["no"], false, "io.k8s.api.core.v1.Node"),
    empty("Pod", "pods", "pod", &["po"], true, "io.k8s.api.core.v1.Pod"),
    empty("Service", "services", "service", &["svc"], true, "io.k8s.api.core.v1.Service"),
    Rules {
        kind: "Secret",
        plural: "secrets",
        singular: "secret",
        selectable: &["type"],
        definition: "io.k8s.api.core.v1.Secret",
        ..PLAIN
    },
    Rules {
        kind: "ServiceAccount",
        plural: "serviceaccounts",
        singular: "serviceaccount",
        short: &["sa"],
        returns_deleted: true,
        definition: "io.k8s.api.core.v1.ServiceAccount",
        ..PLAIN
    },
    admission(
        "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
        "mutatingwebhookconfiguration",
        false,
        "io.k8s.api.admissionregistration.v1.MutatingWebhookConfiguration",
    ),
    admission(
        "ValidatingAdmissionPolicy",
        "validatingadmissionpolicies",
        "validatingadmissionpolicy",
        true,
        "io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicy",
    ),
    admission(
        "ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
        "validatingadmissionpolicybinding",
        false,
        "io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicyBinding",
    ),
    admission(
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
        "validatingwebhookconfiguration",
        false,
        "io.k8s.api.admissionregistration.v1.ValidatingWebhookConfiguration",
    ),
    Rules {
        group: "apiextensions.k8s.io",
        kind: "CustomResourceDefinition",
        plural: "customresourcedefinitions",
        singular: "customresourcedefinition",
        short: &["crd", "crds"],
        namespaced: false,
        status: true,
        generation: true,
        unconditional_update: false,
        categories: &["api-extensions"],
        definition: "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition",
        ..PLAIN
    },
    review(
        "authentication.k8s.io",
        "SelfSubjectReview",
        "selfsubjectreviews",
        "selfsubjectreview",
        false,
        "io.k8s.api.authentication.v1.SelfSubjectReview",
    ),
    review(
        "authentication.k8s.io",
        "TokenReview",
        "tokenreviews",
        "tokenreview",
        false,
        "io.k8s.api.authentication.v1.TokenReview",
    ),
    review(
        "authorization.k8s.io",
        "LocalSubjectAccessReview",
        "localsubjectaccessreviews",
        "localsubjectaccessreview",
        true,
        "io.k8s.api.authorization.v1.LocalSubjectAccessReview",
    ),
    review(
        "authorization.k8s.io",
        "SelfSubjectAccessReview",
        "selfsubjectaccessreviews",
        "selfsubjectaccessreview",
        false,
        "io.k8s.api.authorization.v1.SelfSubjectAccessReview",
    ),
    review(
        "authorization.k8s.io",
        "SelfSubjectRulesReview",
        "selfsubjectrulesreviews",
        "selfsubjectrulesreview",
        false,
        "io.k8s.api.authorization.v1.SelfSubjectRulesReview",
    ),
    review(
        "authorization.k8s.io",
        "SubjectAccessReview",
        "subjectaccessreviews",
        "subjectaccessreview",
        false,
        "io.k8s.api.authorization.v1.SubjectAccessReview",
    ),
    Rules {
        group: "coordination.k8s.io",
        kind: "Lease",
        plural: "leases",
        singular: "lease",
        create_on_update: true,
        unconditional_update: false,
        definition: "io.k8s.api.coordination.v1.Lease",
        ..PLAIN
    },
    Rules {
        group: "events.k8s.io",
        kind: "Event",
        plural: "events",
        singular: "event",
        short: &["ev"],
        create_on_update: true,
        selectable: REGARDING_FIELDS,
        name_rule: NameRule::PATH_SEGMENT,
        definition: "io.k8s.api.events.v1.Event",
        ..PLAIN
    },
    rbac(
        "ClusterRoleBinding",
        "clusterrolebindings",
        "clusterrolebinding",
        false,
        "io.k8s.api.rbac.v1.ClusterRoleBinding",
    ),
    rbac("ClusterRole", "clusterroles", "clusterrole", false, "io.k8s.api.rbac.v1.ClusterRole"),
    rbac("RoleBinding", "rolebindings", "rolebinding", true, "io.k8s.api.rbac.v1.RoleBinding"),
    rbac("Role", "roles", "role", true, "io.k8s.api.rbac.v1.Role"),
];

/// The built-in kinds, shared by all planes of the process.
pub(crate) fn builtins() -> &'static [Arc<Kind>] {
    static KINDS: OnceLock<Vec<Arc<Kind>>> = OnceLock::new();
    KINDS.get_or_init(|| RULES.iter().map(|rules| Arc::new(build(rules))).collect())
}

/// TokenRequest, the kind of the subresource `serviceaccounts/token`: it has the resource of service
/// accounts, which admission rules name, and the schema and version of TokenRequest.
pub(crate) fn token_request() -> &'static Arc<Kind> {
    static RULES: Rules = Rules {
        kind: "TokenRequest",
        plural: "serviceaccounts",
        singular: "serviceaccount",
        definition: "io.k8s.api.authentication.v1.TokenRequest",
        ..PLAIN
    };
    static KIND: OnceLock<Arc<Kind>> = OnceLock::new();
    KIND.get_or_init(|| {
        let mut kind = build(&RULES);
        if let Some(version) = kind.versions.first_mut().and_then(Arc::get_mut) {
            version.api_version = "authentication.k8s.io/v1".into();
        }
        Arc::new(kind)
    })
}

fn build(rules: &'static Rules) -> Kind {
    let api_version = if rules.group.is_empty() {
        rules.version.to_owned()
    } else {
        format!("{}/{}", rules.group, rules.version)
    };
    let openapi: Arc<Value> = Arc::new(root_definition(rules.definition));
    let versioned_schema =
        Arc::new(VersionedSchema::of_builtin(&schemas::inlined(rules.definition), rules.definition));
    let version = Version {
        name: rules.version.to_owned(),
        api_version,
        served: true,
        deprecation: None,
        status: rules.status,
        scale: None,
        columns: Columns::built_in(rules.group, rules.kind),
        selectable: rules.selectable.iter().map(|field| (*field).to_owned()).collect(),
        openapi,
        versioned_schema,
    };
    // Both event groups share one collection, as in Kubernetes.
    let resource = match (rules.group, rules.plural) {
        ("" | "events.k8s.io", plural) => plural.to_owned(),
        (group, plural) => format!("{plural}.{group}"),
    };
    Kind {
        group: rules.group.to_owned(),
        plural: rules.plural.to_owned(),
        singular: rules.singular.to_owned(),
        kind: rules.kind.to_owned(),
        list_kind: format!("{}List", rules.kind),
        short_names: rules.short.iter().map(|name| (*name).to_owned()).collect(),
        categories: rules.categories.iter().map(|name| (*name).to_owned()).collect(),
        namespaced: rules.namespaced,
        storage: rules.version.to_owned(),
        versions: vec![Arc::new(version)],
        origin: Origin::Builtin(rules),
        resource: resource.into(),
        schema_revision: 0,
        terminating: false,
    }
}
