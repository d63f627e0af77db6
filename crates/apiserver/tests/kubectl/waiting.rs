//! delete with propagation policies, wait, events.

use std::process::Stdio;

use crate::{common::eventually, lines, mk_shop, plane::Plane};

/// A map owned by the widget `a`.
async fn give_a_child(plane: &Plane) {
    let uid = plane.run("get widget a -o jsonpath={.metadata.uid}").await.ok();
    let child = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: child, ownerReferences: [{{apiVersion: example.com/v1, kind: Widget, name: a, uid: {uid}, blockOwnerDeletion: true}}]}}"
    );
    plane.feed("create -f -", &child).await.ok();
}

#[tokio::test]
async fn delete_cascades_in_the_foreground_in_the_background_or_orphans() {
    for (cascade, child_stays) in [("foreground", false), ("background", false), ("orphan", true)] {
        let plane = mk_shop().await;
        give_a_child(&plane).await;
        plane.run(&format!("delete widget a --cascade={cascade} --timeout=30s")).await.ok();
        plane.run("get widget a").await.refused("NotFound");
        if child_stays {
            let owners = plane.run("get configmap child -o jsonpath={.metadata.ownerReferences}").await.ok();
            assert_eq!(owners, "", "an orphan has no owner");
        } else {
            let deleted = async || (plane.run("get configmap child").await.code != 0).then_some(());
            eventually("the dependent to be deleted", deleted).await;
        }
    }
}

#[tokio::test]
async fn delete_waits_for_finalizers_unless_wait_is_false() {
    let plane = mk_shop().await;
    let hold = "{\"metadata\":{\"finalizers\":[\"example.com/hold\"]}}";
    plane.args(&["patch", "widget", "a", "--type=merge", "-p", hold]).await.ok();
    plane.run("delete widget a --wait=false").await.ok();
    let marked = plane.run("get widget a -o jsonpath={.metadata.deletionTimestamp}").await.ok();
    assert!(!marked.is_empty());
    let waiting = plane
        .command("admin", &["delete", "widget", "a", "--timeout=60s"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("kubectl");
    plane
        .args(&["patch", "widget", "a", "--type=merge", "-p", "{\"metadata\":{\"finalizers\":null}}"])
        .await
        .ok();
    let output = crate::plane::finish(waiting.wait_with_output().await);
    // kubectl saw the deletion, or started after it.
    assert!(output.code == 0 || output.err.contains("NotFound"), "{output:?}");
    assert_eq!(lines(&plane.run("delete widgets --all").await.ok()).len(), 2);
    plane.run("delete namespace default").await.refused("Forbidden");
}

#[tokio::test]
async fn a_namespace_is_deleted_with_its_content() {
    let plane = Plane::new().await;
    plane.run("create namespace shop").await.ok();
    plane.run("create configmap settings -n shop --from-literal=a=b").await.ok();
    plane.run("delete namespace shop --timeout=60s").await.ok();
    plane.run("get namespace shop").await.refused("NotFound");
    plane.run("get configmap settings -n shop").await.refused("NotFound");
}

#[tokio::test]
async fn wait_ends_when_the_condition_holds() {
    let plane = mk_shop().await;
    plane.run("wait --for=condition=Established crd/widgets.example.com --timeout=30s").await.ok();
    plane.run("wait --for=jsonpath={.spec.color}=red widget/a --timeout=30s").await.ok();
    plane
        .run("wait --for=jsonpath={.spec.color}=green widget/a --timeout=1s")
        .await
        .refused("timed out waiting for the condition");
    let waiting = plane
        .command("admin", &["wait", "--for=delete", "widget/b", "--timeout=60s"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("kubectl");
    plane.run("delete widget b").await.ok();
    crate::plane::finish(waiting.wait_with_output().await).ok();
    plane.run("wait --for=create widget/a --timeout=30s").await.ok();
}

#[tokio::test]
async fn events_are_listed_and_filtered_by_their_object() {
    let plane = mk_shop().await;
    for (name, about, kind) in [("one", "a", "Warning"), ("two", "b", "Normal")] {
        let uid = plane.run(&format!("get widget {about} -o jsonpath={{.metadata.uid}}")).await.ok();
        let event = format!(
            "apiVersion: v1\nkind: Event\nmetadata: {{name: {name}}}\ninvolvedObject: {{apiVersion: example.com/v1, kind: Widget, name: {about}, uid: {uid}, namespace: default}}\nreason: Observed\nmessage: it was observed\ntype: {kind}\nlastTimestamp: 2026-01-01T00:00:00Z\n"
        );
        plane.feed("create -f -", &event).await.ok();
    }
    assert_eq!(lines(&plane.run("events --no-headers").await.ok()).len(), 2);
    let of_one = lines(&plane.run("events --for widget/a --no-headers").await.ok());
    assert!(of_one.len() == 1 && of_one[0].contains("Warning Observed"), "{of_one:?}");
    assert_eq!(lines(&plane.run("events --types=Normal --no-headers -A").await.ok()).len(), 1);
    assert!(plane.run("describe widget a").await.ok().contains("it was observed"));
    assert!(plane.run("get events").await.ok().contains("widget/a"));
}
