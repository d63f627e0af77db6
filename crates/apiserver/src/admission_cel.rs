//! ValidatingAdmissionPolicy: CEL over a request, decided without I/O.
//!
//! A policy is compiled when it is written and shared. Whoever has a request gathers what the policy may look at
//! ([`Inputs`]) and asks for a [`Verdict`]; what a denial means (deny, warn, audit) is for the binding to say.
//! `authorizer` is not offered: an expression that names it is refused with the policy.

use std::cell::RefCell;
use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::schema::cel::check::Names;
use crate::schema::cel::eval::{EvalError, Lazy, Outcome, Run, Scope};
use crate::schema::cel::types::Ty;
use crate::schema::cel::value::{Shape, Val};
use crate::schema::cel::{CALL_MAX, Program};
use crate::schema::error::FieldError;
use crate::schema::node::Node;

/// All expressions of one policy on one request may cost this much.
const BUDGET: u64 = 10_000_000;
/// The conditions that decide whether a policy applies may cost this much.
const MATCH_BUDGET: u64 = 2_500_000;
/// Longest message that an expression may make.
const MESSAGE_MAX: usize = 5 << 10;
/// Longest value of an audit annotation.
const ANNOTATION_MAX: usize = 10 << 10;

/// What a policy may look at. Absent things are `null`.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    /// The object as it would be stored; null for a delete.
    pub object: &'a Value,
    /// The object as it is; null for a create.
    pub old_object: &'a Value,
    /// The AdmissionRequest without its objects: kind, resource, name, namespace, operation, userInfo, options, dryRun.
    pub request: &'a Value,
    /// The parameters that the binding names.
    pub params: &'a Value,
    /// The namespace of the object; null for cluster-scoped ones.
    pub namespace_object: &'a Value,
}

/// One reason to refuse a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// Which validation, for audit; none when a match condition failed.
    pub validation: Option<usize>,
    /// What to say.
    pub message: String,
    /// The reason of the Status: `Invalid` unless the validation says otherwise.
    pub reason: String,
}

impl Denial {
    /// The code that belongs to the reason.
    pub fn code(&self) -> u16 {
        match self.reason.as_str() {
            "Unauthorized" => 401,
            "Forbidden" => 403,
            "RequestEntityTooLarge" => 413,
            _ => 422,
        }
    }
}

/// What a policy makes of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Reasons to refuse, in the order of the validations; none admits.
    pub denials: Vec<Denial>,
    /// Audit annotations by key.
    pub annotations: Vec<(String, String)>,
}

#[derive(Debug)]
struct Validation {
    expression: Program,
    source: String,
    message: String,
    message_expression: Option<Program>,
    reason: String,
}

/// A policy ready to judge.
#[derive(Debug)]
pub struct Policy {
    conditions: Vec<Program>,
    variables: Vec<(String, Program)>,
    validations: Vec<Validation>,
    annotations: Vec<(String, Program)>,
    /// An expression that cannot be evaluated admits instead of refusing.
    ignores_failures: bool,
}

/// Does a request meet the match conditions of a webhook or policy?
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Matching {
    /// All hold.
    Yes,
    /// One does not.
    No,
    /// None says no, and some cannot be evaluated.
    Failed(String),
}

/// The schema of `request`, as far as expressions are held to it.
fn request_node() -> &'static Node {
    static NODE: std::sync::OnceLock<Node> = std::sync::OnceLock::new();
    NODE.get_or_init(|| {
        let text = json!({"type": "string"});
        let kind = json!({"type": "object", "properties": {"group": text, "version": text, "kind": text}});
        let resource = json!({"type": "object", "properties": {"group": text, "version": text, "resource": text}});
        let user = json!({"type": "object", "properties": {"username": text, "uid": text, "groups": {"type": "array", "items": text},
            "extra": {"type": "object", "additionalProperties": {"type": "array", "items": text}}}});
        let open = json!({"x-kubernetes-int-or-string": true});
        let schema = json!({"type": "object", "properties": {"kind": kind, "requestKind": kind, "resource": resource, "requestResource": resource, "subResource": text,
            "requestSubResource": text, "name": text, "namespace": text, "operation": text, "userInfo": user, "dryRun": {"type": "boolean"}, "options": open, "uid": text}});
        Node::parse(&schema).unwrap_or_default()
    })
}

