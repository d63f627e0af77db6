//! Merge types of a kind: which lists are sets or keyed, which maps are atomic.
//!
//! Built once from the schema of a CRD or the OpenAPI definition of a built-in kind, and shared. The type of
//! a value outside the schema is *deduced*: maps merge by key, lists are atomic.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value};

use crate::schema::node::{AdditionalProperties, JsonType, ListType, Node};

/// The index of a type within [`Types`].
pub(crate) type Ref = u32;

/// Deduced from the value: maps merge by key, lists are atomic.
pub(crate) const DEDUCED: Ref = 0;
/// Atomic, for any value.
pub(crate) const UNTYPED: Ref = 1;

/// The type of a scalar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scalar {
    Numeric,
    Text,
    Boolean,
    Any,
}

/// How a list merges.
#[derive(Debug, Clone, Default)]
pub(crate) struct List {
    pub(crate) element: Ref,
    /// A set or a keyed list; otherwise the list is atomic.
    pub(crate) associative: bool,
    /// The key fields; empty for a set.
    pub(crate) keys: Box<[Box<str>]>,
    /// `x-kubernetes-patch-strategy` contains `merge`.
    pub(crate) patch_merge: bool,
    /// `x-kubernetes-patch-merge-key`
    pub(crate) patch_key: Option<Box<str>>,
}

/// A named field of a map.
#[derive(Debug, Clone)]
pub(crate) struct Field {
    pub(crate) ty: Ref,
    pub(crate) default: Option<Value>,
}

/// How a map merges.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fields {
    fields: Vec<(Box<str>, Field)>,
    /// The type of entries without a named field; `None` if there must be none.
    element: Option<Ref>,
    /// Replaced as a whole.
    pub(crate) atomic: bool,
    /// `x-kubernetes-patch-strategy` contains `replace`.
    pub(crate) patch_replace: bool,
    /// `x-kubernetes-patch-strategy` contains `retainKeys`.
    pub(crate) retain_keys: bool,
}

impl Fields {
    pub(crate) fn named(&self, name: &str) -> Option<&Field> {
        self.fields.binary_search_by(|(n, _)| (**n).cmp(name)).ok().map(|i| &self.fields[i].1)
    }

    /// The type of an entry; `None` if the type does not allow it.
    pub(crate) fn entry(&self, name: &str) -> Option<Ref> {
        self.named(name).map(|f| f.ty).or(self.element)
    }

    /// Whether the map has no schema: every entry is deduced.
    fn is_deduced(&self) -> bool {
        self.fields.is_empty() && self.element == Some(DEDUCED)
    }
}

/// A merge type: the scalar, list and map variants that a value may have.
#[derive(Debug, Clone, Default)]
pub(crate) struct Type {
    pub(crate) scalar: Option<Scalar>,
    pub(crate) list: Option<List>,
    pub(crate) map: Option<Fields>,
}

/// One variant of a type.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Variant<'t> {
    Map(&'t Fields),
    Scalar(Scalar),
    List(&'t List),
    Nothing,
}

/// The variants of a type that are possible for a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Narrowed {
    All,
    Map,
    Scalar,
    List,
}

impl Type {
    /// The variant of the value; all variants if the value has none of them, e.g. null.
    pub(crate) fn narrow(&self, value: Option<&Value>) -> Narrowed {
        let narrowed = match value {
            Some(Value::Bool(_) | Value::Number(_) | Value::String(_)) if self.scalar.is_some() => {
                Narrowed::Scalar
            }
            Some(Value::Array(_)) if self.list.is_some() => Narrowed::List,
            Some(Value::Object(_)) if self.map.is_some() => Narrowed::Map,
            _ => Narrowed::All,
        };
        match (narrowed, &self.map, &self.scalar, &self.list) {
            (Narrowed::All, Some(_), None, None) => Narrowed::Map,
            (Narrowed::All, None, Some(_), None) => Narrowed::Scalar,
            (Narrowed::All, None, None, Some(_)) => Narrowed::List,
            (narrowed, ..) => narrowed,
        }
    }

