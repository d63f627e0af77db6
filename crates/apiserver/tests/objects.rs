//! Object semantics that controllers rely on, through an unmodified kube client in process.

mod common;

use common::*;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::{
    Api, ResourceExt,
    api::{
        DeleteParams, ListParams, Patch, PatchParams, PostParams, PropagationPolicy, WatchEvent, WatchParams,
    },
};
use polis_apiserver::{PlaneSpec, Server, project_plane};
use serde_json::{Value, json};

#[tokio::test]
async fn a_new_plane_has_a_default_namespace_of_its_own() {
    let server = mk_server().await;
    server.create_plane(PlaneSpec::standalone("other")).await.expect("a plane");
    let uid = |plane: &str| {
        let api: Api<Namespace> = Api::all(mk_client(&server, plane));
        async move { api.get("default").await.expect("default").uid().expect("uid") }
    };
    assert_ne!(uid("cell").await, uid("other").await);
    assert_ne!(uid("cell").await, uid("").await);
}

#[tokio::test]
async fn an_object_is_created_defaulted_read_and_deleted() {
    let server = mk_server().await;
    let api = widgets(&mk_client(&server, "cell"));
    let created =
        api.create(&PostParams::default(), &mk_widget("a", json!({"color": "red"}))).await.expect("creates");
    assert_eq!(created.data["spec"], json!({"color": "red", "size": 1}));
    assert_eq!(created.metadata.generation, Some(1));
    let refused = api.create(&PostParams::default(), &mk_widget("a", json!({}))).await.expect_err("is there");
    assert!(
        matches!(refused, kube::Error::Api(status) if status.code == 409 && status.reason == "AlreadyExists")
    );
    let refused = api
        .create(&PostParams::default(), &mk_widget("b", json!({"size": -1})))
        .await
        .expect_err("too small");
    assert!(matches!(refused, kube::Error::Api(status) if status.code == 422 && status.reason == "Invalid"));
    api.delete("a", &DeleteParams::default()).await.expect("deletes");
    assert!(api.get_opt("a").await.expect("reads").is_none());
}

#[tokio::test]
async fn concurrent_applies_of_a_missing_object_all_succeed() {
    let server = mk_server().await;
    for round in 0..10 {
        let name = format!("w-{round}");
        let applied = (0..8).map(|who| {
            let (api, name) = (widgets(&mk_client(&server, "cell")), name.clone());
            async move {
                let params = PatchParams::apply(&format!("manager-{who}")).force();
                let widget = mk_widget(&name, json!({"size": who + 1}));
                api.patch(&name, &params, &Patch::Apply(&widget)).await
            }
        });
        for result in futures::future::join_all(applied).await {
            result.expect("an apply never fails with AlreadyExists");
        }
    }
}

#[tokio::test]
async fn spec_and_status_are_written_separately_and_only_the_spec_increments_the_generation() {
    let server = mk_server().await;
    let api = widgets(&mk_client(&server, "cell"));
    let mut widget = api.create(&PostParams::default(), &mk_widget("a", json!({}))).await.expect("creates");
    widget.data["status"] = json!({"phase": "Up"});
    widget.data["spec"]["size"] = json!(9);
    let stored = api.replace_status("a", &PostParams::default(), &widget).await.expect("replaces");
    assert_eq!(
        (stored.data["status"]["phase"].as_str(), stored.data["spec"]["size"].as_i64()),
        (Some("Up"), Some(1))
    );
    assert_eq!(stored.metadata.generation, Some(1));
    let patched = api
        .patch(
            "a",
            &PatchParams::default(),
            &Patch::Merge(json!({"spec": {"size": 3}, "status": {"phase": "Down"}})),
        )
        .await
        .expect("patches");
    assert_eq!(
        (patched.data["status"]["phase"].as_str(), patched.data["spec"]["size"].as_i64()),
        (Some("Up"), Some(3))
    );
    assert_eq!(patched.metadata.generation, Some(2));
}

#[tokio::test]
async fn a_new_object_has_the_status_defaults_of_its_schema_and_not_the_status_of_the_request() {
    let server = mk_server().await;
    let mut crd = mk_widgets_crd();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["default"] =
        json!({"phase": "Waiting"});
    server.install_crd_in("cell", &crd).await.expect("a definition");
    let api = widgets(&mk_client(&server, "cell"));
    let mut widget = mk_widget("a", json!({}));
    widget.data["status"] = json!({"phase": "Up"});
    let created = api.create(&PostParams::default(), &widget).await.expect("creates");
    assert_eq!(created.data["status"], json!({"phase": "Waiting"}));
    assert_eq!(api.get("a").await.expect("reads").data["status"], json!({"phase": "Waiting"}));
    let owned = serde_json::to_string(&created.metadata.managed_fields).expect("JSON");
    assert!(!owned.contains("f:status"), "a manager owns a default: {owned}");
}