/// The schema of `variables`: each is known by name and nothing else.
fn variables_node(names: &[&str]) -> Node {
    let properties: serde_json::Map<String, Value> =
        names.iter().map(|n| ((*n).to_owned(), json!({"x-kubernetes-int-or-string": true}))).collect();
    Node::parse(&json!({"type": "object", "properties": properties})).unwrap_or_default()
}

/// Compiles expressions and gathers what is wrong with them.
struct Compiler {
    has_params: bool,
    wrong: Vec<FieldError>,
}

impl Compiler {
    /// Compiles one expression that must be of one of `wanted`. `variables` are those it may use, if any at all.
    fn compile(
        &mut self,
        source: &str,
        field: String,
        wanted: &[&str],
        variables: Option<&[&str]>,
    ) -> Option<Program> {
        if source.trim().is_empty() {
            self.wrong.push(FieldError::required(field, "expression is not specified"));
            return None;
        }
        let variables_node = variables.filter(|v| !v.is_empty()).map(variables_node);
        let names = Names::new(None, "object", Ty::Dyn);
        let names = Names::new(Some(&names), "oldObject", Ty::Dyn);
        let names = Names::new(Some(&names), "namespaceObject", Ty::Dyn);
        let names = Names::new(Some(&names), "request", Ty::Object(request_node(), false));
        let with_params = Names::new(Some(&names), "params", Ty::Dyn);
        let names = if self.has_params { &with_params } else { &names };
        let with_variables =
            variables_node.as_ref().map(|node| Names::new(Some(names), "variables", Ty::Object(node, false)));
        let names = with_variables.as_ref().unwrap_or(names);
        let checked = Program::parse(source).and_then(|program| {
            let found = program.check(names)?;
            Ok((found.ty, program))
        });
        match checked {
            Err(why) => {
                self.wrong.push(FieldError::invalid(field, source, format!("compilation failed: {why}")));
                None
            }
            Ok((ty, program)) => {
                let name = ty.name();
                // A call may return what it likes; a plain look at something unknown is no answer.
                let unknown = name == "dyn" && !program.is_plain_look();
                if wanted.is_empty() || wanted.contains(&name.as_str()) || unknown {
                    return Some(program);
                }
                self.wrong.push(FieldError::invalid(
                    field,
                    source,
                    format!("must evaluate to {} but got {name}", wanted.join(" or ")),
                ));
                None
            }
        }
    }
}

