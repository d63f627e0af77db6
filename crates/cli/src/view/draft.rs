//! Workloads in the making: from flags, from a file, and changed in one place.
//!
//! Drafts are plain JSON and not typed objects, because what is written back must keep fields that this version of Polis
//! does not know.

use polis_api::{annotations, compute, names};
use serde_json::{Map, Value, json};

/// The only size that every installation offers.
pub const INSTANCE_TYPE: &str = "datumcloud/d1-standard-2";
/// The network that a workload joins unless told otherwise.
pub const NETWORK: &str = "default";
/// The placement that flags speak of.
const PLACEMENT: &str = "default";

/// What `polis deploy NAME` was told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wish {
    /// The image.
    pub image: Option<String>,
    /// Cities; empty = as they are.
    pub cities: Vec<String>,
    /// Instances per city.
    pub replicas: Option<i32>,
    /// Ports, as `8080` or `http=8080`; empty = as they are.
    pub ports: Vec<String>,
    /// Environment, as `KEY=value`; added to what is there.
    pub env: Vec<String>,
    /// Arguments; empty = as they are.
    pub args: Vec<String>,
    /// The network; `default` for a new workload.
    pub network: Option<String>,
    /// The instance type.
    pub instance_type: Option<String>,
}

/// The workload that a wish makes of what stands. Only what the wish names is changed.
pub fn from_wish(
    standing: Option<&Value>,
    name: &str,
    namespace: &str,
    wish: &Wish,
) -> Result<Value, String> {
    if !names::is_dns_label(name) {
        return Err(format!(
            "{name:?} is no name: at most 63 of a-z, 0-9 and '-', with a letter or digit at both ends"
        ));
    }
    let mut draft = match standing {
        Some(standing) => standing.clone(),
        None => fresh(name, namespace, wish)?,
    };
    let ports = ports(&wish.ports)?;
    let container = draft
        .pointer_mut("/spec/template/spec/runtime/sandbox/containers/0")
        .and_then(Value::as_object_mut)
        .ok_or("it runs no container; flags cannot change a virtual machine, use -f")?;
    if let Some(image) = &wish.image {
        container.insert("image".into(), json!(image));
    }
    if !wish.args.is_empty() {
        container.insert("args".into(), json!(wish.args));
    }
    if !ports.is_empty() {
        container.insert("ports".into(), json!(ports));
    }
    for pair in &wish.env {
        set_env(container, pair)?;
    }
    let instance = draft.pointer_mut("/spec/template/spec").ok_or("it has no template")?;
    if let Some(instance_type) = &wish.instance_type {
        instance["runtime"]["resources"]["instanceType"] = json!(instance_type);
    }
    if let Some(network) = &wish.network {
        instance["networkInterfaces"][0]["network"]["name"] = json!(network);
    }
    if !ports.is_empty() {
        let open: Vec<Value> =
            ports.iter().map(|port| json!({"port": port["port"], "protocol": "TCP"})).collect();
        instance["networkInterfaces"][0]["networkPolicy"] = json!({"ingress": [{"ports": open}]});
    }
    if !wish.cities.is_empty() {
        the_placement(&mut draft)?["cityCodes"] = json!(wish.cities);
    }
    if let Some(replicas) = wish.replicas {
        the_placement(&mut draft)?["scaleSettings"]["minReplicas"] = json!(replicas);
    }
    Ok(draft)
}

fn fresh(name: &str, namespace: &str, wish: &Wish) -> Result<Value, String> {
    let image = wish.image.as_ref().ok_or("a new workload needs --image")?;
    if wish.cities.is_empty() {
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
                "cityCodes": wish.cities,
                "scaleSettings": {"minReplicas": 1, "instanceManagementPolicy": compute::ORDERED_READY},
            }],
        },
    }))
}

/// The one placement that flags can mean: the only one, or the one called `default`.
fn the_placement(draft: &mut Value) -> Result<&mut Value, String> {
    let placements =
        draft.pointer_mut("/spec/placements").and_then(Value::as_array_mut).ok_or("it has no placements")?;
    let index = match placements.as_slice() {
        [_] => Some(0),
        many => many.iter().position(|placement| placement["name"] == PLACEMENT),
    };
    let names: Vec<String> =
        placements.iter().filter_map(|placement| placement["name"].as_str().map(str::to_owned)).collect();
    match index {
        Some(index) => Ok(&mut placements[index]),
        None => Err(format!("it has placements {} and none is called default; use -f", names.join(", "))),
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
        let port = port.ok_or_else(|| format!("{text:?} is no port; write 8080 or http=8080"))?;
        ports.push(json!({"name": name, "port": port, "protocol": "TCP"}));
    }
    Ok(ports)
}

