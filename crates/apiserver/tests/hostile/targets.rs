//! The fuzz targets: parsers and valid inputs of each.

use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::Full;
use polis_apiserver::{PlaneSpec, Server, Service};
use serde_json::{Value, json};

use crate::{
    FuzzTarget, TestRequest,
    common::{mk_client, mk_widget, mk_widgets_crd, widgets},
};

const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?dryRun=All";

/// Tokens of JSON, YAML and Kubernetes.
const WORDS: &[&str] = &[
    "null",
    "true",
    "{}",
    "[]",
    "\"\"",
    "-1",
    "1e999",
    "99999999999999999999",
    "0.1",
    "\\u0000",
    "\\ud800",
    "\u{feff}",
    "\"metadata\":",
    "\"name\":",
    "\"kind\":",
    "\"$patch\":\"delete\"",
    "\"$setElementOrder/parts\":[]",
    "\"managedFields\":",
    "\"ownerReferences\":",
    "\"generateName\":",
    "&a ",
    "*a ",
    "<<: ",
    "---\n",
    "!!binary ",
    "? ",
    "\n",
    "\t",
    "/",
    "~1",
    "%",
    "\"op\":\"copy\",\"from\":\"\"",
    "\"fieldsV1\":{\"f:spec\":{}}",
    "x-kubernetes-",
    "\u{0}",
];

pub async fn mk_service() -> Service {
    let server = Server::builder().build().await.expect("a server");
    server.create_plane(PlaneSpec::standalone("cell")).await.expect("a plane");
    server.install_crd_in("cell", &mk_widgets_crd()).await.expect("a definition");
    let api = widgets(&mk_client(&server, "cell"));
    for name in ["a", "b", "c"] {
        let widget =
            mk_widget(name, json!({"size": 2, "color": "red", "parts": [{"name": "x", "value": "y"}]}));
        api.create(&Default::default(), &widget).await.expect("a widget");
    }
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "finalizers": ["example.com/x"]}, "data": {"k": "v"}});
    let service = server.plane_service("cell");
    let made = service.handle(post(MAPS, "application/json", map.to_string().as_bytes())).await;
    assert_eq!(made.status(), 201);
    service
}

fn send(method: &str, path: &str, content: &str, body: &[u8]) -> TestRequest {
    Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", content)
        .body(Full::new(Bytes::copy_from_slice(body)))
        .expect("a request")
}

fn post(path: &str, content: &str, body: &[u8]) -> TestRequest {
    send("POST", path, content, body)
}

fn texts(values: &[Value]) -> Vec<Vec<u8>> {
    values.iter().map(|value| value.to_string().into_bytes()).collect()
}

/// A GET with the input, escaped, in the query.
fn query(path: &str, name: &str, input: &[u8]) -> TestRequest {
    let escaped: String = input.iter().map(|byte| format!("%{byte:02X}")).collect();
    send("GET", &format!("{path}?{name}={escaped}"), "", b"")
}

pub fn bodies() -> FuzzTarget {
    let widget = mk_widget("w", json!({"size": 2, "color": "red", "parts": [{"name": "x"}]}));
    let mut valid = texts(&[
        serde_json::to_value(widget).expect("a widget"),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "labels": {"a": "b"}}, "data": {"k": "v"}, "binaryData": {"b": "AAAA"}}),
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"generateName": "w-", "annotations": {"a": "b"}, "ownerReferences": [{"apiVersion": "v1", "kind": "A", "name": "a", "uid": "u"}]}, "spec": {}}),
    ]);
    valid.push(b"apiVersion: example.com/v1\nkind: Widget\nmetadata:\n  name: y\n  labels: {a: b}\nspec:\n  size: 1\n  parts:\n  - name: x\n    value: |\n      text\n".to_vec());
    FuzzTarget {
        name: "bodies",
        valid,
        tokens: WORDS,
        request: |input, n| {
            let path = if n % 3 == 0 { MAPS } else { WIDGETS };
            let content = if n % 2 == 0 { "application/json" } else { "application/yaml" };
            // A dry run, so that the store does not grow.
            Some(post(&format!("{path}?dryRun=All"), content, input))
        },
    }
}

pub fn protobuf() -> FuzzTarget {
    // Kubernetes' envelope: magic, then Unknown{typeMeta{apiVersion, kind}, raw}; raw is a ConfigMap named
    // "m".
    let message = |kind: &[u8], raw: &[u8]| {
        let mut meta = vec![0x0a, 2, b'v', b'1', 0x12, u8::try_from(kind.len()).expect("short")];
        meta.extend_from_slice(kind);
        let mut all = b"k8s\0\x0a".to_vec();
        all.push(u8::try_from(meta.len()).expect("short"));
        all.extend_from_slice(&meta);
        all.extend_from_slice(&[0x12, u8::try_from(raw.len()).expect("short")]);
        all.extend_from_slice(raw);
        all
    };
    let map = b"\x0a\x05\x0a\x01m\x12\x00\x12\x06\x0a\x01k\x12\x01v";
    let namespace = b"\x0a\x03\x0a\x01n\x12\x00\x1a\x00";
    FuzzTarget {
        name: "protobuf",
        valid: vec![message(b"ConfigMap", map), message(b"Namespace", namespace), message(b"Secret", map)],
        tokens: &[
            "k8s\0",
            "\u{0}",
            "\u{1}",
            "\n",
            "\u{12}",
            "\u{1a}",
            "\u{7f}",
            "v1",
            "ConfigMap",
            "Lease",
            "Event",
        ],
        request: |input, n| {
            let path = [MAPS, "/api/v1/namespaces", "/api/v1/namespaces/default/secrets"][n as usize % 3];
            Some(post(&format!("{path}?dryRun=All"), "application/vnd.kubernetes.protobuf", input))
        },
    }
}