fn items<'v>(spec: &'v Value, key: &str) -> impl Iterator<Item = (usize, &'v Value)> {
    spec.get(key).and_then(Value::as_array).into_iter().flatten().enumerate()
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Compiles the match conditions of a webhook; `at` is where they stand, e.g. `webhooks[0].matchConditions`.
pub fn compile_conditions(conditions: &Value, at: &str) -> Result<Conditions, Vec<FieldError>> {
    let mut compiler = Compiler { has_params: false, wrong: Vec::new() };
    let programs = conditions.as_array().into_iter().flatten().enumerate();
    let programs = programs
        .filter_map(|(i, c)| {
            compiler.compile(text(c, "expression"), format!("{at}[{i}].expression"), &["bool"], None)
        })
        .collect();
    if compiler.wrong.is_empty() { Ok(Conditions { programs }) } else { Err(compiler.wrong) }
}

/// Match conditions ready to ask.
#[derive(Debug, Default)]
pub struct Conditions {
    programs: Vec<Program>,
}

impl Conditions {
    /// Does the request meet them?
    pub fn matches(&self, inputs: &Inputs<'_>) -> Matching {
        matches_all(&self.programs, inputs)
    }
}

impl Policy {
    /// Compiles a ValidatingAdmissionPolicy, or says what is wrong with its expressions.
    pub fn compile(policy: &Value) -> Result<Self, Vec<FieldError>> {
        let spec = policy.get("spec").unwrap_or(&Value::Null);
        let mut compiler =
            Compiler { has_params: spec.get("paramKind").is_some_and(Value::is_object), wrong: Vec::new() };
        let compiled = Self::compile_with(spec, &mut compiler);
        if compiler.wrong.is_empty() { Ok(compiled) } else { Err(compiler.wrong) }
    }

    fn compile_with(spec: &Value, compiler: &mut Compiler) -> Self {
        let conditions = items(spec, "matchConditions")
            .filter_map(|(i, c)| {
                compiler.compile(
                    text(c, "expression"),
                    format!("spec.matchConditions[{i}].expression"),
                    &["bool"],
                    None,
                )
            })
            .collect();
        let mut variables: Vec<(String, Program)> = Vec::new();
        let mut known: Vec<&str> = Vec::new();
        for (i, variable) in items(spec, "variables") {
            // A variable may use those before it.
            if let Some(program) = compiler.compile(
                text(variable, "expression"),
                format!("spec.variables[{i}].expression"),
                &[],
                Some(&known),
            ) {
                variables.push((text(variable, "name").to_owned(), program));
            }
            known.push(text(variable, "name"));
        }
        let mut validations = Vec::new();
        for (i, validation) in items(spec, "validations") {
            let at = |key: &str| format!("spec.validations[{i}].{key}");
            let source = text(validation, "expression");
            let expression = compiler.compile(source, at("expression"), &["bool"], Some(&known));
            let made = text(validation, "messageExpression");
            let message_expression = if made.is_empty() {
                None
            } else {
                compiler.compile(made, at("messageExpression"), &["string"], Some(&known))
            };
            if let Some(expression) = expression {
                let reason = Some(text(validation, "reason"))
                    .filter(|r| !r.is_empty())
                    .unwrap_or("Invalid")
                    .to_owned();
                let message = text(validation, "message").trim().to_owned();
                validations.push(Validation {
                    expression,
                    source: source.trim().to_owned(),
                    message,
                    message_expression,
                    reason,
                });
            }
        }
        let annotations = items(spec, "auditAnnotations")
            .filter_map(|(i, a)| {
                let field = format!("spec.auditAnnotations[{i}].valueExpression");
                Some((
                    text(a, "key").to_owned(),
                    compiler.compile(
                        text(a, "valueExpression"),
                        field,
                        &["string", "null_type"],
                        Some(&known),
                    )?,
                ))
            })
            .collect();
        Self {
            conditions,
            variables,
            validations,
            annotations,
            ignores_failures: text(spec, "failurePolicy") == "Ignore",
        }
    }

    /// Does an expression that fails admit the request?
    pub fn ignores_failures(&self) -> bool {
        self.ignores_failures
    }

    /// Judges a request.
    pub fn judge(&self, inputs: &Inputs<'_>) -> Verdict {
        match matches_all(&self.conditions, inputs) {
            Matching::No => return Verdict::default(),
            Matching::Failed(why) if !self.ignores_failures => {
                return Verdict {
                    denials: vec![Denial { validation: None, message: why, reason: "Invalid".to_owned() }],
                    annotations: Vec::new(),
                };
            }
            Matching::Failed(_) => return Verdict::default(),
            Matching::Yes => {}
        }
        let variables = Variables { policy: self, inputs, made: RefCell::new(BTreeMap::new()) };
        let mut verdict = Verdict::default();
        let mut budget = BUDGET;
        for (i, validation) in self.validations.iter().enumerate() {
            let denied = match evaluate(&validation.expression, inputs, Some(&variables), &mut budget) {
                Ok(Val::Bool(true)) => continue,
                Ok(_) => Denial {
                    validation: Some(i),
                    message: validation.say(inputs, &variables, &mut budget),
                    reason: validation.reason.clone(),
                },
                Err(_) if self.ignores_failures => continue,
                Err(why) => Denial {
                    validation: Some(i),
                    message: failed(&validation.source, &why),
                    reason: "Invalid".to_owned(),
                },
            };
            verdict.denials.push(denied);
        }
        for (key, program) in &self.annotations {
            match evaluate(program, inputs, Some(&variables), &mut budget) {
                Ok(Val::Text(value)) if !value.trim().is_empty() => {
                    let value = value.trim();
                    let end = (0..=ANNOTATION_MAX.min(value.len()))
                        .rev()
                        .find(|i| value.is_char_boundary(*i))
                        .unwrap_or(0);
                    verdict.annotations.push((key.clone(), value[..end].to_owned()));
                }
                Ok(_) => {}
                Err(_) if self.ignores_failures => {}
                Err(why) => verdict.denials.push(Denial {
                    validation: None,
                    message: failed(program.source(), &why),
                    reason: "Invalid".to_owned(),
                }),
            }
        }
        verdict
    }
}

impl Validation {
    /// The message of a broken validation: made, given, or the expression itself.
    fn say<'a>(&'a self, inputs: &Inputs<'a>, variables: &dyn Lazy<'a>, budget: &mut u64) -> String {
        if let Some(program) = &self.message_expression
            && let Ok(Val::Text(made)) = evaluate(program, inputs, Some(variables), budget)
        {
            let made = made.trim();
            if !made.is_empty() && !made.contains('\n') && made.len() <= MESSAGE_MAX {
                return made.to_owned();
            }
        }
        if self.message.is_empty() {
            format!("failed expression: {}", self.source)
        } else {
            self.message.clone()
        }
    }
}

