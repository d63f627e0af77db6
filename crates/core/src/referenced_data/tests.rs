use polis_api::annotations::{EXPECTED_REFERENCED_DATA, REFERENCED_DATA_ERROR};
use polis_api::compute::{Instance, WorkloadDeployment};
use polis_api::k8s_openapi::ByteString;
use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Secret};
use polis_api::{ObjectExt, annotations, labels, names};
use serde_json::{Value, json};

use super::*;
use crate::conditions::ConditionStatus;
use crate::metadata::map;
use crate::testing::{mk_deployment, mk_gates, mk_instance, mk_meta};

fn mk_spec(container: Value, rest: Value) -> InstanceSpec {
    let mut spec = mk_deployment("web").spec.template.spec;
    let mut first = json!({"name": "app", "image": "a"});
    first.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
    spec.runtime.sandbox = Some(
        serde_json::from_value(json!({
            "containers": [first], "imagePullSecrets": rest.get("imagePullSecrets").unwrap_or(&json!([])),
        }))
        .unwrap(),
    );
    spec.volumes = serde_json::from_value(rest.get("volumes").cloned().unwrap_or(json!([]))).unwrap();
    spec
}

/// A deployment with secret `db` of key `password`, and optional config map `settings`.
fn mk_user() -> WorkloadDeployment {
    let mut deployment = mk_deployment("web");
    deployment.spec.template.spec = mk_spec(
        json!({
            "env": [{"name": "P", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}}],
            "envFrom": [{"configMapRef": {"name": "settings", "optional": true}}],
        }),
        json!({}),
    );
    deployment
}

fn references_of(deployment: &WorkloadDeployment) -> Vec<Reference> {
    references(&deployment.spec.template.spec)
}

fn mk_secret(name: &str, entries: &[(&str, &str)]) -> Secret {
    let data = entries.iter().map(|(key, value)| (key.to_string(), ByteString(value.as_bytes().into())));
    let metadata = mk_meta("shop", name);
    Secret { metadata, data: Some(data.collect()), type_: Some("Opaque".into()), ..Secret::default() }
}

fn mk_map(name: &str, entries: &[(&str, &str)]) -> ConfigMap {
    let data = entries.iter().map(|(key, value)| (key.to_string(), value.to_string()));
    ConfigMap { metadata: mk_meta("shop", name), data: Some(data.collect()), ..ConfigMap::default() }
}

fn found<K: DataObject>(source: &K) -> (SourceState, Option<String>) {
    (SourceState::Found(SourceFacts::of(source)), None)
}

#[test]
fn every_field_that_names_a_source_is_a_reference() {
    let (map, secret) = (DataKind::ConfigMap, DataKind::Secret);
    let key = |field: &str| json!({"env": [{"name": "X", "valueFrom": {field: {"name": "a", "key": "k"}}}]});
    let none = json!({});
    let table: [(Value, Value, DataKind, &str, &[&str]); 8] = [
        (
            key("configMapKeyRef"),
            none.clone(),
            map,
            "runtime.sandbox.containers[0].env[0].valueFrom.configMapKeyRef",
            &["k"],
        ),
        (
            key("secretKeyRef"),
            none.clone(),
            secret,
            "runtime.sandbox.containers[0].env[0].valueFrom.secretKeyRef",
            &["k"],
        ),
        (
            json!({"envFrom": [{"prefix": "P_", "configMapRef": {"name": "a"}}]}),
            none.clone(),
            map,
            "runtime.sandbox.containers[0].envFrom[0].configMapRef",
            &[],
        ),
        (
            json!({"envFrom": [{"secretRef": {"name": "a"}}]}),
            none.clone(),
            secret,
            "runtime.sandbox.containers[0].envFrom[0].secretRef",
            &[],
        ),
        (
            none.clone(),
            json!({"volumes": [{"name": "v", "configMap": {"name": "a"}}]}),
            map,
            "volumes[0].configMap",
            &[],
        ),
        (
            none.clone(),
            json!({"volumes": [{"name": "v", "secret": {"secretName": "a", "defaultMode": 256, "items": [
                {"key": "k", "path": "p", "mode": 256}, {"key": "l", "path": "q"},
            ]}}]}),
            secret,
            "volumes[0].secret",
            &["k", "l"],
        ),
        (
            none.clone(),
            json!({"imagePullSecrets": [{"name": "a"}]}),
            secret,
            "runtime.sandbox.imagePullSecrets[0]",
            &[],
        ),
        (
            json!({"env": [{"name": "X", "value": "y"}, {"name": "Z", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "k", "optional": true}}}]}),
            none,
            map,
            "runtime.sandbox.containers[0].env[1].valueFrom.configMapKeyRef",
            &[],
        ),
    ];
    for (container, rest, kind, field, keys) in table {
        let spec = mk_spec(container, rest);
        let expected = Reference {
            kind,
            name: "a".into(),
            optional: field.contains("env[1]"),
            keys: keys.iter().map(|key| key.to_string()).collect(),
            fields: vec![field.into()],
        };
        assert_eq!(references(&spec), [expected], "{field}");
    }
}