fn set_env(container: &mut Map<String, Value>, pair: &str) -> Result<(), String> {
    let (key, value) = pair
        .split_once('=')
        .filter(|(key, _)| !key.is_empty())
        .ok_or_else(|| format!("{pair:?} is no variable; write KEY=value"))?;
    let list = container.entry("env").or_insert_with(|| json!([]));
    let list = list.as_array_mut().ok_or("its env is no list")?;
    let entry = json!({"name": key, "value": value});
    match list.iter_mut().find(|entry| entry["name"] == key) {
        Some(standing) => *standing = entry,
        None => list.push(entry),
    }
    Ok(())
}

/// The workloads of a file, in order. Anything else in it is refused: a file half applied helps nobody.
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
    for workload in &workloads {
        let kind = workload["kind"].as_str().unwrap_or("something without a kind");
        let version = workload["apiVersion"].as_str().unwrap_or_default();
        if (kind, version) != ("Workload", compute::API_VERSION) {
            return Err(format!(
                "it holds {kind} {version:?}, and this verb takes only Workloads of {}; `kubectl apply` takes the rest",
                compute::API_VERSION
            ));
        }
        if workload.pointer("/metadata/name").and_then(Value::as_str).is_none_or(str::is_empty) {
            return Err("a workload in it has no metadata.name".into());
        }
    }
    if workloads.is_empty() { Err("it holds no workload".into()) } else { Ok(workloads) }
}

/// What a file's workload makes of what stands: its spec whole, its labels and annotations on top of those there.
pub fn over(standing: Option<&Value>, wanted: &Value, namespace: &str) -> Value {
    let mut draft = match standing {
        Some(standing) => standing.clone(),
        None => json!({"apiVersion": compute::API_VERSION, "kind": "Workload", "metadata": {}}),
    };
    draft["metadata"]["name"] = wanted["metadata"]["name"].clone();
    draft["metadata"]["namespace"] = json!(namespace);
    for key in ["labels", "annotations"] {
        let Some(entries) = wanted["metadata"][key].as_object() else { continue };
        for (name, value) in entries.iter().filter(|(name, _)| *name != annotations::REVISIONS) {
            draft["metadata"][key][name] = value.clone();
        }
    }
    draft["spec"] = wanted["spec"].clone();
    draft
}

/// Whether two states of a workload differ in nothing but its status and what the server notes about writes.
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

/// Sets the number of instances per city; of one placement, or of all.
pub fn scale(draft: &mut Value, replicas: i32, placement: Option<&str>) -> Result<(), String> {
    let placements =
        draft.pointer_mut("/spec/placements").and_then(Value::as_array_mut).ok_or("it has no placements")?;
    let mut names = Vec::new();
    let mut changed = false;
    for entry in placements {
        let name = entry["name"].as_str().unwrap_or_default().to_owned();
        if placement.is_none_or(|wanted| wanted == name) {
            let settings = &mut entry["scaleSettings"];
            settings["minReplicas"] = json!(replicas);
            if settings["maxReplicas"].as_i64().is_some_and(|most| most < i64::from(replicas)) {
                settings["maxReplicas"] = json!(replicas);
            }
            changed = true;
        }
        names.push(name);
    }
    match placement {
        Some(wanted) if !changed => Err(format!("it has no placement {wanted}; it has {}", names.join(", "))),
        _ => Ok(()),
    }
}

