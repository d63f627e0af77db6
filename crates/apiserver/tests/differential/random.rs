//! Random CRDs and random requests for their objects: creates, updates, patches, applies.
//!
//! The number of a trial is its seed. A trial defines one kind with a random schema, waits until both servers
//! serve it, and sends requests that mostly match the schema.

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Map, Value, json};

use crate::script::{Script, ScriptStep, apply, delete, get, json_patch, merge, post, put};

const GROUP: &str = "random.example.com";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// Requests per kind.
const REQUESTS: usize = 150;
/// Names of objects; few, so that requests hit the same objects.
const NAMES: [&str; 3] = ["a", "b", "c"];

/// The type of a random field.
#[derive(Clone, Debug)]
enum Field {
    Integer {
        max: i64,
        default: Option<i64>,
    },
    Text {
        words: Vec<&'static str>,
        default: bool,
    },
    Free {
        max_length: i64,
    },
    Flag {
        nullable: bool,
    },
    Number,
    IntOrText,
    Texts {
        set: bool,
    },
    /// A list of objects, with the merge key `name` if `keyed`.
    Parts {
        keyed: bool,
    },
    Table,
    Open,
    Group(Vec<(String, Field)>),
}

const WORDS: [&str; 4] = ["red", "green", "blue", "x"];

/// Generates fields, values and requests.
struct Generator(StdRng);

impl Generator {
    fn below(&mut self, limit: usize) -> usize {
        self.0.random_range(0..limit)
    }

    fn one_in(&mut self, many: usize) -> bool {
        self.below(many) == 0
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    fn fields(&mut self, depth: usize) -> Vec<(String, Field)> {
        let count = 2 + self.below(4);
        (0..count).map(|n| (format!("f{n}"), self.field(depth))).collect()
    }

    fn field(&mut self, depth: usize) -> Field {
        match self.below(if depth > 0 { 12 } else { 10 }) {
            0 => {
                let max = 1 + self.below(20) as i64;
                Field::Integer { max, default: self.one_in(2).then_some(max) }
            }
            1 | 2 => Field::Text { words: WORDS[..2 + self.below(3)].to_vec(), default: self.one_in(3) },
            3 => Field::Free { max_length: 1 + self.below(8) as i64 },
            4 => Field::Flag { nullable: self.one_in(2) },
            5 => Field::Number,
            6 => Field::IntOrText,
            7 => Field::Texts { set: self.one_in(2) },
            8 => Field::Parts { keyed: !self.one_in(4) },
            9 => {
                if self.one_in(2) {
                    Field::Table
                } else {
                    Field::Open
                }
            }
            _ => Field::Group(self.fields(depth - 1)),
        }
    }

    /// A value for a field, mostly valid.
    fn value(&mut self, field: &Field) -> Value {
        if self.one_in(25) {
            let odd = [json!(null), json!(-1), json!("odd"), json!([]), json!({}), json!(true)];
            return self.pick(&odd).clone();
        }
        match field {
            Field::Integer { max, .. } => json!(self.below(*max as usize + 2)),
            Field::Text { .. } => json!(*self.pick(&WORDS)),
            Field::Free { .. } => json!("abcdefghij"[..self.below(10)].to_owned()),
            Field::Flag { .. } => json!(self.one_in(2)),
            Field::Number => self.pick(&[json!(0.5), json!(-2.25), json!(7), json!(1.5e-3)]).clone(),
            Field::IntOrText => self.pick(&[json!(5), json!("50%"), json!("5")]).clone(),
            Field::Texts { .. } => (0..self.below(4)).map(|_| *self.pick(&WORDS)).collect(),
            Field::Parts { .. } => {
                let count = self.below(4);
                (0..count)
                    .map(|_| {
                        let mut part = json!({"name": *self.pick(&["p", "q", "r"])});
                        if self.one_in(2) {
                            part["value"] = json!(*self.pick(&WORDS));
                        }
                        part
                    })
                    .collect()
            }
            Field::Table => {
                let entries: Map<String, Value> =
                    (0..self.below(3)).map(|n| (format!("k{n}"), json!(self.below(3)))).collect();
                Value::Object(entries)
            }
            Field::Open => {
                self.pick(&[json!({"any": [1, {"x": "y"}]}), json!({"other": "z"}), json!({})]).clone()
            }
            Field::Group(fields) => self.some(fields),
        }
    }

    /// Some of the fields, with values.
    fn some(&mut self, fields: &[(String, Field)]) -> Value {
        let mut object = Map::new();
        for (name, field) in fields {
            if !self.one_in(3) {
                object.insert(name.clone(), self.value(field));
            }
        }
        if self.one_in(15) {
            object.insert("unknown".to_owned(), json!(1));
        }
        Value::Object(object)
    }
}

fn schema(field: &Field) -> Value {
    match field {
        Field::Integer { max, default } => {
            let mut schema = json!({"type": "integer", "minimum": 0, "maximum": max});
            if let Some(default) = default {
                schema["default"] = json!(default);
            }
            schema
        }
        Field::Text { words, default } => {
            let mut schema = json!({"type": "string", "enum": words});
            if *default {
                schema["default"] = json!(words[0]);
            }
            schema
        }
        Field::Free { max_length } => {
            json!({"type": "string", "maxLength": max_length, "pattern": "^[a-z]*$"})
        }
        Field::Flag { nullable } => json!({"type": "boolean", "nullable": nullable}),
        Field::Number => json!({"type": "number"}),
        Field::IntOrText => json!({"x-kubernetes-int-or-string": true}),
        Field::Texts { set } => {
            let kind = if *set { "set" } else { "atomic" };
            json!({"type": "array", "x-kubernetes-list-type": kind, "maxItems": 5, "items": {"type": "string"}})
        }
        Field::Parts { keyed } => {
            let items = json!({"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "value": {"type": "string", "default": "none"}}});
            match keyed {
                true => {
                    json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": items})
                }
                false => json!({"type": "array", "items": items}),
            }
        }
        Field::Table => json!({"type": "object", "additionalProperties": {"type": "integer"}}),
        Field::Open => json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
        Field::Group(fields) => group(fields),
    }
}

fn group(fields: &[(String, Field)]) -> Value {
    let properties: Map<String, Value> =
        fields.iter().map(|(name, field)| (name.clone(), schema(field))).collect();
    json!({"type": "object", "properties": properties})
}

/// A random kind, and requests for its objects.
pub struct Trial {
    pub definition: Script,
    /// The path of the collection, which exists once the kind is served.
    pub path: String,
    pub requests: Script,
}

/// The trial with the seed `number`.
pub fn trial(number: u64) -> Trial {
    let mut generator = Generator(StdRng::seed_from_u64(number));
    let (plural, kind) = (format!("things{number}"), format!("Thing{number}"));
    let (spec, status) = (generator.fields(2), generator.fields(1));
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": format!("{plural}.{GROUP}")},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": {"plural": plural, "kind": kind}, "versions": [{
            "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": group(&spec), "status": group(&status)}}},
        }]},
    });
    let all = format!("/apis/{GROUP}/v1/namespaces/default/{plural}");
    let definition =
        Script::new(format!("random-{number}"), vec![post(DEFINITIONS, &definition).titled("define")]);
    let mut steps = Vec::new();
    for n in 0..REQUESTS {
        let step = request(&mut generator, &all, &kind, &spec, &status);
        let title = format!("{n} {}", step.title());
        steps.push(step.titled(title));
    }
    steps.push(delete(format!("{DEFINITIONS}/{plural}.{GROUP}")).titled("end"));
    Trial { definition, path: all, requests: Script::new(format!("random-{number}"), steps) }
}

