//! Runs an unmodified kubectl against the embedded server: all common commands.
//!
//! Each test has its own server, over TLS on a free port, and its own home directory for kubectl.

mod access;
#[path = "../common/mod.rs"]
mod common;
mod plane;
mod reading;
mod waiting;
mod writing;

/// Three widgets and a map, as manifests.
const MANIFESTS: &str = r#"
apiVersion: example.com/v1
kind: Widget
metadata: {name: a, labels: {app: shop}}
spec: {size: 3, color: red}
---
apiVersion: example.com/v1
kind: Widget
metadata: {name: b, labels: {app: shop}}
spec: {size: 1, color: blue}
---
apiVersion: example.com/v1
kind: Widget
metadata: {name: c}
spec: {color: blue}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, labels: {app: shop}}
data: {colour: red}
"#;

/// A plane with the objects of [`MANIFESTS`].
async fn mk_shop() -> plane::Plane {
    let plane = plane::Plane::new().await;
    plane.feed("create -f -", MANIFESTS).await.ok();
    plane
}

/// The lines of an output, with whitespace collapsed.
fn lines(out: &str) -> Vec<String> {
    out.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}