#[test]
fn references_to_one_source_are_one_and_optional_only_if_all_are() {
    let optional = |optional: bool| json!({"name": "a", "key": "k", "optional": optional});
    for (first, second, expected) in
        [(true, true, true), (true, false, false), (false, true, false), (false, false, false)]
    {
        let spec = mk_spec(
            json!({"env": [
                {"name": "X", "valueFrom": {"secretKeyRef": optional(first)}},
                {"name": "Y", "valueFrom": {"secretKeyRef": optional(second)}},
                {"name": "Z", "valueFrom": {"configMapKeyRef": optional(true)}},
                {"name": "N", "valueFrom": {"configMapKeyRef": {"name": "", "key": "k"}}},
            ]}),
            json!({}),
        );
        let found = references(&spec);
        assert_eq!(found.iter().map(|it| it.kind).collect::<Vec<_>>(), DataKind::ALL);
        assert_eq!((found[1].optional, found[1].fields.len()), (expected, 2));
        assert_eq!(found[1].keys.is_empty(), expected, "an optional use needs no key");
    }
}

#[test]
fn a_deployment_is_indexed_by_the_kinds_and_companions_of_its_sources() {
    let indexed = |deployment: &WorkloadDeployment| {
        let mut values = index_values(&serde_json::to_vec(deployment).unwrap());
        values.sort();
        values
    };
    let mut expected = ["ConfigMap".to_owned(), "Secret".to_owned()].to_vec();
    expected.push(DataKind::ConfigMap.companion_token("settings"));
    expected.push(DataKind::Secret.companion_token("db"));
    expected.sort();
    assert_eq!(indexed(&mk_user()), expected);
    assert_eq!(indexed(&mk_deployment("web")), [""; 0]);
    let mut instance = mk_instance(&mk_deployment("web"), 0);
    assert_eq!(index_values_of_instance(&serde_json::to_vec(&instance).unwrap()), [""; 0]);
    instance.spec = mk_user().spec.template.spec;
    assert_eq!(index_values_of_instance(&serde_json::to_vec(&instance).unwrap()), expected);
    assert_eq!(index_values(b"not JSON with a secret"), [""; 0]);
}

#[test]
fn a_companion_has_the_content_of_its_source_and_no_other_metadata() {
    let mut source = mk_secret("db", &[("password", "s3cret")]);
    source.metadata.labels = Some(map([("app", "shop")]));
    source.metadata.annotations = Some(map([("note", "mine")]));
    source.type_ = Some("kubernetes.io/service-account-token".into());
    let CompanionAction::Create(companion) = plan_companion(&source, "ns-1", None) else { panic!() };
    assert_eq!((&companion.data, companion.type_.as_deref()), (&source.data, Some("Opaque")));
    assert_eq!((companion.name(), companion.namespace()), (&*names::companion("Secret", "db"), "ns-1"));
    assert_eq!(companion.metadata.labels, Some(map([(labels::REFERENCED_DATA, "true")])));
    let annotations: Vec<_> = companion.metadata.annotations.iter().flatten().collect();
    assert_eq!(annotations.len(), 2);
    assert!(annotations.iter().all(|(_, value)| !value.contains("s3cret")));
    assert!(is_companion(&*companion));
    assert_eq!(hash_of(&*companion, "uid-db").as_deref(), companion.annotation(annotations::CONTENT_HASH));
}

#[test]
fn a_companion_follows_its_source_and_is_not_written_twice() {
    let source = mk_secret("db", &[("password", "one")]);
    let CompanionAction::Create(mut companion) = plan_companion(&source, "ns-1", None) else { panic!() };
    companion.metadata.resource_version = Some("3".into());
    companion.metadata.labels.as_mut().unwrap().insert("karmada".into(), "mark".into());
    assert_eq!(plan_companion(&source, "ns-1", Some(&*companion)), CompanionAction::None);
    let changed = mk_secret("db", &[("password", "two")]);
    let CompanionAction::Update(new) = plan_companion(&changed, "ns-1", Some(&*companion)) else { panic!() };
    assert_eq!((&new.data, new.label("karmada")), (&changed.data, Some("mark")));
    assert_ne!(new.annotation(annotations::CONTENT_HASH), companion.annotation(annotations::CONTENT_HASH));
    let mut edited = (*companion).clone();
    edited.data = None;
    let CompanionAction::Update(new) = plan_companion(&source, "ns-1", Some(&edited)) else { panic!() };
    assert_eq!(new.data, source.data, "an edit on the hub is undone");
    assert_eq!(hash_of(&edited, "uid-db"), None);
    let mut typed = mk_secret("db", &[("password", "one")]);
    typed.type_ = Some("kubernetes.io/dockerconfigjson".into());
    assert!(matches!(plan_companion(&typed, "ns-1", Some(&*companion)), CompanionAction::Replace(_)));
}