fn failed(source: &str, why: &EvalError) -> String {
    match why {
        EvalError::TooCostly => {
            "validation failed due to running out of cost budget, no further validation rules will be run"
                .to_owned()
        }
        why => format!("expression '{source}' resulted in error: {why}"),
    }
}

fn matches_all(conditions: &[Program], inputs: &Inputs<'_>) -> Matching {
    let mut budget = MATCH_BUDGET;
    let mut failures = Vec::new();
    for condition in conditions {
        match evaluate(condition, inputs, None, &mut budget) {
            Ok(Val::Bool(false)) => return Matching::No,
            Ok(_) => {}
            Err(why) => failures.push(failed(condition.source(), &why)),
        }
    }
    match failures.as_slice() {
        [] => Matching::Yes,
        [one] => Matching::Failed(one.clone()),
        many => Matching::Failed(format!("[{}]", many.join(", "))),
    }
}

fn evaluate<'a>(
    program: &'a Program,
    inputs: &Inputs<'a>,
    variables: Option<&dyn Lazy<'a>>,
    budget: &mut u64,
) -> Outcome<'a> {
    let of = |value: &'a Value| Val::of(value, Shape::Unknown);
    let scope = Scope::new(None, "object", of(inputs.object));
    let scope = Scope::new(Some(&scope), "oldObject", of(inputs.old_object));
    let scope = Scope::new(Some(&scope), "request", of(inputs.request));
    let scope = Scope::new(Some(&scope), "params", of(inputs.params));
    let scope = Scope::new(Some(&scope), "namespaceObject", of(inputs.namespace_object));
    let limit = CALL_MAX.min(*budget);
    let run = match variables {
        Some(variables) => Run::with_variables(limit, variables),
        None => Run::new(limit),
    };
    let outcome = run.eval(program.expr(), &scope);
    *budget = budget.saturating_sub(run.spent());
    outcome
}

/// Variables of a policy on one request: each is made once, when it is first used.
struct Variables<'p, 'a> {
    policy: &'a Policy,
    inputs: &'p Inputs<'a>,
    made: RefCell<BTreeMap<usize, Outcome<'a>>>,
}

