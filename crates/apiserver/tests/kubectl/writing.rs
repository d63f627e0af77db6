//! create, apply, diff, edit, replace, patch, label, annotate, scale.

use crate::{MANIFESTS, lines, mk_shop, plane::Plane};

const WIDGET: &str = "
apiVersion: example.com/v1
kind: Widget
metadata: {name: w}
spec: {size: SIZE, parts: [{name: x, value: VALUE}]}
";

fn widget(size: u32, value: &str) -> String {
    WIDGET.replace("SIZE", &size.to_string()).replace("VALUE", value)
}

#[tokio::test]
async fn create_creates_every_kind_and_reports_errors() {
    let plane = Plane::new().await;
    for line in [
        "create namespace shop",
        "create configmap settings --from-literal=a=b",
        "create secret generic keys --from-literal=a=b",
        "create serviceaccount robot",
        "create role reader --verb=get,list --resource=configmaps",
        "create rolebinding reader --role=reader --serviceaccount=default:robot",
        "create clusterrole reader --verb=get --resource=widgets.example.com",
        "create clusterrolebinding reader --clusterrole=reader --user=eve",
    ] {
        assert!(plane.run(line).await.ok().ends_with("created\n"), "{line}");
    }
    plane.run("create namespace shop").await.refused("AlreadyExists");
    assert_eq!(plane.run("get secret keys -o jsonpath={.data.a}").await.ok(), "Yg==");
    assert_eq!(plane.run("create token robot").await.ok().trim().split('.').count(), 3);
    plane.run("create configmap dry --from-literal=a=b --dry-run=server").await.ok();
    plane.run("get configmap dry").await.refused("NotFound");
    plane
        .feed(
            "create -f -",
            "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: x}\nspec: {size: -1}",
        )
        .await
        .refused("should be greater than or equal to 0");
    plane
        .feed("create -f -", "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: x}\nspec: {sise: 1}")
        .await
        .refused("unknown field \"spec.sise\"");
}

#[tokio::test]
async fn apply_changes_only_the_fields_that_differ() {
    let plane = Plane::new().await;
    assert!(plane.feed("apply -f -", &widget(1, "a")).await.ok().contains("created"));
    assert!(plane.feed("apply -f -", &widget(1, "a")).await.ok().contains("unchanged"));
    plane.run("label widget w by=hand").await.ok();
    assert!(plane.feed("apply -f -", &widget(2, "a")).await.ok().contains("configured"));
    assert_eq!(plane.run("get widget w -o jsonpath={.spec.size}/{.metadata.labels.by}").await.ok(), "2/hand");
    plane.feed("apply -f - --dry-run=server", &widget(3, "a")).await.ok();
    assert_eq!(plane.run("get widget w -o jsonpath={.spec.size}").await.ok(), "2");
    assert!(plane.run("apply view-last-applied widget/w").await.ok().contains("size: 2"));
    // Built-in kinds use strategic merge patches.
    for data in ["{a: b, c: d}", "{a: z}"] {
        let map = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: m}}\ndata: {data}");
        plane.feed("apply -f -", &map).await.ok();
    }
    assert_eq!(plane.run("get configmap m -o jsonpath={.data}").await.ok(), "{\"a\":\"z\"}");
}

#[tokio::test]
async fn server_side_apply_reports_conflicts_with_other_field_managers() {
    let plane = Plane::new().await;
    plane.feed("apply --server-side -f -", &widget(1, "a")).await.ok();
    let conflict = plane.feed("apply --server-side --field-manager=other -f -", &widget(2, "a")).await;
    assert!(conflict.refused("conflict").contains(".spec.size"));
    plane
        .feed("apply --server-side --field-manager=other --force-conflicts -f -", &widget(2, "a"))
        .await
        .ok();
    assert_eq!(plane.run("get widget w -o jsonpath={.spec.size}").await.ok(), "2");
    let owners = plane.run("get widget w -o jsonpath={.metadata.managedFields[*].manager}").await.ok();
    assert_eq!(owners, "kubectl other");
}

#[tokio::test]
async fn apply_prunes_objects_that_are_no_longer_in_the_manifests() {
    let plane = Plane::new().await;
    let kinds = "--prune-allowlist=core/v1/ConfigMap --prune-allowlist=example.com/v1/Widget";
    plane.feed("apply -f -", MANIFESTS).await.ok();
    let rest = MANIFESTS.replacen("name: b,", "name: d,", 1);
    let out = plane.feed(&format!("apply -f - --prune -l app=shop {kinds}"), &rest).await.ok();
    assert!(out.contains("widget.example.com/b pruned"), "{out}");
    // `c` has no label, so the selector excludes it from the apply and from pruning.
    assert_eq!(
        lines(&plane.run("get widgets -o name").await.ok()),
        ["widget.example.com/a", "widget.example.com/c", "widget.example.com/d"]
    );
}

#[tokio::test]
async fn apply_prunes_the_objects_of_an_applyset() {
    let plane = Plane::new().await;
    let apply = async |manifests: &str| {
        plane.file("set.yaml", manifests);
        let line = "apply -f set.yaml --prune --applyset=configmaps/set -n default";
        let arguments: Vec<&str> = line.split_whitespace().collect();
        let output = plane.command("admin", &arguments).env("KUBECTL_APPLYSET", "true").output().await;
        crate::plane::finish(output).ok()
    };
    apply(MANIFESTS).await;
    let fewer = MANIFESTS.split("---").take(2).collect::<Vec<_>>().join("---");
    apply(&fewer).await;
    assert_eq!(
        lines(&plane.run("get widgets -o name").await.ok()),
        ["widget.example.com/a", "widget.example.com/b"]
    );
    plane.run("get configmap settings").await.refused("NotFound");
}