fn request(
    generator: &mut Generator,
    all: &str,
    kind: &str,
    spec: &[(String, Field)],
    status: &[(String, Field)],
) -> ScriptStep {
    let name = *generator.pick(&NAMES);
    let one = format!("{all}/{name}");
    let object = |part: &str, value: Value| json!({"apiVersion": format!("{GROUP}/v1"), "kind": kind, "metadata": {"name": name}, part: value});
    let strict = if generator.one_in(6) { "&fieldValidation=Strict" } else { "" };
    match generator.below(13) {
        0 | 1 => post(format!("{all}?{strict}"), &object("spec", generator.some(spec))),
        2 => put(format!("{one}?{strict}"), &object("spec", generator.some(spec))),
        3 => merge(format!("{one}?{strict}"), &json!({"spec": generator.some(spec)})),
        4 => merge(&one, &json!({"metadata": {"labels": {"l": *generator.pick(&WORDS)}}})),
        5 => merge(format!("{one}/status"), &json!({"status": generator.some(status)})),
        6 => {
            let (field, of) = generator.pick(spec).clone();
            let operation = match generator.below(3) {
                0 => json!({"op": "remove", "path": format!("/spec/{field}")}),
                1 => {
                    json!({"op": "replace", "path": format!("/spec/{field}"), "value": generator.value(&of)})
                }
                _ => json!({"op": "add", "path": format!("/spec/{field}"), "value": generator.value(&of)}),
            };
            json_patch(&one, &json!([operation]))
        }
        7..=9 => {
            let force = if generator.one_in(2) { "&force=true" } else { "" };
            let manager = *generator.pick(&["one", "two", "three"]);
            apply(
                format!("{one}?fieldManager={manager}{force}{strict}"),
                &object("spec", generator.some(spec)),
            )
        }
        10 => apply(
            format!("{one}/status?fieldManager=reporter&force=true"),
            &object("status", generator.some(status)),
        ),
        11 => get(&one),
        _ => delete(&one),
    }
}