pub fn patches() -> FuzzTarget {
    let mut valid = texts(&[
        json!([{"op": "add", "path": "/spec/parts/-", "value": {"name": "z"}}, {"op": "test", "path": "/spec/size", "value": 2}]),
        json!([{"op": "move", "from": "/spec/color", "path": "/metadata/labels"}, {"op": "remove", "path": "/spec/parts/0"}]),
        json!({"spec": {"size": 3, "parts": null}, "metadata": {"labels": {"a": "b"}, "finalizers": []}}),
        json!({"data": {"k": null, "l": "m"}, "metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/x"], "finalizers": ["example.com/y"]}}),
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a"}, "spec": {"parts": [{"name": "x", "value": "q"}]}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "w"}}),
    ]);
    valid.push(b"apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: a}\nspec: {size: 5}\n".to_vec());
    FuzzTarget {
        name: "patches",
        valid,
        tokens: WORDS,
        request: |input, n| {
            let content = [
                "application/json-patch+json",
                "application/merge-patch+json",
                "application/strategic-merge-patch+json",
                "application/apply-patch+yaml",
            ][n as usize % 4];
            let path = if n % 4 == 2 || n % 8 == 3 { MAPS } else { WIDGETS };
            let manager = if n % 4 == 3 { "&fieldManager=me&force=true" } else { "" };
            Some(send("PATCH", &format!("{path}/a?dryRun=All{manager}"), content, input))
        },
    }
}

pub fn selectors() -> FuzzTarget {
    FuzzTarget {
        name: "selectors",
        valid: [
            "a=b,c!=d",
            "a in (b,c),!d",
            "a notin (x), b",
            "n>1,m<2",
            "metadata.name=a,spec.color!=red",
            "a==b",
        ]
        .map(|text| text.as_bytes().to_vec())
        .to_vec(),
        tokens: &[
            "=",
            "==",
            "!=",
            "!",
            ",",
            "(",
            ")",
            " in ",
            " notin ",
            ">",
            "<",
            "/",
            "\\",
            "metadata.name",
            " ",
            "é",
        ],
        request: |input, n| {
            let name = if n % 2 == 0 { "labelSelector" } else { "fieldSelector" };
            (input.len() < 8 << 10).then(|| query(WIDGETS, name, input))
        },
    }
}

pub fn tokens() -> FuzzTarget {
    // {"v":"meta.k8s.io/v1","rv":5,"start":"default/a"} and its neighbours, as they are handed out.
    let encode = |text: &str| {
        use base64::Engine;
        base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(text).into_bytes()
    };
    FuzzTarget {
        name: "continue tokens",
        valid: vec![
            encode("{\"v\":\"meta.k8s.io/v1\",\"rv\":5,\"start\":\"default/a\"}"),
            encode("{\"v\":\"meta.k8s.io/v1\",\"rv\":-1,\"start\":\"default/b\\u0000\"}"),
            encode("{\"v\":\"meta.k8s.io/v2\",\"rv\":9223372036854775807,\"start\":\"\"}"),
        ],
        tokens: &["=", "-", "_", "A", "eyJ2IjoibWV0YS5rOHMuaW8vdjEi", "\u{0}"],
        request: |input, _| (input.len() < 8 << 10).then(|| query(WIDGETS, "limit=1&continue", input)),
    }
}

fn with_rule(rule: &str) -> Value {
    let mut crd = mk_widgets_crd();
    crd["metadata"]["name"] = "rules.example.com".into();
    crd["spec"]["names"] = json!({"plural": "rules", "kind": "Rule"});
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"] =
        json!([{"rule": rule}]);
    crd
}