#[test]
fn the_hash_depends_on_source_and_content_and_not_on_the_order_of_parts() {
    let hash = |object: &Secret| SourceFacts::of(object).hash;
    let one = mk_secret("db", &[("a", "bc"), ("d", "")]);
    assert_eq!(hash(&one), hash(&mk_secret("db", &[("d", ""), ("a", "bc")])));
    for other in [
        mk_secret("db", &[("ab", "c"), ("d", "")]),
        mk_secret("db", &[("a", "bc")]),
        mk_secret("other", &[("a", "bc"), ("d", "")]),
    ] {
        assert_ne!(hash(&one), hash(&other), "{other:?}");
    }
    let map = mk_map("db", &[("a", "bc"), ("d", "")]);
    assert_ne!(SourceFacts::of(&map).hash, hash(&one));
    assert_eq!((SourceFacts::of(&map).size, hash(&one).len()), (4, 16));
}

/// Reason of the failure, and the sources of the expected companions.
fn resolved(
    deployment: &WorkloadDeployment,
    sources: [(SourceState, Option<String>); 2],
) -> (Option<String>, Vec<&'static str>) {
    let Resolution { expected, failure, .. } = resolve(&references_of(deployment), &sources);
    let of = |kind: DataKind, name| (kind.companion_token(name), name);
    let known = [of(DataKind::ConfigMap, "settings"), of(DataKind::Secret, "db")];
    let names = known.iter().filter(|(token, _)| expected.iter().any(|it| it.starts_with(token.as_str())));
    (failure.map(|failure| failure.reason), names.map(|(_, name)| *name).collect())
}

#[test]
fn a_source_is_expected_unless_it_is_missing_too_large_or_unreadable() {
    let settings = || found(&mk_map("settings", &[("level", "debug")]));
    let db = || found(&mk_secret("db", &[("password", "x")]));
    let missing = || (SourceState::Missing, None);
    let large = "x".repeat(OBJECT_LIMIT);
    let table = [
        ([settings(), db()], None, vec!["settings", "db"]),
        ([missing(), db()], None, vec!["db"]), // optional
        ([settings(), missing()], Some("SourceNotFound"), vec!["settings"]),
        (
            [settings(), (SourceState::Missing, Some("ab".into()))],
            Some("SourceNotFound"),
            vec!["settings", "db"],
        ),
        ([settings(), (SourceState::Unauthorized, None)], Some("SourceUnauthorized"), vec!["settings"]),
        ([settings(), (SourceState::NameTaken, None)], Some("SourceUnauthorized"), vec!["settings"]),
        (
            [settings(), found(&mk_secret("db", &[("user", "x")]))],
            Some("KeyNotFound"),
            vec!["settings", "db"],
        ),
        (
            [settings(), found(&mk_secret("db", &[("password", &large)]))],
            Some("SourceTooLarge"),
            vec!["settings"],
        ),
        ([found(&mk_map("settings", &[("level", &large)])), db()], None, vec!["db"]), // optional
    ];
    for (sources, reason, names) in table {
        let shown = format!("{sources:?}").chars().take(200).collect::<String>();
        assert_eq!(resolved(&mk_user(), sources), (reason.map(str::to_owned), names), "{shown}");
    }
}

#[test]
fn all_sources_of_a_deployment_together_have_a_limit() {
    let names: Vec<String> = (0..5).map(|number| format!("map-{number}")).collect();
    let env_from: Vec<Value> = names.iter().map(|name| json!({"configMapRef": {"name": name}})).collect();
    let references = references(&mk_spec(json!({"envFrom": env_from}), json!({})));
    let of_size = |size: usize| -> Vec<_> {
        names.iter().map(|name| found(&mk_map(name, &[("", &"x".repeat(size))]))).collect()
    };
    let fits = resolve(&references, &of_size(TOTAL_LIMIT / 5));
    assert_eq!((fits.failure, fits.expected.len(), fits.copied.len()), (None, 5, 5));
    let exceeds = resolve(&references, &of_size(TOTAL_LIMIT / 5 + 1));
    assert_eq!((exceeds.expected.len(), exceeds.copied.len()), (0, 0));
    let failure = exceeds.failure.unwrap();
    assert_eq!(failure.reason, "SourceTooLarge");
    assert!(failure.message.contains("1048580 bytes"), "{}", failure.message);
}

