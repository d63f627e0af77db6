//! Builds Workload manifests from flags and files, and edits existing ones.
//!
//! Manifests are plain JSON and not typed objects, because a write must keep fields that this version of
//! Polis does not know.

use polis_api::{annotations, compute, names};
use serde_json::{Map, Value, json};

/// Instance type of a new workload: the only one that every installation has.
pub const INSTANCE_TYPE: &str = "datumcloud/d1-standard-2";
/// Network of a new workload without `--network`.
pub const NETWORK: &str = "default";
/// Name of the placement that flags create and change.
const PLACEMENT: &str = "default";

/// The flags of `polis deploy NAME`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeployOptions {
    /// The image.
    pub image: Option<String>,
    /// City codes; empty = unchanged.
    pub cities: Vec<String>,
    /// Instances per city.
    pub replicas: Option<i32>,
    /// Ports, as `8080` or `http=8080`; empty = unchanged.
    pub ports: Vec<String>,
    /// Environment variables: `KEY=value` adds or changes one, `KEY-` removes it.
    pub env: Vec<String>,
    /// Sources of variables: `secret/NAME` or `config/NAME` adds one, with `-` at the end it is removed.
    pub env_from: Vec<String>,
    /// Arguments; empty = unchanged.
    pub args: Vec<String>,
    /// The network; [`NETWORK`] for a new workload.
    pub network: Option<String>,
    /// The instance type.
    pub instance_type: Option<String>,
}

/// A new workload, or the existing one with the fields changed that `options` sets.
pub fn from_options(
    existing: Option<&Value>,
    name: &str,
    namespace: &str,
    options: &DeployOptions,
) -> Result<Value, String> {
    if !names::is_dns_label(name) {
        return Err(format!(
            "{name:?} is not a valid name: use at most 63 of a-z, 0-9 and '-', with a letter or digit at both ends"
        ));
    }
    let mut manifest = match existing {
        Some(existing) => existing.clone(),
        None => new_workload(name, namespace, options)?,
    };
    let ports = ports(&options.ports)?;
    let container = manifest
        .pointer_mut("/spec/template/spec/runtime/sandbox/containers/0")
        .and_then(Value::as_object_mut)
        .ok_or("the workload has no container; flags cannot change a virtual machine, use -f")?;
    if let Some(image) = &options.image {
        container.insert("image".into(), json!(image));
    }
    if !options.args.is_empty() {
        container.insert("args".into(), json!(options.args));
    }
    if !ports.is_empty() {
        container.insert("ports".into(), json!(ports));
    }
    for pair in &options.env {
        set_env(container, pair)?;
    }
    for source in &options.env_from {
        set_env_from(container, source)?;
    }
    let instance = manifest.pointer_mut("/spec/template/spec").ok_or("the workload has no template")?;
    if let Some(instance_type) = &options.instance_type {
        instance["runtime"]["resources"]["instanceType"] = json!(instance_type);
    }
    if let Some(network) = &options.network {
        instance["networkInterfaces"][0]["network"]["name"] = json!(network);
    }
    if !ports.is_empty() {
        let open: Vec<Value> =
            ports.iter().map(|port| json!({"port": port["port"], "protocol": "TCP"})).collect();
        instance["networkInterfaces"][0]["networkPolicy"] = json!({"ingress": [{"ports": open}]});
    }
    if !options.cities.is_empty() {
        default_placement(&mut manifest)?["cityCodes"] = json!(options.cities);
    }
    if let Some(replicas) = options.replicas {
        split_replicas(&mut manifest);
        default_placement(&mut manifest)?["scaleSettings"]["minReplicas"] = json!(replicas);
    }
    Ok(manifest)
}

fn new_workload(name: &str, namespace: &str, options: &DeployOptions) -> Result<Value, String> {
    let image = options.image.as_ref().ok_or("a new workload needs --image")?;
    if options.cities.is_empty() {
        return Err("a new workload needs --city, once for each city; `polis cities` lists them".into());
    }
    Ok(json!({
        "apiVersion": compute::API_VERSION,
        "kind": "Workload",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "template": {"spec": {
                "runtime": {
                    "resources": {"instanceType": INSTANCE_TYPE},
                    "sandbox": {"containers": [{"name": "main", "image": image}]},
                },
                "networkInterfaces": [{"network": {"name": NETWORK}}],
            }},
            "placements": [{
                "name": PLACEMENT,
                "cityCodes": options.cities,
                "scaleSettings": {"minReplicas": 1, "instanceManagementPolicy": compute::ORDERED_READY},
            }],
        },
    }))
}

