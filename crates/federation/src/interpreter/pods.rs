//! Requirements and dependencies of a pod template.

use std::collections::{BTreeMap, BTreeSet};

use polis_apimachinery::quantity::{Quantity, QuantityError, SuffixFamily};
use serde_json::{Map, Value, json};

/// Requirements of one replica: `nodeClaim` and `resourceRequest`; `None` if the template has neither.
///
/// Requests of containers are summed; init containers run in sequence, so only the largest counts; overhead
/// is added.
pub(crate) fn requirements(template: &Value) -> Result<Option<Value>, QuantityError> {
    let spec = &template["spec"];
    let mut total: BTreeMap<String, i64> = BTreeMap::new();
    for container in items(&spec["containers"]) {
        for (name, amount) in requests(container)? {
            let sum = total.entry(name).or_default();
            *sum = sum.saturating_add(amount);
        }
    }
    for container in items(&spec["initContainers"]) {
        for (name, amount) in requests(container)? {
            let largest = total.entry(name).or_default();
            *largest = amount.max(*largest);
        }
    }
    for (name, amount) in amounts(&spec["overhead"])? {
        let sum = total.entry(name).or_default();
        *sum = sum.saturating_add(amount);
    }
    let request: Map<String, Value> = total
        .into_iter()
        .filter(|(_, amount)| *amount > 0)
        .map(|(name, amount)| {
            let written = written(&name, amount).to_string();
            (name, Value::String(written))
        })
        .collect();
    let mut requirements = Map::new();
    if let Some(claim) = node_claim(spec) {
        requirements.insert("nodeClaim".to_owned(), claim);
    }
    if !request.is_empty() {
        requirements.insert("resourceRequest".to_owned(), Value::Object(request));
    }
    Ok((!requirements.is_empty()).then_some(Value::Object(requirements)))
}

/// The requests of a container; a limit without a request counts as request.
fn requests(container: &Value) -> Result<BTreeMap<String, i64>, QuantityError> {
    let mut wanted = amounts(&container["resources"]["limits"])?;
    wanted.extend(amounts(&container["resources"]["requests"])?);
    Ok(wanted)
}

fn amounts(list: &Value) -> Result<BTreeMap<String, i64>, QuantityError> {
    let Value::Object(list) = list else { return Ok(BTreeMap::new()) };
    list.iter()
        .map(|(name, amount)| {
            let text = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
            let quantity = Quantity::parse(&text)?;
            Ok((name.clone(), if name == "cpu" { quantity.milli() } else { quantity.units() }))
        })
        .collect()
}

fn written(name: &str, amount: i64) -> Quantity {
    match name {
        "cpu" => Quantity::from_milli(amount),
        "memory" | "ephemeral-storage" => Quantity::from_units(amount, SuffixFamily::Binary),
        name if name.starts_with("hugepages-") => Quantity::from_units(amount, SuffixFamily::Binary),
        _ => Quantity::from_units(amount, SuffixFamily::Decimal),
    }
}

fn node_claim(spec: &Value) -> Option<Value> {
    let mut claim = Map::new();
    let required = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    for (name, value) in [
        ("nodeSelector", &spec["nodeSelector"]),
        ("tolerations", &spec["tolerations"]),
        ("hardNodeAffinity", required),
    ] {
        let empty = value.is_null() || value.as_array().is_some_and(Vec::is_empty);
        if !empty {
            claim.insert(name.to_owned(), value.clone());
        }
    }
    (!claim.is_empty()).then_some(Value::Object(claim))
}