    /// The variant to use: maps first, then scalars, then lists.
    pub(crate) fn variant(&self, narrowed: Narrowed) -> Variant<'_> {
        let map = self.map.as_ref().filter(|_| matches!(narrowed, Narrowed::All | Narrowed::Map));
        let scalar = self.scalar.filter(|_| matches!(narrowed, Narrowed::All | Narrowed::Scalar));
        let list = self.list.as_ref().filter(|_| matches!(narrowed, Narrowed::All | Narrowed::List));
        match (map, scalar, list) {
            (Some(map), ..) => Variant::Map(map),
            (_, Some(scalar), _) => Variant::Scalar(scalar),
            (.., Some(list)) => Variant::List(list),
            _ => Variant::Nothing,
        }
    }
}

/// The types of one version of one kind.
#[derive(Debug)]
pub struct Types {
    types: Vec<Type>,
    root: Ref,
}

impl Types {
    fn base() -> Self {
        let any_of = |element: Ref, atomic: bool| Type {
            scalar: Some(Scalar::Any),
            list: Some(List { element: UNTYPED, ..List::default() }),
            map: Some(Fields { element: Some(element), atomic, ..Fields::default() }),
        };
        Self { types: vec![any_of(DEDUCED, false), any_of(UNTYPED, true)], root: DEDUCED }
    }

    /// Types of a custom resource.
    pub fn from_schema(root: &Node) -> Self {
        let mut types = Self::base();
        let mut builder = FromNode { types: &mut types, metadata: None };
        let root = builder.node(root, true, false);
        types.root = root;
        types
    }

    /// Types of a built-in kind from its OpenAPI definition; references are `#/…/<name>`. Undefined names are
    /// deduced.
    pub fn from_openapi(definitions: &BTreeMap<String, Value>, name: &str) -> Self {
        let mut types = Self::base();
        let mut builder = FromOpenApi { types: &mut types, definitions, made: HashMap::new() };
        let root = builder.definition(name);
        types.root = root;
        types
    }

    pub(crate) fn root(&self) -> Ref {
        self.root
    }

    pub(crate) fn get(&self, r: Ref) -> &Type {
        self.types.get(r as usize).unwrap_or(&self.types[0])
    }

    fn add(&mut self, ty: Type) -> Ref {
        self.types.push(ty);
        (self.types.len() - 1) as Ref
    }

    /// Whether the map is deduced. Ownership of deduced maps is not reconciled with the types.
    pub(crate) fn is_deduced_map(fields: &Fields) -> bool {
        fields.is_deduced()
    }
}

fn scalar(kind: Scalar) -> Type {
    Type { scalar: Some(kind), ..Type::default() }
}

struct FromNode<'t> {
    types: &'t mut Types,
    metadata: Option<Ref>,
}