#[tokio::test]
async fn a_stale_update_is_a_conflict_and_an_empty_one_changes_nothing() {
    let server = mk_server().await;
    let api = widgets(&mk_client(&server, "cell"));
    let first = api.create(&PostParams::default(), &mk_widget("a", json!({}))).await.expect("creates");
    let same = api.replace("a", &PostParams::default(), &first).await.expect("replaces");
    assert_eq!(same.resource_version(), first.resource_version());
    let mut second = first.clone();
    second.data["spec"]["size"] = json!(2);
    api.replace("a", &PostParams::default(), &second).await.expect("replaces");
    let refused = api.replace("a", &PostParams::default(), &first).await.expect_err("stale");
    assert!(matches!(refused, kube::Error::Api(status) if status.code == 409 && status.reason == "Conflict"));
}

#[tokio::test]
async fn an_object_with_a_finalizer_is_terminating_until_the_finalizer_is_removed() {
    let server = mk_server().await;
    let api = widgets(&mk_client(&server, "cell"));
    let mut widget = mk_widget("a", json!({}));
    widget.metadata.finalizers = Some(vec!["example.com/hold".into()]);
    api.create(&PostParams::default(), &widget).await.expect("creates");
    api.delete("a", &DeleteParams::default()).await.expect("marks");
    let marked = api.get("a").await.expect("still there");
    assert!(marked.metadata.deletion_timestamp.is_some());
    assert_eq!(marked.metadata.generation, Some(2));
    api.patch("a", &PatchParams::default(), &Patch::Merge(json!({"metadata": {"finalizers": null}})))
        .await
        .expect("releases");
    assert!(api.get_opt("a").await.expect("reads").is_none());
}

