//! get, describe, explain, and discovery.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};

use crate::{lines, mk_shop, plane::Plane};

#[tokio::test]
async fn get_shows_objects_in_every_output() {
    let plane = mk_shop().await;
    let table = lines(&plane.run("get widgets").await.ok());
    assert_eq!(table[0], "NAME SIZE");
    assert_eq!(table[1..], ["a 3", "b 1", "c 1"]);
    assert!(plane.run("get wd -o wide --show-labels").await.ok().contains("app=shop"));
    assert_eq!(lines(&plane.run("get widget a -o name").await.ok()), ["widget.example.com/a"]);
    assert_eq!(plane.run("get widget a -o jsonpath={.spec.size}").await.ok(), "3");
    assert_eq!(plane.args(&["get", "widgets", "-o", "go-template={{len .items}}"]).await.ok(), "3");
    assert_eq!(
        lines(&plane.run("get widgets -o custom-columns=N:.metadata.name,C:.spec.color").await.ok()),
        ["N C", "a red", "b blue", "c blue"]
    );
    let json: serde_json::Value =
        serde_json::from_str(&plane.run("get widget a -o json").await.ok()).expect("JSON");
    assert_eq!(json["spec"]["color"], "red");
    let yaml = plane.run("get widget a -o yaml").await.ok();
    assert!(yaml.contains("kind: Widget") && !yaml.contains("managedFields"), "{yaml}");
    assert!(plane.run("get widget a -o yaml --show-managed-fields").await.ok().contains("managedFields"));
    assert_eq!(
        lines(&plane.run("get widgets --sort-by=.spec.size -o name").await.ok()).last().map(String::as_str),
        Some("widget.example.com/a")
    );
    plane.run("get widget none").await.refused("widgets.example.com \"none\" not found");
    plane.run("get gizmos").await.refused("the server doesn't have a resource type \"gizmos\"");
}

#[tokio::test]
async fn get_selects_by_labels_fields_and_namespace_and_reads_in_chunks() {
    let plane = mk_shop().await;
    let names = async |line: &str| lines(&plane.run(line).await.ok());
    assert_eq!(names("get widgets -o name -l app=shop").await.len(), 2);
    assert_eq!(names("get widgets -o name -l !app").await, ["widget.example.com/c"]);
    assert_eq!(names("get widgets -o name --field-selector spec.color=red").await, ["widget.example.com/a"]);
    assert_eq!(names("get widgets -o name --field-selector metadata.name=b").await, ["widget.example.com/b"]);
    assert_eq!(names("get widgets -o name --chunk-size=1").await.len(), 3);
    assert_eq!(names("get widgets,configmaps -o name -l app=shop").await.len(), 3);
    assert_eq!(names("get widgets -A --no-headers").await.len(), 3);
    assert_eq!(names("get all").await, Vec::<String>::new());
}

#[tokio::test]
async fn get_watches_changes() {
    let plane = mk_shop().await;
    let mut watch = plane
        .command("admin", &["get", "widgets", "-w", "--output-watch-events", "--no-headers"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("kubectl");
    let mut seen = BufReader::new(watch.stdout.take().expect("a pipe")).lines();
    let mut next = async || {
        let line = tokio::time::timeout(std::time::Duration::from_secs(30), seen.next_line());
        let line = line.await.expect("an event in time").expect("a line").expect("an open watch");
        line.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
    };
    for name in ["a", "b", "c"] {
        assert!(next().await.starts_with(&format!("ADDED {name}")));
    }
    plane.args(&["patch", "widget", "b", "--type=merge", "-p", "{\"spec\":{\"size\":7}}"]).await.ok();
    assert_eq!(next().await, "MODIFIED b 7");
    plane.run("delete widget b").await.ok();
    assert_eq!(next().await, "DELETED b 7");
    watch.kill().await.expect("the watch ends");
}

#[tokio::test]
async fn describe_shows_every_kind() {
    let plane = mk_shop().await;
    for (line, part) in [
        ("describe widget a", "Color:"),
        ("describe configmap settings", "colour:"),
        ("describe namespace default", "Active"),
        ("describe crd widgets.example.com", "Accepted Names"),
        ("describe widgets", "Kind:"),
    ] {
        let out = plane.run(line).await.ok();
        assert!(out.contains(part), "{line}: {out}");
    }
}

#[tokio::test]
async fn explain_shows_the_fields_of_built_in_and_custom_kinds() {
    let plane = Plane::new().await;
    assert!(plane.run("explain widgets.spec.size").await.ok().contains("<integer>"));
    let all = plane.run("explain widgets --recursive").await.ok();
    for field in ["spec", "parts", "value", "replicas", "ownerReferences"] {
        assert!(all.contains(field), "{field} is not in {all}");
    }
    assert!(plane.run("explain namespace.status.phase").await.ok().contains("<string>"));
    assert!(plane.run("explain configmap.data").await.ok().contains("DESCRIPTION"));
    plane.run("explain widgets.spec.none").await.refused("field \"none\" does not exist");
}

#[tokio::test]
async fn discovery_version_and_health_are_served() {
    let plane = Plane::new().await;
    let resources = lines(&plane.run("api-resources").await.ok());
    assert!(resources.iter().any(|line| line == "widgets wd example.com/v1 true Widget"), "{resources:?}");
    assert!(resources.iter().any(|line| line == "configmaps cm v1 true ConfigMap"));
    let named = plane.run("api-resources --api-group=example.com --verbs=list,watch -o name").await.ok();
    assert_eq!(lines(&named), ["widgets.example.com"]);
    let versions = lines(&plane.run("api-versions").await.ok());
    assert!(versions.contains(&"v1".to_owned()) && versions.contains(&"example.com/v1".to_owned()));
    let info = plane.run("cluster-info").await.ok();
    assert!(info.contains("control plane") && info.contains(&plane.socket.address), "{info}");
    assert!(plane.run("version").await.ok().contains("Server Version"));
    assert_eq!(plane.run("get --raw /livez").await.ok(), "ok");
    assert!(plane.run("get --raw /readyz?verbose").await.ok().contains("check passed"));
    let raw = plane.run("get --raw /apis/example.com/v1/namespaces/default/widgets").await.ok();
    assert!(raw.contains("\"WidgetList\""), "{raw}");
}