impl FromNode<'_> {
    fn node(&mut self, node: &Node, resource: bool, preserve: bool) -> Ref {
        let preserve = preserve || node.preserve_unknown;
        let ty = match node.json_type {
            _ if node.int_or_string => Type {
                scalar: Some(Scalar::Any),
                list: Some(self.list(node, preserve)),
                map: Some(self.map(node, resource, preserve)),
            },
            JsonType::Any => Type {
                scalar: Some(Scalar::Any),
                list: Some(self.list(node, preserve)),
                map: Some(self.map(node, resource, preserve)),
            },
            JsonType::Object => Type { map: Some(self.map(node, resource, preserve)), ..Type::default() },
            JsonType::Array => Type { list: Some(self.list(node, preserve)), ..Type::default() },
            JsonType::Integer | JsonType::Number => scalar(Scalar::Numeric),
            JsonType::Boolean => scalar(Scalar::Boolean),
            JsonType::String => match node.checks.as_ref().and_then(|c| c.format.as_ref()) {
                Some((_, name)) if &**name != "byte" => scalar(Scalar::Any),
                _ => scalar(Scalar::Text),
            },
        };
        self.types.add(ty)
    }

    fn list(&mut self, node: &Node, preserve: bool) -> List {
        let element = node.items.as_deref().map_or(UNTYPED, |items| self.node(items, false, preserve));
        let keys = if node.list_type == ListType::Map { node.map_keys().into() } else { Box::default() };
        List { element, associative: node.list_type != ListType::Atomic, keys, ..List::default() }
    }

    fn map(&mut self, node: &Node, resource: bool, preserve: bool) -> Fields {
        let mut fields: Vec<(Box<str>, Field)> = node
            .properties
            .iter()
            .map(|(name, child)| {
                (
                    name.clone(),
                    Field { ty: self.node(child, false, preserve), default: child.default_value().cloned() },
                )
            })
            .collect();
        if resource || node.embedded {
            let text = self.types.add(scalar(Scalar::Text));
            let metadata = self.metadata();
            for (name, ty) in [("apiVersion", text), ("kind", text), ("metadata", metadata)] {
                fields.retain(|(n, _)| &**n != name);
                fields.push((name.into(), Field { ty, default: None }));
            }
            fields.sort_by(|a, b| a.0.cmp(&b.0));
        }
        let element = match &node.additional {
            AdditionalProperties::Unspecified if preserve || fields.is_empty() => Some(DEDUCED),
            AdditionalProperties::Unspecified | AdditionalProperties::Nothing => None,
            AdditionalProperties::Any => Some(DEDUCED),
            AdditionalProperties::Schema(child) => Some(self.node(child, false, preserve)),
        };
        Fields { fields, element, atomic: node.atomic_map, ..Fields::default() }
    }

    fn metadata(&mut self) -> Ref {
        if let Some(made) = self.metadata {
            return made;
        }
        let types = &mut *self.types;
        let text = types.add(scalar(Scalar::Text));
        let number = types.add(scalar(Scalar::Numeric));
        let flag = types.add(scalar(Scalar::Boolean));
        let any = types.add(scalar(Scalar::Any));
        let record = |fields: &[(&str, Ref)], atomic: bool| {
            let mut fields: Vec<(Box<str>, Field)> =
                fields.iter().map(|(n, ty)| ((*n).into(), Field { ty: *ty, default: None })).collect();
            fields.sort_by(|a, b| a.0.cmp(&b.0));
            Type { map: Some(Fields { fields, atomic, ..Fields::default() }), ..Type::default() }
        };
        let texts = types
            .add(Type { map: Some(Fields { element: Some(text), ..Fields::default() }), ..Type::default() });
        let owner_fields = [
            ("apiVersion", text),
            ("blockOwnerDeletion", flag),
            ("controller", flag),
            ("kind", text),
            ("name", text),
            ("uid", text),
        ];
        let owner = types.add(record(&owner_fields, true));
        let owners =
            List { element: owner, associative: true, keys: Box::new(["uid".into()]), ..List::default() };
        let owners = types.add(Type { list: Some(owners), ..Type::default() });
        let set = types.add(Type {
            list: Some(List { element: text, associative: true, ..List::default() }),
            ..Type::default()
        });
        let atomic =
            types.add(Type { list: Some(List { element: DEDUCED, ..List::default() }), ..Type::default() });
        let fields = [
            ("annotations", texts),
            ("creationTimestamp", any),
            ("deletionGracePeriodSeconds", number),
            ("deletionTimestamp", any),
            ("finalizers", set),
            ("generateName", text),
            ("generation", number),
            ("labels", texts),
            ("managedFields", atomic),
            ("name", text),
            ("namespace", text),
            ("ownerReferences", owners),
            ("resourceVersion", text),
            ("selfLink", text),
            ("uid", text),
        ];
        let made = types.add(record(&fields, false));
        self.metadata = Some(made);
        made
    }
}

struct FromOpenApi<'t> {
    types: &'t mut Types,
    definitions: &'t BTreeMap<String, Value>,
    made: HashMap<String, Ref>,
}

fn reference(schema: &Value) -> Option<&str> {
    let direct = schema.get("$ref").and_then(Value::as_str);
    let wrapped = || {
        schema.get("allOf").and_then(Value::as_array).filter(|a| a.len() == 1)?.first()?.get("$ref")?.as_str()
    };
    direct.or_else(wrapped).and_then(|r| r.rsplit('/').next())
}