/// The placement that flags change: the only one, or the one with the name `default`.
fn default_placement(manifest: &mut Value) -> Result<&mut Value, String> {
    let placements = manifest
        .pointer_mut("/spec/placements")
        .and_then(Value::as_array_mut)
        .ok_or("the workload has no placements")?;
    let index = match placements.as_slice() {
        [_] => Some(0),
        many => many.iter().position(|placement| placement["name"] == PLACEMENT),
    };
    let names: Vec<String> =
        placements.iter().filter_map(|placement| placement["name"].as_str().map(str::to_owned)).collect();
    match index {
        Some(index) => Ok(&mut placements[index]),
        None => Err(format!(
            "the workload has the placements {} and none with the name default; use -f",
            names.join(", ")
        )),
    }
}

fn ports(texts: &[String]) -> Result<Vec<Value>, String> {
    let mut ports = Vec::new();
    for text in texts {
        let (name, number) = match text.split_once('=') {
            Some((name, number)) => (name.to_owned(), number),
            None => (format!("port-{text}"), text.as_str()),
        };
        let port = number.parse::<u16>().ok().filter(|port| *port > 0);
        let port =
            port.ok_or_else(|| format!("{text:?} is not a port; use a form such as 8080 or http=8080"))?;
        ports.push(json!({"name": name, "port": port, "protocol": "TCP"}));
    }
    Ok(ports)
}

/// Sets a variable (`KEY=value`) or removes it (`KEY-`, as in `kubectl set env`).
fn set_env(container: &mut Map<String, Value>, pair: &str) -> Result<(), String> {
    if let Some(key) = pair.strip_suffix('-').filter(|key| !key.is_empty() && !key.contains('=')) {
        if let Some(list) = container.get_mut("env").and_then(Value::as_array_mut) {
            list.retain(|entry| entry["name"] != key);
        }
        return Ok(());
    }
    let (key, value) = pair.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or_else(|| {
        format!("{pair:?} is not an environment variable; use the form KEY=value, or KEY- to remove it")
    })?;
    let list = container.entry("env").or_insert_with(|| json!([]));
    let list = list.as_array_mut().ok_or("the env of the container is not a list")?;
    let entry = json!({"name": key, "value": value});
    match list.iter_mut().find(|entry| entry["name"] == key) {
        Some(existing) => *existing = entry,
        None => list.push(entry),
    }
    Ok(())
}

/// Adds a source of variables (`secret/NAME`, `config/NAME`), or removes it (with `-` at the end, with which
/// no name ends).
fn set_env_from(container: &mut Map<String, Value>, source: &str) -> Result<(), String> {
    let removed = source.strip_suffix('-');
    let field = match removed.unwrap_or(source).split_once('/') {
        Some(("secret", name)) if !name.is_empty() => Some(("secretRef", name)),
        Some(("config", name)) if !name.is_empty() => Some(("configMapRef", name)),
        _ => None,
    };
    let (field, name) = field.ok_or_else(|| {
        format!("{source:?} is not a source of variables; use the form secret/NAME or config/NAME")
    })?;
    let list = container.entry("envFrom").or_insert_with(|| json!([]));
    let list = list.as_array_mut().ok_or("the envFrom of the container is not a list")?;
    let is_it = |entry: &Value| entry[field]["name"] == name;
    match removed {
        Some(_) => list.retain(|entry| !is_it(entry)),
        None if list.iter().any(is_it) => {}
        None => list.push(json!({field: {"name": name}})),
    }
    if list.is_empty() {
        container.remove("envFrom");
    }
    Ok(())
}