#[tokio::test]
async fn a_watch_gets_every_change_after_the_revision_of_the_list() {
    let server = mk_server().await;
    let api = widgets(&mk_client(&server, "cell"));
    let list = api.list(&ListParams::default()).await.expect("lists");
    let mut stream = api
        .watch(&WatchParams::default(), &list.metadata.resource_version.expect("a revision"))
        .await
        .expect("watches")
        .boxed();
    api.create(&PostParams::default(), &mk_widget("a", json!({}))).await.expect("creates");
    api.patch("a", &PatchParams::default(), &Patch::Merge(json!({"spec": {"size": 2}})))
        .await
        .expect("patches");
    api.delete("a", &DeleteParams::default()).await.expect("deletes");
    let mut seen = Vec::new();
    while seen.len() < 3 {
        match stream.try_next().await.expect("a stream").expect("an event") {
            WatchEvent::Added(object) => seen.push(("added", object.data["spec"]["size"].as_i64())),
            WatchEvent::Modified(object) => seen.push(("modified", object.data["spec"]["size"].as_i64())),
            WatchEvent::Deleted(object) => seen.push(("deleted", object.data["spec"]["size"].as_i64())),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, [("added", Some(1)), ("modified", Some(2)), ("deleted", Some(2))]);
}

#[tokio::test]
async fn selectors_filter_lists_and_watches_report_objects_that_enter_and_leave_the_selection() {
    let server = mk_server().await;
    let api = widgets(&mk_client(&server, "cell"));
    for (name, color) in [("a", "red"), ("b", "blue")] {
        let mut widget = mk_widget(name, json!({"color": color}));
        widget.labels_mut().insert("color".into(), color.into());
        api.create(&PostParams::default(), &widget).await.expect("creates");
    }
    let red = api.list(&ListParams::default().labels("color in (red)")).await.expect("lists");
    assert_eq!(red.items.len(), 1);
    let blue = api.list(&ListParams::default().fields("spec.color=blue")).await.expect("lists");
    assert_eq!(blue.items[0].name_any(), "b");
    let refused = api.list(&ListParams::default().fields("spec.size=1")).await.expect_err("not selectable");
    assert!(matches!(refused, kube::Error::Api(status) if status.code == 400));
    let mut stream = api
        .watch(
            &WatchParams::default().labels("color=red"),
            &red.metadata.resource_version.expect("a revision"),
        )
        .await
        .expect("watches")
        .boxed();
    api.patch("b", &PatchParams::default(), &Patch::Merge(json!({"metadata": {"labels": {"color": "red"}}})))
        .await
        .expect("enters");
    api.patch(
        "a",
        &PatchParams::default(),
        &Patch::Merge(json!({"metadata": {"labels": {"color": "grey"}}})),
    )
    .await
    .expect("leaves");
    assert!(
        matches!(stream.try_next().await.expect("a stream"), Some(WatchEvent::Added(object)) if object.name_any() == "b")
    );
    assert!(
        matches!(stream.try_next().await.expect("a stream"), Some(WatchEvent::Deleted(object)) if object.name_any() == "a")
    );
}

#[tokio::test]
async fn the_chunks_of_a_list_show_one_revision() {
    let server = mk_server().await;
    let api = widgets(&mk_client(&server, "cell"));
    for n in 0..5 {
        api.create(&PostParams::default(), &mk_widget(&format!("w{n}"), json!({}))).await.expect("creates");
    }
    let first = api.list(&ListParams::default().limit(2)).await.expect("lists");
    assert_eq!((first.items.len(), first.metadata.remaining_item_count), (2, Some(3)));
    api.delete("w3", &DeleteParams::default()).await.expect("deletes");
    let rest = api
        .list(&ListParams::default().limit(9).continue_token(&first.metadata.continue_.expect("more")))
        .await
        .expect("lists");
    assert_eq!(rest.items.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["w2", "w3", "w4"]);
    assert_eq!(rest.metadata.resource_version, first.metadata.resource_version);
}

#[tokio::test]
async fn dependents_are_deleted_with_their_owner_and_orphans_stay() {
    let server = mk_server().await;
    let client = mk_client(&server, "cell");
    let api = widgets(&client);
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let make = |owner: kube::api::DynamicObject, name: &'static str| {
        let maps = maps.clone();
        async move {
            let reference = json!({"apiVersion": "example.com/v1", "kind": "Widget", "name": owner.name_any(), "uid": owner.uid(), "blockOwnerDeletion": true});
            let map: ConfigMap =
                serde_json::from_value(json!({"metadata": {"name": name, "ownerReferences": [reference]}}))
                    .expect("a map");
            maps.create(&PostParams::default(), &map).await.expect("creates")
        }
    };
    for (name, policy, stays) in [
        ("bg", PropagationPolicy::Background, false),
        ("fg", PropagationPolicy::Foreground, false),
        ("orphan", PropagationPolicy::Orphan, true),
    ] {
        let owner = api.create(&PostParams::default(), &mk_widget(name, json!({}))).await.expect("creates");
        make(owner, name).await;
        api.delete(name, &DeleteParams { propagation_policy: Some(policy), ..DeleteParams::default() })
            .await
            .expect("deletes");
        eventually("the owner to be deleted", || async {
            api.get_opt(name).await.expect("reads").is_none().then_some(())
        })
        .await;
        if stays {
            let kept = maps.get(name).await.expect("stays");
            assert!(kept.metadata.owner_references.is_none());
        } else {
            eventually("the dependent to be deleted", || async {
                maps.get_opt(name).await.expect("reads").is_none().then_some(())
            })
            .await;
        }
    }
}