impl<'a> Lazy<'a> for Variables<'_, 'a> {
    fn get(&self, name: &str, limit: u64) -> Option<(Outcome<'a>, u64)> {
        let at = self.policy.variables.iter().position(|(n, _)| n == name)?;
        if let Some(made) = self.made.borrow().get(&at) {
            return Some((made.clone(), 0));
        }
        let (_, program) = self.policy.variables.get(at)?;
        // It can only use those before it: checked when it was compiled, so this ends.
        let mut left = limit;
        let outcome = evaluate(program, self.inputs, Some(self), &mut left);
        let outcome = outcome.map_err(|why| match why {
            EvalError::TooCostly => why,
            why => EvalError::Other(format!("composited variable \"{name}\" fails to evaluate: {why}")),
        });
        self.made.borrow_mut().insert(at, outcome.clone());
        Some((outcome, limit - left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(spec: Value) -> Policy {
        Policy::compile(&json!({"spec": spec})).unwrap()
    }

    fn refused(spec: Value) -> Vec<String> {
        Policy::compile(&json!({"spec": spec})).unwrap_err().iter().map(ToString::to_string).collect()
    }

    fn judge(policy: &Policy, object: Value) -> Vec<(String, u16)> {
        let request = json!({"operation": "CREATE", "userInfo": {"username": "jo", "groups": ["dev"]}, "namespace": "n"});
        let namespace = json!({"metadata": {"labels": {"env": "prod"}}});
        let params = json!({"max": 2});
        let inputs = Inputs {
            object: &object,
            old_object: &Value::Null,
            request: &request,
            params: &params,
            namespace_object: &namespace,
        };
        policy.judge(&inputs).denials.iter().map(|d| (d.message.clone(), d.code())).collect()
    }

    #[test]
    fn validations_deny_with_their_message_and_reason() {
        let policy = policy(
            json!({"variables": [{"name": "n", "expression": "object.data.size()"}, {"name": "twice", "expression": "variables.n * 2"}], "validations": [
            {"expression": "variables.twice < 4", "message": "too many"},
            {"expression": "!('bad' in object.data)", "reason": "Forbidden", "messageExpression": "'bad in ' + object.metadata.name"},
            {"expression": "!has(object.data.k1) || object.data.k1.size() < 3"}]}),
        );
        assert!(judge(&policy, json!({"metadata": {"name": "x"}, "data": {"a": "1"}})).is_empty());
        assert_eq!(
            judge(&policy, json!({"metadata": {"name": "x"}, "data": {"a": "1", "b": "2"}})),
            [("too many".to_owned(), 422)]
        );
        assert_eq!(
            judge(&policy, json!({"metadata": {"name": "x"}, "data": {"bad": "1"}})),
            [("bad in x".to_owned(), 403)]
        );
        assert_eq!(
            judge(&policy, json!({"metadata": {"name": "x"}, "data": {"k1": "abcd"}})),
            [("failed expression: !has(object.data.k1) || object.data.k1.size() < 3".to_owned(), 422)]
        );
    }

    #[test]
    fn a_policy_sees_the_request_its_parameters_and_the_namespace() {
        let policy = policy(json!({"paramKind": {"kind": "K"}, "validations": [
            {"expression": "request.userInfo.username == 'jo' && 'dev' in request.userInfo.groups && request.operation == 'CREATE'"},
            {"expression": "object.size <= params.max"},
            {"expression": "namespaceObject.metadata.labels['env'] == 'prod'"},
            {"expression": "oldObject == null"}]}));
        assert!(judge(&policy, json!({"size": 2})).is_empty());
        assert_eq!(
            judge(&policy, json!({"size": 3})),
            [("failed expression: object.size <= params.max".to_owned(), 422)]
        );
    }

    #[test]
    fn an_expression_that_fails_denies_or_is_ignored() {
        let spec = |failure: &str| json!({"failurePolicy": failure, "validations": [{"expression": "object.none == 1"}]});
        assert_eq!(
            judge(&policy(spec("Fail")), json!({})),
            [("expression 'object.none == 1' resulted in error: no such key: none".to_owned(), 422)]
        );
        assert!(judge(&policy(spec("Ignore")), json!({})).is_empty());
        let lazy = json!({"variables": [{"name": "bad", "expression": "object.none.x"}], "validations": [{"expression": "true || variables.bad == 1"}]});
        assert!(judge(&policy(lazy), json!({})).is_empty(), "a variable that is not needed is not made");
    }

    #[test]
    fn match_conditions_decide_whether_a_policy_applies() {
        let spec = |condition: &str| json!({"matchConditions": [{"name": "c", "expression": condition}], "validations": [{"expression": "false", "message": "no"}]});
        assert!(judge(&policy(spec("object.kind == 'Other'")), json!({"kind": "A"})).is_empty());
        assert_eq!(
            judge(&policy(spec("object.kind == 'A'")), json!({"kind": "A"})),
            [("no".to_owned(), 422)]
        );
        assert_eq!(
            judge(&policy(spec("object.none == 'A'")), json!({}))[0].0,
            "expression 'object.none == 'A'' resulted in error: no such key: none"
        );
    }

    #[test]
    fn audit_annotations_carry_text() {
        let policy = policy(
            json!({"validations": [{"expression": "true"}], "auditAnnotations": [{"key": "size", "valueExpression": "'size ' + string(object.size)"}]}),
        );
        let object = json!({"size": 3});
        let inputs = Inputs {
            object: &object,
            old_object: &Value::Null,
            request: &Value::Null,
            params: &Value::Null,
            namespace_object: &Value::Null,
        };
        assert_eq!(policy.judge(&inputs).annotations, [("size".to_owned(), "size 3".to_owned())]);
    }

    #[test]
    fn expressions_that_cannot_be_right_are_refused_with_the_policy() {
        for (validation, words) in [
            (
                json!({"expression": "foo"}),
                "spec.validations[0].expression: Invalid value: \"foo\": compilation failed: ERROR: <input>:1:1: undeclared reference to 'foo' (in container '')\n | foo\n | ^",
            ),
            (
                json!({"expression": "object.x"}),
                "spec.validations[0].expression: Invalid value: \"object.x\": must evaluate to bool but got dyn",
            ),
            (
                json!({"expression": "'a'"}),
                "spec.validations[0].expression: Invalid value: \"'a'\": must evaluate to bool but got string",
            ),
            (
                json!({"expression": "true", "messageExpression": "1"}),
                "spec.validations[0].messageExpression: Invalid value: \"1\": must evaluate to string but got int",
            ),
            (
                json!({"expression": ""}),
                "spec.validations[0].expression: Required value: expression is not specified",
            ),
            (
                json!({"expression": "variables.z == 1"}),
                "spec.validations[0].expression: Invalid value: \"variables.z == 1\": compilation failed: ERROR: <input>:1:1: undeclared reference to 'variables' (in container '')\n | variables.z == 1\n | ^",
            ),
            (
                json!({"expression": "request.bogus == 1"}),
                "spec.validations[0].expression: Invalid value: \"request.bogus == 1\": compilation failed: ERROR: <input>:1:8: undefined field 'bogus'\n | request.bogus == 1\n | .......^",
            ),
            (
                json!({"expression": "params.x == 1"}),
                "spec.validations[0].expression: Invalid value: \"params.x == 1\": compilation failed: ERROR: <input>:1:1: undeclared reference to 'params' (in container '')\n | params.x == 1\n | ^",
            ),
        ] {
            assert_eq!(refused(json!({"validations": [validation]})), [words]);
        }
    }

    #[test]
    fn conditions_of_webhooks_are_asked_in_the_same_way() {
        let conditions = compile_conditions(
            &json!([{"name": "c", "expression": "request.namespace != 'kube-system'"}]),
            "webhooks[0].matchConditions",
        )
        .unwrap();
        let request = json!({"namespace": "kube-system"});
        let inputs = Inputs {
            object: &Value::Null,
            old_object: &Value::Null,
            request: &request,
            params: &Value::Null,
            namespace_object: &Value::Null,
        };
        assert_eq!(conditions.matches(&inputs), Matching::No);
        let wrong =
            compile_conditions(&json!([{"name": "c", "expression": "1"}]), "webhooks[0].matchConditions")
                .unwrap_err();
        assert_eq!(
            wrong[0].to_string(),
            "webhooks[0].matchConditions[0].expression: Invalid value: \"1\": must evaluate to bool but got int"
        );
    }
}
