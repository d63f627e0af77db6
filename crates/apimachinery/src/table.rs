//! `meta.k8s.io/v1` Tables: the output of `kubectl get`.
//!
//! The server renders the cells, kubectl aligns them. CRDs define columns for custom resources; the columns
//! of built-in kinds are defined here. Ages are relative to a given time, so tables are deterministic.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::go_format;
use crate::jsonpath::JsonPath;
use crate::time::{age, human_duration, seconds_between};

const ABOUT_NAME: &str = "The name of the object, unique within its namespace.";
const ABOUT_AGE: &str = "How long ago the object was created.";

/// The source of a cell.
#[derive(Debug, Clone)]
enum Cell {
    /// The `jsonPath` of a CRD's column, formatted by the type of the column.
    Path(JsonPath),
    /// A function of a built-in kind.
    Built(fn(&Value, Timestamp) -> Value),
}

/// A column of a table.
#[derive(Debug, Clone)]
pub struct Column {
    name: String,
    kind: String,
    format: String,
    description: String,
    priority: i64,
    cell: Cell,
}

impl Column {
    fn built(
        name: &str,
        kind: &str,
        priority: i64,
        description: &str,
        cell: fn(&Value, Timestamp) -> Value,
    ) -> Self {
        let format = if name == "Name" { "name" } else { "" };
        Self {
            name: name.to_owned(),
            kind: kind.to_owned(),
            format: format.to_owned(),
            description: description.to_owned(),
            priority,
            cell: Cell::Built(cell),
        }
    }

    fn text(name: &str, description: &str, cell: fn(&Value, Timestamp) -> Value) -> Self {
        Self::built(name, "string", 0, description, cell)
    }

    /// A column shown with `-o wide` only.
    fn wide(name: &str, description: &str, cell: fn(&Value, Timestamp) -> Value) -> Self {
        Self::built(name, "string", 1, description, cell)
    }

    fn name() -> Self {
        Self::text("Name", ABOUT_NAME, |o, _| o["metadata"]["name"].clone())
    }

    fn age() -> Self {
        Self::text("Age", ABOUT_AGE, |o, now| age(&o["metadata"]["creationTimestamp"], now).into())
    }

    fn created_at() -> Self {
        Self::built("Created At", "date", 0, "When the object was created.", |o, _| {
            o["metadata"]["creationTimestamp"].clone()
        })
    }

    fn definition(&self) -> Value {
        json!({"name": self.name, "type": self.kind, "format": self.format, "description": self.description, "priority": self.priority})
    }

    fn render(&self, object: &Value, now: Timestamp) -> Value {
        match &self.cell {
            Cell::Built(cell) => cell(object, now),
            Cell::Path(path) => {
                path.first(object).map_or(Value::Null, |value| custom_cell(&self.kind, value, now))
            }
        }
    }
}

/// `includeObject`: the object in each row, besides the cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IncludeObject {
    /// Nothing.
    None,
    /// The metadata; the default.
    #[default]
    Metadata,
    /// The whole object.
    Object,
}

/// The columns of a kind.
#[derive(Debug, Clone)]
pub struct Columns {
    columns: Vec<Column>,
}

impl Columns {
    /// The columns of a custom resource from `additionalPrinterColumns`, or name and age if there are none.
    /// As in kube-apiserver, a column with an invalid path ends the list.
    pub fn custom(additional: &[Value]) -> Self {
        let mut columns = vec![Column::name()];
        if additional.is_empty() {
            columns.push(Column { kind: "date".to_owned(), ..Column::age() });
        }
        for column in additional {
            let text = |key: &str| column.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
            let path = text("jsonPath");
            let Ok(parsed) = JsonPath::parse(&path) else { break };
            let description = match text("description") {
                given if !given.is_empty() => given,
                _ => format!("Custom resource definition column (in JSONPath format): {path}"),
            };
            let priority = column.get("priority").and_then(Value::as_i64).unwrap_or_default();
            columns.push(Column {
                name: text("name"),
                kind: text("type"),
                format: text("format"),
                description,
                priority,
                cell: Cell::Path(parsed),
            });
        }
        Self { columns }
    }