/// The workloads of a file, in order. Any other kind is an error, so that a file is applied completely or not
/// at all.
pub fn from_file(text: &str) -> Result<Vec<Value>, String> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|error| error.to_string())?;
    let mut workloads = Vec::new();
    for document in documents {
        if document.is_null() {
            continue;
        }
        if document["kind"] == "List" {
            workloads.extend(document["items"].as_array().cloned().unwrap_or_default());
        } else {
            workloads.push(document);
        }
    }
    let faults: Vec<String> =
        (1..).zip(&workloads).filter_map(|(number, workload)| fault(number, workload)).collect();
    match (workloads.is_empty(), faults.is_empty()) {
        (true, _) => Err("the file has no workload".into()),
        (false, false) => Err(faults.join("; ")),
        (false, true) => Ok(workloads),
    }
}

/// What is wrong with the object of this number in a file.
fn fault(number: usize, workload: &Value) -> Option<String> {
    let kind = workload["kind"].as_str().unwrap_or("no kind");
    let version = workload["apiVersion"].as_str().unwrap_or_default();
    if (kind, version) != ("Workload", compute::API_VERSION) {
        return Some(format!(
            "object {number} of the file is {kind} {version:?}; `polis deploy` supports only Workload of {}, use `kubectl apply` for other kinds",
            compute::API_VERSION
        ));
    }
    let named =
        workload.pointer("/metadata/name").and_then(Value::as_str).is_some_and(|name| !name.is_empty());
    (!named).then(|| format!("object {number} of the file has no metadata.name"))
}

/// The existing workload with the spec of the file, and with the labels and annotations of the file added.
pub fn merge(existing: Option<&Value>, wanted: &Value, namespace: &str) -> Value {
    let mut manifest = match existing {
        Some(existing) => existing.clone(),
        None => json!({"apiVersion": compute::API_VERSION, "kind": "Workload", "metadata": {}}),
    };
    manifest["metadata"]["name"] = wanted["metadata"]["name"].clone();
    manifest["metadata"]["namespace"] = json!(namespace);
    for key in ["labels", "annotations"] {
        let Some(entries) = wanted["metadata"][key].as_object() else { continue };
        for (name, value) in entries.iter().filter(|(name, _)| *name != annotations::REVISIONS) {
            manifest["metadata"][key][name] = value.clone();
        }
    }
    manifest["spec"] = wanted["spec"].clone();
    manifest
}

/// Whether two versions of a workload differ only in `status`, `resourceVersion` and `managedFields`.
pub fn same_but_status(one: &Value, other: &Value) -> bool {
    let bare = |workload: &Value| {
        let mut bare = workload.clone();
        if let Some(whole) = bare.as_object_mut() {
            whole.remove("status");
        }
        if let Some(metadata) = bare.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("resourceVersion");
            metadata.remove("managedFields");
        }
        bare
    };
    bare(one) == bare(other)
}

/// Writes `spec.replicas`, which `kubectl scale` sets for all placements, to each placement. Afterwards
/// `minReplicas` holds.
fn split_replicas(manifest: &mut Value) {
    let spec = manifest.get_mut("spec").and_then(Value::as_object_mut);
    let Some(replicas) = spec.and_then(|spec| spec.remove("replicas")).and_then(|value| value.as_i64())
    else {
        return;
    };
    let placements = manifest.pointer_mut("/spec/placements").and_then(Value::as_array_mut);
    placements.into_iter().flatten().for_each(|placement| set_replicas(placement, replicas));
}

/// Sets `minReplicas` of a placement, and raises a lower `maxReplicas`.
fn set_replicas(placement: &mut Value, replicas: i64) {
    let settings = &mut placement["scaleSettings"];
    settings["minReplicas"] = json!(replicas);
    if settings["maxReplicas"].as_i64().is_some_and(|most| most < replicas) {
        settings["maxReplicas"] = json!(replicas);
    }
}