/// References to the ConfigMaps, Secrets, ServiceAccount and PersistentVolumeClaims of a pod template.
pub(crate) fn dependencies(template: &Value, namespace: &str) -> Value {
    let spec = &template["spec"];
    let mut config_maps = BTreeSet::new();
    let mut secrets = BTreeSet::new();
    let mut claims = BTreeSet::new();
    for reference in items(&spec["imagePullSecrets"]) {
        add(&mut secrets, &reference["name"]);
    }
    for container in
        ["initContainers", "containers", "ephemeralContainers"].iter().flat_map(|list| items(&spec[*list]))
    {
        for source in items(&container["envFrom"]) {
            add(&mut config_maps, &source["configMapRef"]["name"]);
            add(&mut secrets, &source["secretRef"]["name"]);
        }
        for variable in items(&container["env"]) {
            add(&mut config_maps, &variable["valueFrom"]["configMapKeyRef"]["name"]);
            add(&mut secrets, &variable["valueFrom"]["secretKeyRef"]["name"]);
        }
    }
    for volume in items(&spec["volumes"]) {
        add(&mut config_maps, &volume["configMap"]["name"]);
        add(&mut secrets, &volume["secret"]["secretName"]);
        add(&mut secrets, &volume["azureFile"]["secretName"]);
        add(&mut secrets, &volume["csi"]["nodePublishSecretRef"]["name"]);
        for kind in ["cephfs", "cinder", "flexVolume", "rbd", "scaleIO", "iscsi", "storageos"] {
            add(&mut secrets, &volume[kind]["secretRef"]["name"]);
        }
        for source in items(&volume["projected"]["sources"]) {
            add(&mut config_maps, &source["configMap"]["name"]);
            add(&mut secrets, &source["secret"]["name"]);
        }
        add(&mut claims, &volume["persistentVolumeClaim"]["claimName"]);
    }
    let mut accounts = BTreeSet::new();
    add(&mut accounts, &spec["serviceAccountName"]);
    accounts.remove("default");
    let mut references = Vec::new();
    for (kind, names) in [
        ("ConfigMap", config_maps),
        ("Secret", secrets),
        ("ServiceAccount", accounts),
        ("PersistentVolumeClaim", claims),
    ] {
        references.extend(
            names
                .into_iter()
                .map(|name| json!({"apiVersion": "v1", "kind": kind, "namespace": namespace, "name": name})),
        );
    }
    Value::Array(references)
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}

fn add(names: &mut BTreeSet<String>, name: &Value) {
    if let Some(name) = name.as_str().filter(|name| !name.is_empty()) {
        names.insert(name.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_summed_and_only_the_largest_init_container_counts() {
        let template = json!({"spec": {
            "containers": [
                {"resources": {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"cpu": "2", "example.com/gpu": "1"}}},
                {"resources": {"requests": {"cpu": "1"}}},
            ],
            "initContainers": [{"resources": {"requests": {"memory": "3Gi"}}}],
            "overhead": {"cpu": "50m"},
        }});
        let wanted = json!({"resourceRequest": {"cpu": "1150m", "memory": "3Gi", "example.com/gpu": "1"}});
        assert_eq!(requirements(&template), Ok(Some(wanted)));
    }

    #[test]
    fn a_template_without_requests_has_no_requirements() {
        assert_eq!(requirements(&json!({"spec": {"containers": [{"name": "a"}]}})), Ok(None));
    }

    #[test]
    fn node_constraints_are_in_the_node_claim() {
        let template = json!({"spec": {"nodeSelector": {"disk": "ssd"}, "tolerations": []}});
        assert_eq!(
            requirements(&template),
            Ok(Some(json!({"nodeClaim": {"nodeSelector": {"disk": "ssd"}}})))
        );
    }

    #[test]
    fn every_referenced_object_is_a_dependency_once() {
        let template = json!({"spec": {
            "serviceAccountName": "runner",
            "imagePullSecrets": [{"name": "pull"}],
            "containers": [{"envFrom": [{"configMapRef": {"name": "env"}}], "env": [{"valueFrom": {"secretKeyRef": {"name": "pull"}}}]}],
            "volumes": [{"projected": {"sources": [{"configMap": {"name": "env"}}]}}, {"persistentVolumeClaim": {"claimName": "data"}}],
        }});
        let dependencies = dependencies(&template, "shop");
        let found: Vec<_> = items(&dependencies)
            .iter()
            .map(|d| (d["kind"].as_str().unwrap_or(""), d["name"].as_str().unwrap_or("")))
            .collect();
        assert_eq!(
            found,
            [
                ("ConfigMap", "env"),
                ("Secret", "pull"),
                ("ServiceAccount", "runner"),
                ("PersistentVolumeClaim", "data")
            ]
        );
    }
}