#[tokio::test]
async fn an_object_whose_owner_has_another_uid_is_deleted() {
    let server = mk_server().await;
    let client = mk_client(&server, "cell");
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    widgets(&client).create(&PostParams::default(), &mk_widget("a", json!({}))).await.expect("creates");
    let reference = json!({"apiVersion": "example.com/v1", "kind": "Widget", "name": "a", "uid": "00000000-0000-4000-8000-000000000000"});
    let map: ConfigMap =
        serde_json::from_value(json!({"metadata": {"name": "dangling", "ownerReferences": [reference]}}))
            .expect("a map");
    maps.create(&PostParams::default(), &map).await.expect("creates");
    eventually("the object to be deleted", || async {
        maps.get_opt("dangling").await.expect("reads").is_none().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_namespace_is_deleted_with_its_content_after_all_finalizers() {
    let server = mk_server().await;
    let client = mk_client(&server, "cell");
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces
        .create(
            &PostParams::default(),
            &serde_json::from_value(json!({"metadata": {"name": "shop"}})).expect("a namespace"),
        )
        .await
        .expect("creates");
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "shop");
    let held: Secret = serde_json::from_value(
        json!({"metadata": {"name": "s", "finalizers": ["example.com/hold"]}, "stringData": {"a": "b"}}),
    )
    .expect("a secret");
    secrets.create(&PostParams::default(), &held).await.expect("creates");
    namespaces.delete("shop", &DeleteParams::default()).await.expect("marks");
    let waiting = eventually("the namespace to report", || async {
        let namespace = namespaces.get("shop").await.expect("reads");
        namespace
            .status
            .clone()?
            .conditions?
            .iter()
            .any(|c| c.type_ == "NamespaceFinalizersRemaining" && c.status == "True")
            .then_some(namespace)
    })
    .await;
    assert_eq!(waiting.status.and_then(|status| status.phase).as_deref(), Some("Terminating"));
    let refused = secrets
        .create(
            &PostParams::default(),
            &serde_json::from_value(json!({"metadata": {"name": "late"}})).expect("a secret"),
        )
        .await
        .expect_err("too late");
    assert!(matches!(refused, kube::Error::Api(status) if status.code == 403));
    secrets
        .patch("s", &PatchParams::default(), &Patch::Merge(json!({"metadata": {"finalizers": null}})))
        .await
        .expect("releases");
    eventually("the namespace to be deleted", || async {
        namespaces.get_opt("shop").await.expect("reads").is_none().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_crd_is_deleted_with_its_objects() {
    let server = mk_server().await;
    let client = mk_client(&server, "cell");
    let api = widgets(&client);
    api.create(&PostParams::default(), &mk_widget("a", json!({}))).await.expect("creates");
    let crds: Api<
        k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    > = Api::all(client);
    crds.delete("widgets.example.com", &DeleteParams::default()).await.expect("marks");
    eventually("the CRD to be deleted", || async {
        crds.get_opt("widgets.example.com").await.expect("reads").is_none().then_some(())
    })
    .await;
    let refused = api.list(&ListParams::default()).await.expect_err("no such kind");
    assert!(matches!(refused, kube::Error::Api(status) if status.code == 404));
    assert!(server.planes().contains(&"cell".to_owned()));
}

#[tokio::test]
async fn planes_of_one_catalogue_share_kinds_and_nothing_else() {
    let server = Server::builder().build().await.expect("a server");
    server.install_crd("projects", &mk_widgets_crd()).await.expect("installs");
    for project in ["shop", "bank"] {
        server.create_plane(PlaneSpec::project(project, "projects")).await.expect("a plane");
    }
    let shop = widgets(&kube::Client::new(server.plane_service(&project_plane("shop")), "default"));
    let bank = widgets(&kube::Client::new(server.plane_service(&project_plane("bank")), "default"));
    shop.create(&PostParams::default(), &mk_widget("a", json!({}))).await.expect("creates");
    assert!(bank.get_opt("a").await.expect("reads").is_none());
    server.delete_plane("project:shop").await.expect("deletes");
    assert!(!server.has_plane("project:shop"));
    assert!(shop.get("a").await.is_err());
}

/// On a paused clock time advances only through timers: zero elapsed time means that the server did not poll.
#[tokio::test(start_paused = true)]
async fn a_plane_is_deleted_at_once_with_its_last_finalizer_and_without_polling() {
    let server = Server::builder().build().await.expect("a server");
    server.install_crd("projects", &mk_widgets_crd()).await.expect("installs");
    server.create_plane(PlaneSpec::project("shop", "projects")).await.expect("a plane");
    let shop = widgets(&kube::Client::new(server.plane_service(&project_plane("shop")), "default"));
    let mut held = mk_widget("held", json!({}));
    held.metadata.finalizers = Some(vec!["example.com/keep".to_owned()]);
    shop.create(&PostParams::default(), &held).await.expect("creates");
    let deletion = tokio::spawn({
        let server = server.clone();
        async move { server.delete_plane("project:shop").await }
    });
    eventually("the object to be terminating", || async {
        shop.get("held").await.expect("reads").metadata.deletion_timestamp
    })
    .await;
    let begun = tokio::time::Instant::now();
    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    shop.patch("held", &PatchParams::default(), &release).await.expect("releases");
    deletion.await.expect("no panic").expect("deletes");
    assert_eq!(begun.elapsed(), std::time::Duration::ZERO);
    assert!(!server.has_plane("project:shop"));
}

#[tokio::test]
async fn an_applied_null_is_refused_unless_the_field_is_nullable_or_has_a_default() {
    let server = mk_server().await;
    let api = widgets(&mk_client(&server, "cell"));
    let apply = async |spec: Value| {
        let widget = mk_widget("n", spec);
        api.patch("n", &PatchParams::apply("me").force(), &Patch::Apply(&widget)).await
    };
    for exists in [false, true] {
        match apply(json!({"color": null})).await {
            Err(kube::Error::Api(status)) => assert_eq!(status.code, 422, "exists: {exists}"),
            other => panic!("exists: {exists}: {other:?}"),
        }
        apply(json!({"color": "red"})).await.expect("applies");
    }
    // A field with a default gets the default.
    assert_eq!(apply(json!({"size": null})).await.expect("applies").data["spec"]["size"], 1);
}