#[test]
fn the_annotations_name_no_value_and_are_absent_without_references() {
    let sources = [
        found(&mk_map("settings", &[("level", "planted")])),
        found(&mk_secret("db", &[("user", "planted")])),
    ];
    let annotations = resolve(&references_of(&mk_user()), &sources).annotations();
    let error = &annotations[REFERENCED_DATA_ERROR];
    assert_eq!(error, r#"{"reason":"KeyNotFound","message":"secret db has no key password; add it"}"#);
    let listed: Vec<String> = serde_json::from_str(&annotations[EXPECTED_REFERENCED_DATA]).unwrap();
    assert!(listed.is_sorted() && listed.len() == 2, "{listed:?}");
    assert!(!format!("{annotations:?}").contains("planted"));
    assert_eq!(resolve(&[], &[]).annotations(), map::<&str, &str>([]));
}

/// A deployment of a cell that expects companion `db` with hash `ab`, and its state if the cell has this
/// hash.
fn delivered(annotation: Option<&str>, error: Option<&str>, hash: Option<&str>) -> DeliveryState {
    let mut deployment = mk_user();
    let expected = annotation.map(|it| it.replace("DB", &names::companion("Secret", "db")));
    let pairs = [(EXPECTED_REFERENCED_DATA, expected), (REFERENCED_DATA_ERROR, error.map(str::to_owned))];
    let pairs = pairs.into_iter().filter_map(|(key, value)| Some((key, value?)));
    deployment.metadata.annotations = Some(map(pairs));
    let of = |kind, name: &str| {
        let is_db = kind == DataKind::Secret && name == names::companion("Secret", "db");
        Ok::<_, std::convert::Infallible>(hash.filter(|_| is_db).map(str::to_owned))
    };
    delivery(&deployment, of).unwrap()
}

#[test]
fn instances_wait_for_exactly_the_listed_companions() {
    let expected = r#"["Secret/DB@ab"]"#;
    let error = r#"{"reason":"KeyNotFound","message":"secret db has no key x"}"#;
    let table = [
        (None, None, Some("ab"), Some("Resolving")),
        (Some("[]"), None, None, None),
        (Some(expected), None, None, Some("AwaitingPropagation")),
        (Some(expected), None, Some("cd"), Some("AwaitingPropagation")), // an older version
        (Some(expected), None, Some("ab"), None),
        (Some(expected), Some(error), Some("ab"), Some("KeyNotFound")),
        (Some("nonsense"), None, Some("ab"), Some("Resolving")),
    ];
    for (annotation, error, hash, reason) in table {
        let state = delivered(annotation, error, hash);
        let cause = state.cause().map(|cause| cause.reason.as_str());
        assert_eq!((cause, state.is_ready()), (reason, reason.is_none()), "{annotation:?} {hash:?}");
    }
    let DeliveryState::Pending(why) = delivered(Some(expected), None, None) else { panic!() };
    assert_eq!(why.message, "secret db is not in the cell yet", "the name of the project's object");
    let unused = delivery(&mk_deployment("web"), |_, _| Ok::<_, std::convert::Infallible>(None));
    assert_eq!(unused, Ok(DeliveryState::Unused));
}

#[test]
fn an_instance_that_has_started_does_not_report_data_on_its_way() {
    let pending = delivered(Some(r#"["Secret/DB@ab"]"#), None, None);
    let failed = delivered(Some("[]"), Some(r#"{"reason":"SourceNotFound","message":""}"#), None);
    let mk = |gates: &[&str]| -> Instance {
        let mut instance = mk_instance(&mk_user(), 0);
        instance.spec = mk_user().spec.template.spec;
        instance.spec.controller = Some(Default::default());
        instance.spec.controller.as_mut().unwrap().scheduling_gates = mk_gates(gates);
        instance
    };
    let (waiting, started) = (mk(&["ReferencedData"]), mk(&["Quota"]));
    let no = |reason: &str| (ConditionStatus::False, reason.to_owned());
    let yes = (ConditionStatus::True, "Ready".to_owned());
    for (instance, state, expected) in [
        (&waiting, &pending, no("AwaitingPropagation")),
        (&started, &pending, yes.clone()),
        (&waiting, &failed, no("SourceNotFound")),
        (&started, &failed, no("SourceNotFound")),
        (&waiting, &DeliveryState::Ready, yes.clone()),
    ] {
        let of_instance = instance_condition(instance, state).unwrap();
        assert_eq!((of_instance.status, of_instance.reason.to_string()), expected);
        let of_deployment = deployment_condition(state, &[instance]).unwrap();
        assert_eq!((of_deployment.status, of_deployment.reason.to_string()), expected);
    }
    assert_eq!(deployment_condition(&pending, &[]).unwrap().status, ConditionStatus::False);
    assert_eq!(deployment_condition(&DeliveryState::Unused, &[]), None);
    assert_eq!(instance_condition(&mk_instance(&mk_deployment("web"), 0), &DeliveryState::Unused), None);
}