/// Sets the number of instances per city, in one placement or in all.
pub fn scale(manifest: &mut Value, replicas: i32, placement: Option<&str>) -> Result<(), String> {
    split_replicas(manifest);
    let placements = manifest
        .pointer_mut("/spec/placements")
        .and_then(Value::as_array_mut)
        .ok_or("the workload has no placements")?;
    let mut names = Vec::new();
    let mut changed = false;
    for entry in placements {
        let name = entry["name"].as_str().unwrap_or_default().to_owned();
        if placement.is_none_or(|wanted| wanted == name) {
            set_replicas(entry, replicas.into());
            changed = true;
        }
        names.push(name);
    }
    match placement {
        Some(wanted) if !changed => {
            Err(format!("the workload has no placement {wanted}; it has {}", names.join(", ")))
        }
        _ => Ok(()),
    }
}

/// Sets the restart annotation of the template, so that every instance is replaced.
pub fn restart(manifest: &mut Value, when: &str) -> Result<(), String> {
    let template = manifest.pointer_mut("/spec/template").ok_or("the workload has no template")?;
    template["metadata"]["annotations"][annotations::RESTARTED_AT] = json!(when);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_options() -> DeployOptions {
        DeployOptions {
            image: Some("polis.local/hello".into()),
            cities: vec!["dfw".into()],
            ..Default::default()
        }
    }

    fn made(options: &DeployOptions) -> Value {
        from_options(None, "web", "default", options).unwrap()
    }

    #[test]
    fn a_new_workload_has_all_required_fields() {
        let options = DeployOptions {
            replicas: Some(2),
            ports: vec!["http=8080".into()],
            env: vec!["GREETING=hi=there".into()],
            args: vec!["--verbose".into()],
            ..mk_options()
        };
        insta::assert_yaml_snapshot!(made(&options));
        serde_json::from_value::<compute::Workload>(made(&options)).unwrap();
    }

    #[test]
    fn a_changed_status_is_not_a_change_of_the_workload() {
        let mut then = made(&mk_options());
        then["metadata"]["resourceVersion"] = json!("7");
        let mut now = then.clone();
        now["status"] = json!({"replicas": 1});
        now["metadata"]["resourceVersion"] = json!("8");
        assert!(same_but_status(&then, &now));
        now["metadata"]["labels"] = json!({"team": "shop"});
        assert!(!same_but_status(&then, &now));
    }

    #[test]
    fn flags_change_only_the_fields_they_set() {
        let mut existing = made(&DeployOptions { env: vec!["A=1".into(), "B=2".into()], ..mk_options() });
        existing["spec"]["later"] = json!("a field of a later version");
        let options =
            DeployOptions { image: Some("other".into()), env: vec!["B=3".into()], ..Default::default() };
        let manifest = from_options(Some(&existing), "web", "default", &options).unwrap();
        let mut expected = existing.clone();
        let container = expected.pointer_mut("/spec/template/spec/runtime/sandbox/containers/0").unwrap();
        container["image"] = json!("other");
        container["env"][1]["value"] = json!("3");
        assert_eq!(manifest, expected);
    }

    #[test]
    fn a_variable_with_a_trailing_dash_is_removed() {
        let existing = made(&DeployOptions { env: vec!["A=1".into(), "B=2".into()], ..mk_options() });
        let options = DeployOptions { env: vec!["A-".into(), "C-".into()], ..Default::default() };
        let manifest = from_options(Some(&existing), "web", "default", &options).unwrap();
        let container = manifest.pointer("/spec/template/spec/runtime/sandbox/containers/0").unwrap();
        assert_eq!(container["env"], json!([{"name": "B", "value": "2"}]));
    }

    #[test]
    fn an_invalid_new_workload_is_an_error_that_names_the_flag() {
        let lacking = |options: &DeployOptions| from_options(None, "web", "default", options).unwrap_err();
        assert!(lacking(&DeployOptions { image: None, ..mk_options() }).contains("--image"));
        assert!(lacking(&DeployOptions { cities: vec![], ..mk_options() }).contains("--city"));
        assert!(
            lacking(&DeployOptions { ports: vec!["eighty".into()], ..mk_options() }).contains("http=8080")
        );
        assert!(lacking(&DeployOptions { ports: vec!["0".into()], ..mk_options() }).contains("http=8080"));
        assert!(
            lacking(&DeployOptions { env: vec!["NOVALUE".into()], ..mk_options() }).contains("KEY=value")
        );
        assert!(
            from_options(None, "Web", "default", &mk_options()).unwrap_err().contains("not a valid name")
        );
        assert!(from_options(None, &"x".repeat(64), "default", &mk_options()).unwrap_err().contains("63"));
    }

    #[test]
    fn with_several_placements_flags_change_the_one_named_default() {
        let mut existing = made(&mk_options());
        existing["spec"]["placements"] = json!([{"name": "east"}, {"name": "west"}]);
        let options = DeployOptions { cities: vec!["ord".into()], ..Default::default() };
        assert!(
            from_options(Some(&existing), "web", "default", &options).unwrap_err().contains("east, west")
        );
    }

    #[test]
    fn a_file_may_have_several_workloads_and_no_other_kind() {
        let one = "apiVersion: compute.datumapis.com/v1alpha\nkind: Workload\nmetadata: {name: a}\n";
        assert_eq!(from_file(&format!("{one}---\n{one}")).unwrap().len(), 2);
        assert!(from_file("").unwrap_err().contains("no workload"));
        assert!(from_file("kind: Secret\napiVersion: v1\n").unwrap_err().contains("Secret"));
        assert!(from_file("a: [").is_err());
        let all =
            from_file(&format!("{one}---\nkind: Secret\n---\n{}", one.replace("name: a", ""))).unwrap_err();
        assert!(all.contains("object 2 of the file is Secret") && all.contains("object 3"), "{all}");
        assert!(from_file(&one.replace("name: a", "")).unwrap_err().contains("metadata.name"));
    }

    #[test]
    fn a_file_replaces_the_spec_and_keeps_other_labels_and_annotations() {
        let existing = json!({
            "metadata": {"name": "web", "uid": "1", "labels": {"theirs": "1"}, "annotations": {"theirs": "1"}},
            "spec": {"placements": [], "old": true}, "status": {"replicas": 1},
        });
        let wanted =
            json!({"metadata": {"name": "web", "labels": {"mine": "2"}}, "spec": {"placements": []}});
        let manifest = merge(Some(&existing), &wanted, "default");
        assert_eq!(manifest["metadata"]["labels"], json!({"theirs": "1", "mine": "2"}));
        assert_eq!(manifest["metadata"]["uid"], "1");
        assert_eq!(manifest["spec"], json!({"placements": []}));
    }

    #[test]
    fn scaling_raises_max_replicas_if_it_is_lower() {
        let mut manifest = made(&mk_options());
        manifest["spec"]["placements"][0]["scaleSettings"]["maxReplicas"] = json!(2);
        scale(&mut manifest, 3, None).unwrap();
        let settings = &manifest["spec"]["placements"][0]["scaleSettings"];
        assert_eq!((settings["minReplicas"].as_i64(), settings["maxReplicas"].as_i64()), (Some(3), Some(3)));
        assert!(scale(&mut manifest, 3, Some("west")).unwrap_err().contains("it has default"));
    }

    #[test]
    fn scaling_one_placement_keeps_what_kubectl_scale_has_set_for_the_others() {
        let mut manifest = made(&mk_options());
        let mut edge = manifest["spec"]["placements"][0].clone();
        edge["name"] = json!("edge");
        manifest["spec"]["placements"].as_array_mut().unwrap().push(edge);
        manifest["spec"]["replicas"] = json!(4);
        scale(&mut manifest, 2, Some("edge")).unwrap();
        let least =
            |index: usize| manifest["spec"]["placements"][index]["scaleSettings"]["minReplicas"].as_i64();
        assert_eq!((least(0), least(1), &manifest["spec"]["replicas"]), (Some(4), Some(2), &Value::Null));
    }

    #[test]
    fn a_restart_changes_the_template_hash_and_not_the_instance_spec() {
        let before = made(&mk_options());
        let mut after = before.clone();
        restart(&mut after, "2027-01-15T08:00:00Z").unwrap();
        let template =
            |manifest: &Value| serde_json::from_value(manifest["spec"]["template"].clone()).unwrap();
        assert_ne!(
            polis_core::template::hash(&template(&before)),
            polis_core::template::hash(&template(&after))
        );
        assert_eq!(before["spec"]["template"]["spec"], after["spec"]["template"]["spec"]);
    }
}