#[tokio::test]
async fn diff_shows_the_changes_of_an_apply() {
    let plane = Plane::new().await;
    plane.feed("apply -f -", &widget(1, "a")).await.ok();
    assert_eq!(plane.feed("diff -f -", &widget(1, "a")).await.ok(), "");
    for line in ["diff -f -", "diff --server-side -f - --force-conflicts"] {
        let output = plane.feed(line, &widget(4, "a")).await;
        assert_eq!(output.code, 1, "{output:?}");
        assert!(output.out.contains("-  size: 1") && output.out.contains("+  size: 4"), "{output:?}");
    }
    assert_eq!(plane.run("get widget w -o jsonpath={.spec.size}").await.ok(), "1");
}

#[tokio::test]
async fn edit_writes_the_edited_object() {
    let plane = Plane::new().await;
    plane.feed("apply -f -", &widget(1, "a")).await.ok();
    plane.file("editor", "#!/bin/sh\nsed -i 's/size: 1/size: 6/' \"$1\"\n");
    let edit = async |line: &str| {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        let editor = format!("sh {}", plane.state_dir.path().join("editor").display());
        crate::plane::finish(plane.command("admin", &arguments).env("KUBE_EDITOR", editor).output().await)
    };
    assert!(edit("edit widget w").await.ok().contains("edited"));
    assert_eq!(plane.run("get widget w -o jsonpath={.spec.size}").await.ok(), "6");
    assert!(edit("edit widget w").await.err.contains("cancelled"));
    plane.file("editor", "#!/bin/sh\nsed -i 's/phase:.*/phase: Up/; $ a status: {phase: Up}' \"$1\"\n");
    assert!(edit("edit widget w --subresource=status").await.ok().contains("edited"));
    assert_eq!(plane.run("get widget w -o jsonpath={.status.phase}").await.ok(), "Up");
}

#[tokio::test]
async fn replace_updates_the_object_and_replace_force_recreates_it() {
    let plane = Plane::new().await;
    plane.feed("create -f -", &widget(1, "a")).await.ok();
    let uid = plane.run("get widget w -o jsonpath={.metadata.uid}").await.ok();
    plane.feed("replace -f -", &widget(2, "b")).await.ok();
    assert_eq!(plane.run("get widget w -o jsonpath={.spec.size}").await.ok(), "2");
    plane.feed("replace --force -f -", &widget(3, "b")).await.ok();
    assert_ne!(plane.run("get widget w -o jsonpath={.metadata.uid}").await.ok(), uid);
}

#[tokio::test]
async fn patch_supports_all_four_types() {
    let plane = mk_shop().await;
    let patch = async |kind: &str, name: &str, way: &str, body: &str| {
        plane.args(&["patch", kind, name, &format!("--type={way}"), "-p", body]).await
    };
    patch("widget", "a", "merge", "{\"spec\":{\"size\":5}}").await.ok();
    patch("widget", "a", "json", "[{\"op\":\"test\",\"path\":\"/spec/size\",\"value\":5},{\"op\":\"add\",\"path\":\"/spec/color\",\"value\":\"green\"}]").await.ok();
    assert_eq!(plane.run("get widget a -o jsonpath={.spec.size}{.spec.color}").await.ok(), "5green");
    patch("configmap", "settings", "strategic", "{\"data\":{\"more\":\"yes\"}}").await.ok();
    assert_eq!(plane.run("get configmap settings -o jsonpath={.data.more}").await.ok(), "yes");
    patch("widget", "a", "strategic", "{\"spec\":{}}")
        .await
        .refused("strategic-merge-patch+json is not supported");
    plane
        .args(&[
            "patch",
            "widget",
            "a",
            "--subresource=status",
            "--type=merge",
            "-p",
            "{\"status\":{\"phase\":\"Up\"}}",
        ])
        .await
        .ok();
    assert_eq!(plane.run("get widget a -o jsonpath={.status.phase}").await.ok(), "Up");
    // The fourth type, apply, is sent by `apply --server-side`.
    plane
        .feed(
            "apply --server-side -f -",
            "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: a, labels: {x: z}}",
        )
        .await
        .ok();
    assert_eq!(plane.run("get widget a -o jsonpath={.metadata.labels.x}").await.ok(), "z");
}

#[tokio::test]
async fn labels_and_annotations_are_set_changed_and_removed() {
    let plane = mk_shop().await;
    plane.run("label widget c tier=one").await.ok();
    plane.run("label widget c tier=two").await.refused("already has a value");
    plane.run("label widget c tier=two --overwrite").await.ok();
    plane.run("annotate widgets --all note=x").await.ok();
    let seen = "get widget c -o jsonpath={.metadata.labels.tier}/{.metadata.annotations.note}";
    assert_eq!(plane.run(seen).await.ok(), "two/x");
    plane.run("label widget c tier-").await.ok();
    plane.run("annotate widget c note-").await.ok();
    assert_eq!(plane.run(seen).await.ok(), "/");
}

#[tokio::test]
async fn scale_sets_the_replicas() {
    let plane = mk_shop().await;
    plane.run("scale widget a --replicas=4").await.ok();
    assert_eq!(plane.run("get widget a -o jsonpath={.spec.replicas}").await.ok(), "4");
    plane.run("scale widget a --current-replicas=9 --replicas=5").await.refused("Expected replicas to be 9");
    assert!(plane.run("get widget a --subresource=scale -o yaml").await.ok().contains("kind: Scale"));
}
