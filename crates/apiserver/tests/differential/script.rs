//! Scripts of requests, and their execution.

use http::Request;
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use serde_json::Value;

/// One request. `$rv(n)`, `$uid(n)`, `$name(n)` and `$continue(n)` in path and body are replaced by the
/// values in the response to step n of the same script.
#[derive(Clone, Debug)]
pub struct ScriptStep {
    pub method: &'static str,
    pub path: String,
    pub content: &'static str,
    pub accept: &'static str,
    pub body: String,
    pub title: Option<String>,
}

impl ScriptStep {
    pub fn new(method: &'static str, path: impl Into<String>) -> Self {
        Self {
            method,
            path: path.into(),
            content: "application/json",
            accept: "application/json",
            body: String::new(),
            title: None,
        }
    }

    pub fn body(mut self, body: &Value) -> Self {
        self.body = body.to_string();
        self
    }

    pub fn text(mut self, body: impl Into<String>) -> Self {
        self.body = body.into();
        self
    }

    pub fn content(mut self, content: &'static str) -> Self {
        self.content = content;
        self
    }

    pub fn accept(mut self, accept: &'static str) -> Self {
        self.accept = accept;
        self
    }

    pub fn titled(mut self, title: impl Into<String>) -> Self {
        self.title = Some(title.into());
        self
    }

    pub fn title(&self) -> String {
        self.title.clone().unwrap_or_else(|| {
            format!("{} {} {}", self.method, self.path, self.body.chars().take(160).collect::<String>())
        })
    }
}

pub fn get(path: impl Into<String>) -> ScriptStep {
    ScriptStep::new("GET", path)
}

pub fn post(path: impl Into<String>, body: &Value) -> ScriptStep {
    ScriptStep::new("POST", path).body(body)
}

pub fn put(path: impl Into<String>, body: &Value) -> ScriptStep {
    ScriptStep::new("PUT", path).body(body)
}

pub fn delete(path: impl Into<String>) -> ScriptStep {
    ScriptStep::new("DELETE", path)
}

pub fn merge(path: impl Into<String>, body: &Value) -> ScriptStep {
    ScriptStep::new("PATCH", path).content("application/merge-patch+json").body(body)
}

pub fn json_patch(path: impl Into<String>, body: &Value) -> ScriptStep {
    ScriptStep::new("PATCH", path).content("application/json-patch+json").body(body)
}

pub fn strategic(path: impl Into<String>, body: &Value) -> ScriptStep {
    ScriptStep::new("PATCH", path).content("application/strategic-merge-patch+json").body(body)
}

pub fn apply(path: impl Into<String>, body: &Value) -> ScriptStep {
    ScriptStep::new("PATCH", path).content("application/apply-patch+yaml").body(body)
}

/// A sequence of requests, in a namespace of its own.
#[derive(Clone, Debug)]
pub struct Script {
    pub name: String,
    pub steps: Vec<ScriptStep>,
    /// The user that the administrator impersonates in it.
    pub user: Option<&'static str>,
}

/// The response to a request.
#[derive(Clone, Debug, PartialEq)]
pub struct ScriptResponse {
    pub code: u16,
    pub warnings: Vec<String>,
    /// JSON, an array of the JSON lines, or text.
    pub body: Value,
}

impl ScriptResponse {
    /// Renders the parts in which this response differs from another.
    pub fn show(&self, other: &Self) -> String {
        let mut text = format!("{}", self.code);
        if self.warnings != other.warnings {
            text.push_str(&format!(" warnings {:?}", self.warnings));
        }
        if self.body != other.body {
            let mut parts = Vec::new();
            differing(&self.body, &other.body, String::new(), &mut parts);
            text.push_str(&format!(" {}", parts.join("  ")));
        }
        text.chars().take(1500).collect()
    }
}

/// Collects the smallest parts of `a` that differ in `b`.
fn differing(a: &Value, b: &Value, at: String, parts: &mut Vec<String>) {
    match (a, b) {
        (Value::Object(left), Value::Object(right)) => {
            for (key, value) in left {
                match right.get(key) {
                    Some(other) if other == value => {}
                    Some(other) => differing(value, other, format!("{at}.{key}"), parts),
                    None => parts.push(format!("{at}.{key}: {value}")),
                }
            }
            for key in right.keys().filter(|key| !left.contains_key(*key)) {
                parts.push(format!("{at}.{key}: (absent)"));
            }
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            for (n, (value, other)) in
                left.iter().zip(right).enumerate().filter(|(_, (value, other))| value != other)
            {
                differing(value, other, format!("{at}[{n}]"), parts);
            }
        }
        _ => parts.push(format!("{at}: {a}")),
    }
}

impl Script {
    pub fn new(name: impl Into<String>, steps: Vec<ScriptStep>) -> Self {
        Self { name: name.into(), steps, user: None }
    }

    /// The same requests as another user.
    pub fn by(mut self, user: &'static str) -> Self {
        self.user = Some(user);
        self
    }

    /// Sends the requests in order.
    pub async fn play(&self, client: &Client) -> Vec<ScriptResponse> {
        let mut responses: Vec<ScriptResponse> = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let mut request = Request::builder()
                .method(step.method)
                .uri(fill(&step.path, &responses, true))
                .header("user-agent", "differential/1.0");
            if let Some(user) = self.user {
                request = request.header("impersonate-user", user);
            }
            if !step.content.is_empty() {
                request = request.header("content-type", step.content);
            }
            if !step.accept.is_empty() {
                request = request.header("accept", step.accept);
            }
            let request = request
                .body(Body::from(fill(&step.body, &responses, false).into_bytes()))
                .expect("a request");
            let response = client.send(request).await.expect("an response");
            let code = response.status().as_u16();
            let warnings = response
                .headers()
                .get_all("warning")
                .iter()
                .filter_map(|value| value.to_str().ok())
                .map(str::to_owned)
                .collect();
            let bytes = response.into_body().collect().await.expect("a body").to_bytes();
            responses.push(ScriptResponse { code, warnings, body: parse(&bytes) });
        }
        responses
    }
}

fn parse(bytes: &[u8]) -> Value {
    if let Ok(value) = serde_json::from_slice(bytes) {
        return value;
    }
    let lines: Result<Vec<Value>, _> = serde_json::Deserializer::from_slice(bytes).into_iter().collect();
    lines.map_or_else(|_| Value::String(String::from_utf8_lossy(bytes).into_owned()), Value::Array)
}

/// Replaces the placeholders by values of earlier responses.
fn fill(text: &str, responses: &[ScriptResponse], in_path: bool) -> String {
    let mut filled = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        filled.push_str(&rest[..at]);
        rest = &rest[at..];
        let parsed = rest.find('(').zip(rest.find(')')).and_then(|(open, close)| {
            Some((rest.get(1..open)?, rest.get(open + 1..close)?.parse::<usize>().ok()?, close + 1))
        });
        let value = parsed.and_then(|(what, step, _)| {
            let metadata = &responses.get(step)?.body["metadata"];
            let field = match what {
                "rv" => "resourceVersion",
                other => other,
            };
            metadata[field].as_str().map(str::to_owned)
        });
        match (value, parsed) {
            (Some(value), Some((_, _, end))) => {
                filled.push_str(&if in_path { value.replace('=', "%3D") } else { value });
                rest = &rest[end..];
            }
            _ => {
                filled.push('$');
                rest = &rest[1..];
            }
        }
    }
    filled.push_str(rest);
    filled
}