/// Marks the template so that every instance is replaced.
pub fn restart(draft: &mut Value, when: &str) -> Result<(), String> {
    let template = draft.pointer_mut("/spec/template").ok_or("it has no template")?;
    template["metadata"]["annotations"][annotations::RESTARTED_AT] = json!(when);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_wish() -> Wish {
        Wish { image: Some("polis.local/hello".into()), cities: vec!["dfw".into()], ..Default::default() }
    }

    fn made(wish: &Wish) -> Value {
        from_wish(None, "web", "default", wish).unwrap()
    }

    #[test]
    fn a_new_workload_has_all_that_a_server_asks_for() {
        let wish = Wish {
            replicas: Some(2),
            ports: vec!["http=8080".into()],
            env: vec!["GREETING=hi=there".into()],
            args: vec!["--verbose".into()],
            ..mk_wish()
        };
        insta::assert_yaml_snapshot!(made(&wish));
        serde_json::from_value::<compute::Workload>(made(&wish)).unwrap();
    }

    #[test]
    fn a_status_that_moved_on_is_no_change_of_the_workload() {
        let mut then = made(&mk_wish());
        then["metadata"]["resourceVersion"] = json!("7");
        let mut now = then.clone();
        now["status"] = json!({"replicas": 1});
        now["metadata"]["resourceVersion"] = json!("8");
        assert!(same_but_status(&then, &now));
        now["metadata"]["labels"] = json!({"team": "shop"});
        assert!(!same_but_status(&then, &now));
    }

    #[test]
    fn flags_change_only_what_they_name() {
        let mut standing = made(&Wish { env: vec!["A=1".into(), "B=2".into()], ..mk_wish() });
        standing["spec"]["later"] = json!("a field of a later version");
        let wish = Wish { image: Some("other".into()), env: vec!["B=3".into()], ..Default::default() };
        let draft = from_wish(Some(&standing), "web", "default", &wish).unwrap();
        let mut expected = standing.clone();
        let container = expected.pointer_mut("/spec/template/spec/runtime/sandbox/containers/0").unwrap();
        container["image"] = json!("other");
        container["env"][1]["value"] = json!("3");
        assert_eq!(draft, expected);
    }

    #[test]
    fn what_a_new_workload_lacks_is_named() {
        let lacking = |wish: &Wish| from_wish(None, "web", "default", wish).unwrap_err();
        assert!(lacking(&Wish { image: None, ..mk_wish() }).contains("--image"));
        assert!(lacking(&Wish { cities: vec![], ..mk_wish() }).contains("--city"));
        assert!(lacking(&Wish { ports: vec!["eighty".into()], ..mk_wish() }).contains("http=8080"));
        assert!(lacking(&Wish { ports: vec!["0".into()], ..mk_wish() }).contains("http=8080"));
        assert!(lacking(&Wish { env: vec!["NOVALUE".into()], ..mk_wish() }).contains("KEY=value"));
        assert!(from_wish(None, "Web", "default", &mk_wish()).unwrap_err().contains("no name"));
        assert!(from_wish(None, &"x".repeat(64), "default", &mk_wish()).unwrap_err().contains("63"));
    }

    #[test]
    fn of_several_placements_flags_mean_the_one_called_default() {
        let mut standing = made(&mk_wish());
        standing["spec"]["placements"] = json!([{"name": "east"}, {"name": "west"}]);
        let wish = Wish { cities: vec!["ord".into()], ..Default::default() };
        assert!(from_wish(Some(&standing), "web", "default", &wish).unwrap_err().contains("east, west"));
    }

    #[test]
    fn a_file_may_hold_several_workloads_and_nothing_else() {
        let one = "apiVersion: compute.datumapis.com/v1alpha\nkind: Workload\nmetadata: {name: a}\n";
        assert_eq!(from_file(&format!("{one}---\n{one}")).unwrap().len(), 2);
        assert!(from_file("").unwrap_err().contains("no workload"));
        assert!(from_file("kind: Secret\napiVersion: v1\n").unwrap_err().contains("Secret"));
        assert!(from_file("a: [").is_err());
        assert!(from_file(&one.replace("name: a", "")).unwrap_err().contains("metadata.name"));
    }

    #[test]
    fn a_file_replaces_the_spec_and_keeps_what_others_put_on_the_object() {
        let standing = json!({
            "metadata": {"name": "web", "uid": "1", "labels": {"theirs": "1"}, "annotations": {"theirs": "1"}},
            "spec": {"placements": [], "old": true}, "status": {"replicas": 1},
        });
        let wanted =
            json!({"metadata": {"name": "web", "labels": {"mine": "2"}}, "spec": {"placements": []}});
        let draft = over(Some(&standing), &wanted, "default");
        assert_eq!(draft["metadata"]["labels"], json!({"theirs": "1", "mine": "2"}));
        assert_eq!(draft["metadata"]["uid"], "1");
        assert_eq!(draft["spec"], json!({"placements": []}));
    }

    #[test]
    fn scaling_lifts_the_greatest_number_when_it_is_in_the_way() {
        let mut draft = made(&mk_wish());
        draft["spec"]["placements"][0]["scaleSettings"]["maxReplicas"] = json!(2);
        scale(&mut draft, 3, None).unwrap();
        let settings = &draft["spec"]["placements"][0]["scaleSettings"];
        assert_eq!((settings["minReplicas"].as_i64(), settings["maxReplicas"].as_i64()), (Some(3), Some(3)));
        assert!(scale(&mut draft, 3, Some("west")).unwrap_err().contains("it has default"));
    }

    #[test]
    fn a_restart_changes_the_fingerprint_of_the_template_and_nothing_that_runs() {
        let before = made(&mk_wish());
        let mut after = before.clone();
        restart(&mut after, "2027-01-15T08:00:00Z").unwrap();
        let template = |draft: &Value| serde_json::from_value(draft["spec"]["template"].clone()).unwrap();
        assert_ne!(
            polis_core::template::hash(&template(&before)),
            polis_core::template::hash(&template(&after))
        );
        assert_eq!(before["spec"]["template"]["spec"], after["spec"]["template"]["spec"]);
    }
}