    /// The columns of a built-in kind, by default name and age.
    pub fn built_in(group: &str, kind: &str) -> Self {
        let mut columns = vec![Column::name()];
        match (group, kind) {
            ("", "Namespace") => {
                columns.push(Column::text("Status", "The phase of the namespace.", |o, _| {
                    o["status"]["phase"].as_str().unwrap_or("Active").into()
                }))
            }
            ("", "ConfigMap") => columns.push(Column::text("Data", "How many entries it has.", |o, _| {
                (count(&o["data"]) + count(&o["binaryData"])).into()
            })),
            ("", "Secret") => {
                columns.push(Column::text("Type", "What the secret is for.", |o, _| {
                    o["type"].as_str().unwrap_or_default().into()
                }));
                columns
                    .push(Column::text("Data", "How many entries it has.", |o, _| count(&o["data"]).into()));
            }
            ("" | "events.k8s.io", "Event") => return Self { columns: event_columns() },
            ("coordination.k8s.io", "Lease") => {
                columns.push(Column::text("Holder", "Who holds the lease.", |o, _| {
                    o["spec"]["holderIdentity"].as_str().unwrap_or_default().into()
                }))
            }
            ("rbac.authorization.k8s.io", "Role" | "ClusterRole")
            | ("apiextensions.k8s.io", "CustomResourceDefinition") => {
                return Self { columns: vec![Column::name(), Column::created_at()] };
            }
            ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => {
                columns.push(Column::text("Role", "The role that is bound.", |o, _| {
                    format!("{}/{}", text(&o["roleRef"]["kind"]), text(&o["roleRef"]["name"])).into()
                }));
                columns.push(Column::age());
                columns
                    .push(Column::wide("Users", "Users that are bound.", |o, _| subjects(o, "User").into()));
                columns.push(Column::wide("Groups", "Groups that are bound.", |o, _| {
                    subjects(o, "Group").into()
                }));
                columns.push(Column::wide("ServiceAccounts", "Service accounts that are bound.", |o, _| {
                    subjects(o, "ServiceAccount").into()
                }));
                return Self { columns };
            }
            ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy") => {
                columns.push(Column::built(
                    "Validations",
                    "integer",
                    0,
                    "How many validations it has.",
                    |o, _| length(&o["spec"]["validations"]).into(),
                ));
                columns.push(Column::text("ParamKind", "The kind of its parameters.", |o, _| {
                    match &o["spec"]["paramKind"] {
                        Value::Object(kind) => {
                            format!("{}/{}", text(&kind["apiVersion"]), text(&kind["kind"])).into()
                        }
                        _ => "<unset>".into(),
                    }
                }));
            }
            ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding") => {
                columns.push(Column::text("PolicyName", "The policy that is bound.", |o, _| {
                    text(&o["spec"]["policyName"]).into()
                }));
                columns.push(Column::text("ParamRef", "The parameters it is bound with.", |o, _| {
                    param_ref(&o["spec"]["paramRef"]).into()
                }));
            }
            (
                "admissionregistration.k8s.io",
                "ValidatingWebhookConfiguration" | "MutatingWebhookConfiguration",
            ) => {
                columns.push(Column::built("Webhooks", "integer", 0, "How many webhooks it has.", |o, _| {
                    length(&o["webhooks"]).into()
                }));
            }
            _ => {}
        }
        columns.push(Column::age());
        Self { columns }
    }

    /// The table of one object or of a list (an object with `items`).
    pub fn table(&self, shown: &Value, include: IncludeObject, headers: bool, now: Timestamp) -> Value {
        let mut metadata = Map::new();
        for key in ["resourceVersion", "continue", "remainingItemCount"] {
            if let Some(value) =
                shown.get("metadata").and_then(|m| m.get(key)).filter(|v| !v.is_null() && *v != "")
            {
                metadata.insert(key.to_owned(), value.clone());
            }
        }
        let items = shown.get("items").and_then(Value::as_array);
        let single = std::slice::from_ref(shown);
        let rows: Vec<Value> =
            items.map_or(single, Vec::as_slice).iter().map(|object| self.row(object, include, now)).collect();
        let definitions = if headers {
            Value::from(self.columns.iter().map(Column::definition).collect::<Vec<_>>())
        } else {
            Value::Null
        };
        json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": definitions, "rows": rows})
    }

    fn row(&self, object: &Value, include: IncludeObject, now: Timestamp) -> Value {
        let cells: Vec<Value> = self.columns.iter().map(|c| c.render(object, now)).collect();
        let beside = match include {
            IncludeObject::None => Value::Null,
            IncludeObject::Metadata => {
                json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object.get("metadata").cloned().unwrap_or_else(|| json!({}))})
            }
            IncludeObject::Object => object.clone(),
        };
        json!({"cells": cells, "object": beside})
    }
}