impl FromOpenApi<'_> {
    fn definition(&mut self, name: &str) -> Ref {
        if let Some(made) = self.made.get(name) {
            return *made;
        }
        if name.ends_with(".RawExtension") {
            return UNTYPED;
        }
        let Some(schema) = self.definitions.get(name) else { return DEDUCED };
        // Reserve the index first, so that a type may reference itself.
        let place = self.types.add(Type::default());
        self.made.insert(name.to_owned(), place);
        let ty = if name.ends_with(".Quantity") { scalar(Scalar::Any) } else { self.parse(schema) };
        self.types.types[place as usize] = ty;
        place
    }

    fn schema(&mut self, schema: &Value) -> Ref {
        let Some(name) = reference(schema) else {
            let ty = self.parse(schema);
            return self.types.add(ty);
        };
        let made = self.definition(name);
        let map_type = schema.get("x-kubernetes-map-type").and_then(Value::as_str);
        let strategy = schema.get("x-kubernetes-patch-strategy").and_then(Value::as_str).unwrap_or_default();
        if map_type.is_none() && strategy.is_empty() {
            return made;
        }
        // The reference overrides the definition, so it needs a separate type.
        let mut ty = self.types.get(made).clone();
        if let Some(map) = &mut ty.map {
            map.atomic = map_type.map_or(map.atomic, |t| t == "atomic");
            strategies(map, strategy);
        }
        self.types.add(ty)
    }

    fn parse(&mut self, schema: &Value) -> Type {
        match schema.get("type").and_then(Value::as_str).unwrap_or_default() {
            "object" => Type { map: Some(self.map(schema)), ..Type::default() },
            "array" => Type { list: Some(self.list(schema)), ..Type::default() },
            "integer" | "number" => scalar(Scalar::Numeric),
            "boolean" => scalar(Scalar::Boolean),
            "string" => match schema.get("format").and_then(Value::as_str).unwrap_or_default() {
                "" | "byte" => scalar(Scalar::Text),
                _ => scalar(Scalar::Any),
            },
            _ => {
                Type { scalar: Some(Scalar::Any), list: Some(self.list(schema)), map: Some(self.map(schema)) }
            }
        }
    }

    fn list(&mut self, schema: &Value) -> List {
        let element = schema.get("items").map_or(UNTYPED, |items| self.schema(items));
        let text = |key: &str| schema.get(key).and_then(Value::as_str).unwrap_or_default();
        let strategy = text("x-kubernetes-patch-strategy");
        let patch_merge = strategy.split(',').any(|s| s == "merge");
        let patch_key: Option<Box<str>> =
            Some(text("x-kubernetes-patch-merge-key")).filter(|k| !k.is_empty()).map(Into::into);
        let listed = schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array).into_iter().flatten();
        let keys: Box<[Box<str>]> = listed.filter_map(Value::as_str).map(Into::into).collect();
        let (associative, keys) = match text("x-kubernetes-list-type") {
            "set" => (true, Box::default()),
            "map" => (true, keys),
            "atomic" => (false, Box::default()),
            _ => (patch_merge, patch_key.clone().into_iter().filter(|_| patch_merge).collect()),
        };
        List { element, associative, keys, patch_merge, patch_key }
    }

    fn map(&mut self, schema: &Value) -> Fields {
        let properties = schema.get("properties").and_then(Value::as_object);
        let fields: Vec<(Box<str>, Field)> = properties
            .into_iter()
            .flatten()
            .map(|(name, child)| {
                (
                    name.as_str().into(),
                    Field { ty: self.schema(child), default: child.get("default").cloned() },
                )
            })
            .collect();
        let preserve = schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true));
        let element = match schema.get("additionalProperties") {
            None if preserve || fields.is_empty() => Some(DEDUCED),
            None | Some(Value::Bool(false)) => None,
            Some(Value::Bool(true)) => Some(DEDUCED),
            Some(schema) => Some(self.schema(schema)),
        };
        let mut map = Fields {
            fields,
            element,
            atomic: schema.get("x-kubernetes-map-type").is_some_and(|t| t == "atomic"),
            ..Fields::default()
        };
        strategies(
            &mut map,
            schema.get("x-kubernetes-patch-strategy").and_then(Value::as_str).unwrap_or_default(),
        );
        map
    }
}

fn strategies(map: &mut Fields, strategy: &str) {
    map.retain_keys |= strategy.split(',').any(|s| s == "retainKeys");
    map.patch_replace |= strategy.split(',').any(|s| s == "replace");
}

/// The empty map, for an absent operand of a comparison.
pub(crate) fn empty_map() -> &'static Map<String, Value> {
    static EMPTY: std::sync::OnceLock<Map<String, Value>> = std::sync::OnceLock::new();
    EMPTY.get_or_init(Map::new)
}