pub fn rules() -> FuzzTarget {
    FuzzTarget {
        name: "rules",
        valid: [
            "self.size > 1 && self.color == 'red'",
            "!has(self.parts) || self.parts.all(p, p.name.size() < 10 && p.value.matches('^a+$'))",
            "self.size <= oldSelf.size || self.color in ['a', \"b\"]",
            "self.parts.exists_one(p, p.name == string(self.size)) ? true : size(self.color) % 2 == 0",
            "self.?color.orValue('x').split(',').map(c, c + 'y').join('') != ''",
            "url('https://x').getHost() == 'x' && quantity('1Gi').isGreaterThan(quantity('1Mi'))",
            "duration('1h') > duration('1m') && timestamp('2026-01-01T00:00:00Z').getFullYear() == 2026",
        ]
        .map(|text| text.as_bytes().to_vec())
        .to_vec(),
        tokens: &[
            "self",
            "oldSelf",
            "has(",
            "all(x, ",
            "map(x, ",
            "exists(",
            "matches(",
            "'",
            "\"",
            "r'",
            "b'",
            "[",
            "]",
            "{",
            "}",
            "(",
            ")",
            "?",
            ":",
            "&&",
            "||",
            "==",
            "in",
            "-9223372036854775808",
            "1u",
            "1e308",
            "\\x",
            "//",
            ".",
            "true",
            "null",
            "size(",
            "type(",
            "dyn(",
            "cel.bind(x, 1, ",
            "optional.of(",
            "sets.contains(",
            "ip('",
            "cidr('",
            "é",
        ],
        request: |input, _| {
            let rule = String::from_utf8_lossy(input);
            Some(post(DEFINITIONS, "application/json", with_rule(&rule).to_string().as_bytes()))
        },
    }
}

pub fn schemas() -> FuzzTarget {
    let schema = |schema: Value| {
        let mut crd = with_rule("true");
        crd["spec"]["versions"][0]["selectableFields"] = json!([]);
        crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = schema;
        crd
    };
    let valid = texts(&[
        with_rule("self.size > 0"),
        schema(
            json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "^[a-z]{1,5}(x|y)*$", "format": "hostname", "default": "bx", "enum": ["bx", "cy"]}}}),
        ),
        schema(
            json!({"type": "array", "maxItems": 5, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "integer", "minimum": 0, "maximum": 1e9, "multipleOf": 0.5}}}}),
        ),
        schema(
            json!({"type": "object", "additionalProperties": {"x-kubernetes-int-or-string": true}, "oneOf": [{"required": ["a"]}, {"not": {"required": ["b"]}}], "x-kubernetes-map-type": "atomic"}),
        ),
        schema(
            json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true, "nullable": true, "x-kubernetes-validations": [{"rule": "self.kind == 'A'", "message": "m", "reason": "FieldValueInvalid"}]}),
        ),
    ]);
    FuzzTarget {
        name: "schemas",
        valid,
        tokens: &[
            "\"type\":\"object\"",
            "\"type\":\"array\"",
            "\"items\":{}",
            "\"properties\":{}",
            "\"default\":null",
            "\"pattern\":\"((a*)*)*\"",
            "\"pattern\":\"\\\\p{Greek}{1000}\"",
            "\"maxLength\":-1",
            "\"enum\":[]",
            "\"$ref\":\"#\"",
            "\"allOf\":[{}]",
            "\"not\":{}",
            "\"x-kubernetes-int-or-string\":true",
            "\"x-kubernetes-validations\":[{\"rule\":\"self\"}]",
            "\"jsonPath\":\".a[\"",
            "\"served\":false",
            "\"storage\":true",
            "\"scope\":\"Cluster\"",
            "null",
            "[]",
            "{}",
            "1e400",
            "\"conversion\":{}",
        ],
        request: |input, _| Some(post(DEFINITIONS, "application/json", input)),
    }
}

pub fn paths() -> FuzzTarget {
    FuzzTarget {
        name: "paths",
        valid: [
            "/api/v1/namespaces/default/configmaps/a?watch=false&limit=5",
            "/apis/example.com/v1/namespaces/default/widgets/a/status",
            "/apis/example.com/v1/widgets?resourceVersion=1&resourceVersionMatch=Exact",
            "/apis/example.com/v1/watch/widgets?timeoutSeconds=1",
            "/planes/cell/apis?x=%41",
            "/apis/resourcemanager.miloapis.com/v1alpha1/projects/p/control-plane/api",
            "/openapi/v3/apis/example.com/v1?hash=1",
            "/readyz/ping?verbose&exclude=x",
            "/api/v1/namespaces/default/finalize",
        ]
        .map(|text| text.as_bytes().to_vec())
        .to_vec(),
        tokens: &[
            "/",
            "//",
            "..",
            "%2F",
            "%00",
            "%",
            "%zz",
            "?",
            "&",
            "=",
            "#",
            ":",
            "@",
            "api",
            "apis",
            "v1",
            "watch",
            "namespaces",
            "limit=",
            "resourceVersion=0",
            "includeObject=",
        ],
        request: |input, n| {
            // An HTTP parser never yields an invalid URI, and a watch would not end: skip both.
            let text = std::str::from_utf8(input).ok()?;
            let uri: Uri = text.parse().ok()?;
            if text.contains("watch") || uri.path().is_empty() || text.len() > 8 << 10 {
                return Some(send("GET", "/", "", b""));
            }
            let method = ["GET", "GET", "HEAD", "POST", "PUT", "PATCH", "OPTIONS"][n as usize % 7];
            Request::builder().method(method).uri(uri).body(Full::default()).ok()
        },
    }
}