fn event_columns() -> Vec<Column> {
    fn last_seen(o: &Value, now: Timestamp) -> String {
        let first = first_seen(o, now);
        let last = [&o["series"]["lastObservedTime"], &o["lastTimestamp"], &o["deprecatedLastTimestamp"]];
        last.into_iter().find(|t| t.is_string()).map_or(first, |t| age(t, now))
    }
    fn first_seen(o: &Value, now: Timestamp) -> String {
        let first = [&o["firstTimestamp"], &o["deprecatedFirstTimestamp"], &o["eventTime"]];
        age(first.into_iter().find(|t| t.is_string()).unwrap_or(&Value::Null), now)
    }
    /// The field is `involvedObject` in core/v1 and `regarding` in events.k8s.io/v1.
    fn regarding(o: &Value) -> &Value {
        if o["involvedObject"].is_object() { &o["involvedObject"] } else { &o["regarding"] }
    }
    fn either<'v>(values: &[&'v Value]) -> &'v str {
        values.iter().filter_map(|v| v.as_str()).find(|s| !s.is_empty()).unwrap_or_default()
    }
    vec![
        Column::text("Last Seen", "When it happened last.", |o, now| last_seen(o, now).into()),
        Column::text("Type", "Normal or Warning.", |o, _| text(&o["type"]).into()),
        Column::text("Reason", "Why, in one word.", |o, _| text(&o["reason"]).into()),
        Column::text("Object", "What the event is about.", |o, _| {
            let kind = text(&regarding(o)["kind"]).to_lowercase();
            match text(&regarding(o)["name"]) {
                "" => kind.into(),
                name => format!("{kind}/{name}").into(),
            }
        }),
        Column::wide("Subobject", "The part of the object, if only a part is meant.", |o, _| {
            text(&regarding(o)["fieldPath"]).into()
        }),
        Column::wide("Source", "Who reported it.", |o, _| {
            let component = either(&[
                &o["source"]["component"],
                &o["deprecatedSource"]["component"],
                &o["reportingComponent"],
                &o["reportingController"],
            ]);
            match either(&[&o["source"]["host"], &o["deprecatedSource"]["host"], &o["reportingInstance"]]) {
                "" => component.into(),
                instance => format!("{component}, {instance}").into(),
            }
        }),
        Column::text("Message", "What happened.", |o, _| either(&[&o["message"], &o["note"]]).trim().into()),
        Column::wide("First Seen", "When it happened first.", |o, now| first_seen(o, now).into()),
        Column::wide("Count", "How often it happened.", |o, _| {
            let counted = [&o["series"]["count"], &o["count"], &o["deprecatedCount"]];
            counted.into_iter().filter_map(Value::as_i64).find(|n| *n != 0).unwrap_or(1).into()
        }),
        Column { priority: 1, ..Column::name() },
    ]
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn count(map: &Value) -> usize {
    map.as_object().map_or(0, Map::len)
}

fn length(list: &Value) -> usize {
    list.as_array().map_or(0, Vec::len)
}

fn subjects(binding: &Value, kind: &str) -> String {
    let of_kind = binding["subjects"].as_array().into_iter().flatten().filter(|s| s["kind"] == kind);
    let named: Vec<String> = of_kind
        .map(|s| match (kind, text(&s["namespace"])) {
            ("ServiceAccount", namespace) => format!("{namespace}/{}", text(&s["name"])),
            _ => text(&s["name"]).to_owned(),
        })
        .collect();
    named.join(", ")
}

fn param_ref(reference: &Value) -> String {
    let Some(map) = reference.as_object() else { return "<unset>".to_owned() };
    match (text(&reference["name"]), text(&reference["namespace"])) {
        ("", _) if map.contains_key("selector") => go_format::json(&reference["selector"]),
        ("", _) => "<unset>".to_owned(),
        (name, "") => format!("*/{name}"),
        (name, namespace) => format!("{namespace}/{name}"),
    }
}

/// A cell of a custom resource; null if the value does not have the type of the column.
fn custom_cell(kind: &str, value: &Value, now: Timestamp) -> Value {
    match (kind, value) {
        (_, Value::Null) => Value::Null,
        ("string", Value::String(_)) => value.clone(),
        ("string", Value::Object(_) | Value::Array(_)) => go_format::json(value).into(),
        ("string", other) => go_format::render(other).into(),
        ("integer", Value::Number(n)) => n.as_i64().or_else(|| n.as_f64().map(|f| f as i64)).into(),
        ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => value.clone(),
        ("date", Value::String(time)) => match time.parse::<Timestamp>() {
            Ok(time) => human_duration(seconds_between(time, now)).into(),
            Err(_) => "<invalid>".into(),
        },
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2024-01-02T00:00:00Z".parse().unwrap()
    }

    fn cells(columns: &Columns, object: Value) -> Value {
        columns.table(&object, IncludeObject::None, false, now())["rows"][0]["cells"].clone()
    }

    #[test]
    fn custom_columns_are_formatted_by_their_type() {
        let columns = Columns::custom(&[
            json!({"name": "Size", "type": "integer", "jsonPath": ".spec.size"}),
            json!({"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status", "priority": 1, "description": "Is it?"}),
            json!({"name": "Since", "type": "date", "jsonPath": ".status.since"}),
            json!({"name": "List", "type": "string", "jsonPath": ".spec.list"}),
            json!({"name": "Flag", "type": "boolean", "jsonPath": ".spec.size"}),
            json!({"name": "Text", "type": "string", "jsonPath": ".spec.size"}),
        ]);
        let object = json!({"metadata": {"name": "x"}, "spec": {"size": 3, "list": ["a"]}, "status": {"since": "2024-01-01T23:50:00Z", "conditions": [{"type": "Ready", "status": "True"}]}});
        assert_eq!(cells(&columns, object), json!(["x", 3, "True", "10m", "[\"a\"]", null, "3"]));
        assert_eq!(
            cells(&columns, json!({"metadata": {"name": "x"}})),
            json!(["x", null, null, null, null, null, null])
        );
        let table = columns.table(
            &json!({"metadata": {"resourceVersion": "7", "continue": ""}, "items": []}),
            IncludeObject::Metadata,
            true,
            now(),
        );
        assert_eq!(table["metadata"], json!({"resourceVersion": "7"}));
        assert_eq!(
            table["columnDefinitions"][2],
            json!({"name": "Ready", "type": "string", "format": "", "description": "Is it?", "priority": 1})
        );
        assert_eq!(
            table["columnDefinitions"][1]["description"],
            "Custom resource definition column (in JSONPath format): .spec.size"
        );
        assert_eq!(table["rows"], json!([]));
    }

    #[test]
    fn a_custom_resource_without_columns_shows_name_and_age() {
        let columns = Columns::custom(&[]);
        let object = json!({"metadata": {"name": "x", "creationTimestamp": "2024-01-01T23:59:00Z"}});
        assert_eq!(cells(&columns, object.clone()), json!(["x", "60s"]));
        let table = columns.table(&object, IncludeObject::Metadata, true, now());
        assert_eq!(table["columnDefinitions"][1]["type"], "date");
        assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
        assert_eq!(columns.table(&object, IncludeObject::Object, true, now())["rows"][0]["object"], object);
    }

    #[test]
    fn built_in_kinds_have_the_columns_of_kubernetes() {
        let created = "2024-01-01T00:00:00Z";
        let meta = json!({"name": "x", "creationTimestamp": created});
        let rbac = "rbac.authorization.k8s.io";
        let admission = "admissionregistration.k8s.io";
        let cases = [
            (
                "",
                "Namespace",
                json!({"metadata": meta, "status": {"phase": "Active"}}),
                json!(["x", "Active", "24h"]),
            ),
            (
                "",
                "ConfigMap",
                json!({"metadata": meta, "data": {"a": ""}, "binaryData": {"b": ""}}),
                json!(["x", 2, "24h"]),
            ),
            (
                "",
                "Secret",
                json!({"metadata": meta, "type": "Opaque", "data": {"a": ""}}),
                json!(["x", "Opaque", 1, "24h"]),
            ),
            ("", "ServiceAccount", json!({"metadata": meta}), json!(["x", "24h"])),
            (
                "coordination.k8s.io",
                "Lease",
                json!({"metadata": meta, "spec": {"holderIdentity": "me"}}),
                json!(["x", "me", "24h"]),
            ),
            (
                "apiextensions.k8s.io",
                "CustomResourceDefinition",
                json!({"metadata": meta}),
                json!(["x", created]),
            ),
            (rbac, "ClusterRole", json!({"metadata": meta}), json!(["x", created])),
            (
                rbac,
                "RoleBinding",
                json!({"metadata": meta, "roleRef": {"kind": "Role", "name": "r"}, "subjects": [{"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "name": "s", "namespace": "n"}, {"kind": "User", "name": "v"}]}),
                json!(["x", "Role/r", "24h", "u, v", "", "n/s"]),
            ),
            (
                admission,
                "ValidatingAdmissionPolicy",
                json!({"metadata": meta, "spec": {"validations": [1, 2], "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}}}),
                json!(["x", 2, "v1/ConfigMap", "24h"]),
            ),
            (
                admission,
                "ValidatingAdmissionPolicyBinding",
                json!({"metadata": meta, "spec": {"policyName": "p", "paramRef": {"name": "a"}}}),
                json!(["x", "p", "*/a", "24h"]),
            ),
            (
                admission,
                "ValidatingWebhookConfiguration",
                json!({"metadata": meta, "webhooks": []}),
                json!(["x", 0, "24h"]),
            ),
        ];
        for (group, kind, object, expected) in cases {
            assert_eq!(cells(&Columns::built_in(group, kind), object), expected, "{kind}");
        }
    }

    #[test]
    fn events_have_the_same_cells_in_both_apis() {
        let core = json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "name": "p", "fieldPath": "f"}, "reason": "R", "message": " m ", "type": "Normal", "count": 3,
            "source": {"component": "c", "host": "h"}, "firstTimestamp": "2024-01-01T23:15:00Z", "lastTimestamp": "2024-01-01T23:35:00Z"});
        let new = json!({"metadata": {"name": "e"}, "regarding": {"kind": "Pod", "name": "p", "fieldPath": "f"}, "reason": "R", "note": " m ", "type": "Normal", "deprecatedCount": 3,
            "deprecatedSource": {"component": "c", "host": "h"}, "deprecatedFirstTimestamp": "2024-01-01T23:15:00Z", "deprecatedLastTimestamp": "2024-01-01T23:35:00Z"});
        let expected = json!(["25m", "Normal", "R", "pod/p", "f", "c, h", "m", "45m", 3, "e"]);
        assert_eq!(cells(&Columns::built_in("", "Event"), core), expected);
        assert_eq!(cells(&Columns::built_in("events.k8s.io", "Event"), new), expected);
        let single = json!({"metadata": {"name": "e"}, "eventTime": "2024-01-01T23:50:00.000000Z", "reportingController": "c"});
        assert_eq!(cells(&Columns::built_in("events.k8s.io", "Event"), single)[0], "10m");
    }
}
