//! ValidatingAdmissionPolicy: evaluation of CEL expressions on a request, without I/O.
//!
//! A policy is compiled once and shared. The caller provides the [`PolicyInputs`] of a request and gets a
//! [`PolicyDecision`]; the binding determines the effect of a denial (deny, warn, audit). `authorizer` is not
//! supported: a policy that references it is rejected.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::cel::check::TypeEnv;
use crate::cel::cost::{Budget, DEPTH_MAX, MEMORY_MAX};
use crate::cel::eval::{Activation, EvalError, EvalResult, Evaluation, LazyVariables};
use crate::cel::types::Ty;
use crate::cel::value::{Val, ValueSchema};
use crate::cel::{CALL_MAX, Program};
use crate::error::ValidationError;
use crate::schema::node::Node;

/// Cost limit of all expressions of one policy on one request.
const BUDGET: u64 = 10_000_000;
/// Cost limit of the match conditions.
const MATCH_BUDGET: u64 = 2_500_000;
/// Maximum length of a message computed by `messageExpression`, in bytes.
const MESSAGE_MAX: usize = 5 << 10;
/// Maximum length of an audit annotation's value, in bytes.
const ANNOTATION_MAX: usize = 10 << 10;

/// The variables of a policy's expressions. Absent values are `null`.
#[derive(Debug, Clone, Copy)]
pub struct PolicyInputs<'a> {
    /// The new object; null for a delete.
    pub object: &'a Value,
    /// The existing object; null for a create.
    pub old_object: &'a Value,
    /// The AdmissionRequest without its objects: kind, resource, name, namespace, operation, userInfo,
    /// options, dryRun.
    pub request: &'a Value,
    /// The parameter object that the binding references.
    pub params: &'a Value,
    /// The namespace of the object; null for cluster-scoped objects.
    pub namespace_object: &'a Value,
}

/// One reason to deny a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// Index of the validation, for audit; `None` if a match condition failed.
    pub validation: Option<usize>,
    /// The message of the Status.
    pub message: String,
    /// The reason of the Status; `Invalid` unless the validation sets another.
    pub reason: String,
}

impl Denial {
    /// The HTTP status of the reason.
    pub fn code(&self) -> u16 {
        match self.reason.as_str() {
            "Unauthorized" => 401,
            "Forbidden" => 403,
            "RequestEntityTooLarge" => 413,
            _ => 422,
        }
    }
}

/// The decision of a policy on a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PolicyDecision {
    /// Denials in the order of the validations; empty if the policy admits the request.
    pub denials: Vec<Denial>,
    /// Audit annotations by key.
    pub annotations: Vec<(String, String)>,
    /// An expression exceeded its limit of cost or memory.
    pub exhausted: bool,
}

#[derive(Debug)]
struct Validation {
    expression: Program,
    source: String,
    message: String,
    message_expression: Option<Program>,
    reason: String,
}

/// A compiled ValidatingAdmissionPolicy.
#[derive(Debug)]
pub struct CompiledPolicy {
    conditions: Vec<Program>,
    variables: Vec<(String, Program)>,
    validations: Vec<Validation>,
    annotations: Vec<(String, Program)>,
    /// `failurePolicy: Ignore`: an evaluation error does not deny the request.
    ignores_failures: bool,
}

/// The result of the match conditions of a webhook or policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MatchResult {
    /// All conditions are true.
    Yes,
    /// A condition is false.
    No,
    /// No condition is false, and some could not be evaluated.
    Failed(String),
}

/// The schema of `request`, for type checking.
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

/// The schema of `variables`: names without types.
fn variables_node(env: &[&str]) -> Node {
    let properties: serde_json::Map<String, Value> =
        env.iter().map(|n| ((*n).to_owned(), json!({"x-kubernetes-int-or-string": true}))).collect();
    Node::parse(&json!({"type": "object", "properties": properties})).unwrap_or_default()
}

/// Compiles expressions and collects validation errors.
struct Compiler {
    has_params: bool,
    errors: Vec<ValidationError>,
}

impl Compiler {
    /// Compiles one expression whose type must be one of `wanted`. `variables` are the variables in scope, if
    /// any.
    fn compile(
        &mut self,
        source: &str,
        field: String,
        wanted: &[&str],
        variables: Option<&[&str]>,
    ) -> Option<Program> {
        if source.trim().is_empty() {
            self.errors.push(ValidationError::required(field, "expression is not specified"));
            return None;
        }
        let variables_node = variables.filter(|v| !v.is_empty()).map(variables_node);
        let env = TypeEnv::new(None, "object", Ty::Dyn);
        let env = TypeEnv::new(Some(&env), "oldObject", Ty::Dyn);
        let env = TypeEnv::new(Some(&env), "namespaceObject", Ty::Dyn);
        let env = TypeEnv::new(Some(&env), "request", Ty::Object(request_node(), false));
        let with_params = TypeEnv::new(Some(&env), "params", Ty::Dyn);
        let env = if self.has_params { &with_params } else { &env };
        let with_variables =
            variables_node.as_ref().map(|node| TypeEnv::new(Some(env), "variables", Ty::Object(node, false)));
        let env = with_variables.as_ref().unwrap_or(env);
        let checked = Program::parse(source).and_then(|program| {
            let found = program.check(env)?;
            Ok((found.ty, program))
        });
        match checked {
            Err(why) => {
                self.errors.push(ValidationError::invalid(
                    field,
                    source,
                    format!("compilation failed: {why}"),
                ));
                None
            }
            Ok((ty, program)) => {
                let name = ty.name();
                // As in Kubernetes, a dynamic type is accepted from a call but not from a plain reference.
                let unknown = name == "dyn" && !program.is_reference();
                if wanted.is_empty() || wanted.contains(&name.as_str()) || unknown {
                    return Some(program);
                }
                self.errors.push(ValidationError::invalid(
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

/// Compiles the match conditions of a webhook; `at` is their path, e.g. `webhooks[0].matchConditions`.
pub fn compile_match_conditions(
    conditions: &Value,
    at: &str,
) -> Result<MatchConditions, Vec<ValidationError>> {
    let mut compiler = Compiler { has_params: false, errors: Vec::new() };
    let programs = conditions.as_array().into_iter().flatten().enumerate();
    let programs = programs
        .filter_map(|(i, c)| {
            compiler.compile(text(c, "expression"), format!("{at}[{i}].expression"), &["bool"], None)
        })
        .collect();
    if compiler.errors.is_empty() { Ok(MatchConditions { programs }) } else { Err(compiler.errors) }
}

/// Compiled match conditions of a webhook.
#[derive(Debug, Default)]
pub struct MatchConditions {
    programs: Vec<Program>,
}

impl MatchConditions {
    /// Evaluates the conditions on a request.
    pub fn matches(&self, inputs: &PolicyInputs<'_>) -> MatchResult {
        matches_all(&self.programs, inputs).0
    }
}

impl CompiledPolicy {
    /// Compiles a ValidatingAdmissionPolicy, or returns the errors of its expressions.
    pub fn compile(policy: &Value) -> Result<Self, Vec<ValidationError>> {
        let spec = policy.get("spec").unwrap_or(&Value::Null);
        let mut compiler =
            Compiler { has_params: spec.get("paramKind").is_some_and(Value::is_object), errors: Vec::new() };
        let compiled = Self::compile_with(spec, &mut compiler);
        if compiler.errors.is_empty() { Ok(compiled) } else { Err(compiler.errors) }
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
            // A variable may reference earlier variables.
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
            let generated = text(validation, "messageExpression");
            let message_expression = if generated.is_empty() {
                None
            } else {
                compiler.compile(generated, at("messageExpression"), &["string"], Some(&known))
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

    /// Evaluates the policy on a request.
    pub fn evaluate(&self, inputs: &PolicyInputs<'_>) -> PolicyDecision {
        let (matched, exhausted) = matches_all(&self.conditions, inputs);
        let mut decision = PolicyDecision { exhausted, ..PolicyDecision::default() };
        match matched {
            MatchResult::Failed(message) if !self.ignores_failures => {
                let denial = Denial { validation: None, message, reason: "Invalid".to_owned() };
                return PolicyDecision { denials: vec![denial], ..decision };
            }
            MatchResult::No | MatchResult::Failed(_) => return decision,
            MatchResult::Yes => {}
        }
        let variables = Variables {
            policy: self,
            inputs,
            generated: RefCell::default(),
            memory: Cell::default(),
            exhausted: Cell::new(exhausted),
        };
        let mut budget = BUDGET;
        for (i, validation) in self.validations.iter().enumerate() {
            let denied = match evaluate(&validation.expression, inputs, &variables, &mut budget) {
                Ok(Val::Bool(true)) => continue,
                Ok(_) => Denial {
                    validation: Some(i),
                    message: validation.denial_message(inputs, &variables, &mut budget),
                    reason: validation.reason.clone(),
                },
                Err(_) if self.ignores_failures => continue,
                Err(why) => Denial {
                    validation: Some(i),
                    message: evaluation_error(&validation.source, &why),
                    reason: "Invalid".to_owned(),
                },
            };
            decision.denials.push(denied);
        }
        for (key, program) in &self.annotations {
            match evaluate(program, inputs, &variables, &mut budget) {
                Ok(Val::Text(value)) if !value.trim().is_empty() => {
                    let value = value.trim();
                    let end = (0..=ANNOTATION_MAX.min(value.len()))
                        .rev()
                        .find(|i| value.is_char_boundary(*i))
                        .unwrap_or(0);
                    decision.annotations.push((key.clone(), value[..end].to_owned()));
                }
                Ok(_) => {}
                Err(_) if self.ignores_failures => {}
                Err(why) => decision.denials.push(Denial {
                    validation: None,
                    message: evaluation_error(program.source(), &why),
                    reason: "Invalid".to_owned(),
                }),
            }
        }
        decision.exhausted = variables.exhausted.get();
        decision
    }
}

impl Validation {
    /// The message of a failed validation: from `messageExpression`, `message`, or the expression itself.
    fn denial_message<'a>(
        &'a self,
        inputs: &PolicyInputs<'a>,
        variables: &Variables<'_, 'a>,
        budget: &mut u64,
    ) -> String {
        if let Some(program) = &self.message_expression
            && let Ok(Val::Text(generated)) = evaluate(program, inputs, variables, budget)
        {
            let generated = generated.trim();
            if !generated.is_empty() && !generated.contains('\n') && generated.len() <= MESSAGE_MAX {
                return generated.to_owned();
            }
        }
        if self.message.is_empty() {
            format!("failed expression: {}", self.source)
        } else {
            self.message.clone()
        }
    }
}

fn evaluation_error(source: &str, why: &EvalError) -> String {
    match why {
        EvalError::TooCostly => {
            "validation failed due to running out of cost budget, no further validation rules will be run"
                .to_owned()
        }
        why => format!("expression '{source}' resulted in error: {why}"),
    }
}

/// The result of match conditions, and whether one of them exceeded its limit.
fn matches_all(conditions: &[Program], inputs: &PolicyInputs<'_>) -> (MatchResult, bool) {
    let mut budget = MATCH_BUDGET;
    let mut exhausted = false;
    let mut failures = Vec::new();
    for condition in conditions {
        let (result, used) =
            run(condition, inputs, None, Budget { cost: CALL_MAX.min(budget), memory: MEMORY_MAX });
        budget = budget.saturating_sub(used.cost);
        match result {
            Ok(Val::Bool(false)) => return (MatchResult::No, exhausted),
            Ok(_) => {}
            Err(why) => {
                exhausted |= why.is_limit();
                failures.push(evaluation_error(condition.source(), &why));
            }
        }
    }
    let result = match failures.as_slice() {
        [] => MatchResult::Yes,
        [one] => MatchResult::Failed(one.clone()),
        many => MatchResult::Failed(format!("[{}]", many.join(", "))),
    };
    (result, exhausted)
}

/// Evaluates an expression of a policy; the cost limit of an expression applies within the `budget` of the
/// policy. The variables that are already evaluated stay in memory.
fn evaluate<'a>(
    program: &'a Program,
    inputs: &PolicyInputs<'a>,
    variables: &Variables<'_, 'a>,
    budget: &mut u64,
) -> EvalResult<'a> {
    let memory = MEMORY_MAX.saturating_sub(variables.memory.get());
    let (result, used) =
        run(program, inputs, Some(variables), Budget { cost: CALL_MAX.min(*budget), memory });
    *budget = budget.saturating_sub(used.cost);
    if result.as_ref().is_err_and(EvalError::is_limit) {
        variables.exhausted.set(true);
    }
    result
}

/// Evaluates an expression on the inputs of a policy, and returns what it used of the limit.
fn run<'a>(
    program: &'a Program,
    inputs: &PolicyInputs<'a>,
    variables: Option<&dyn LazyVariables<'a>>,
    limit: Budget,
) -> (EvalResult<'a>, Budget) {
    let of = |value: &'a Value| Val::of(value, ValueSchema::Unknown);
    let scope = Activation::new(None, "object", of(inputs.object));
    let scope = Activation::new(Some(&scope), "oldObject", of(inputs.old_object));
    let scope = Activation::new(Some(&scope), "request", of(inputs.request));
    let scope = Activation::new(Some(&scope), "params", of(inputs.params));
    let scope = Activation::new(Some(&scope), "namespaceObject", of(inputs.namespace_object));
    let evaluation = Evaluation::new(program, limit, variables);
    let result = evaluation.run(&scope);
    (result, evaluation.used())
}

/// The variables of a policy on one request. Each is evaluated once, on first use.
struct Variables<'p, 'a> {
    policy: &'a CompiledPolicy,
    inputs: &'p PolicyInputs<'a>,
    generated: RefCell<BTreeMap<usize, EvalResult<'a>>>,
    /// Memory that the evaluated variables take.
    memory: Cell<u64>,
    /// An expression exceeded its limit.
    exhausted: Cell<bool>,
}

impl<'a> LazyVariables<'a> for Variables<'_, 'a> {
    fn get(&self, name: &str, limit: Budget) -> Option<(EvalResult<'a>, Budget)> {
        let at = self.policy.variables.iter().position(|(n, _)| n == name)?;
        if let Some(generated) = self.generated.borrow().get(&at) {
            return Some((generated.clone(), Budget::default()));
        }
        let (_, program) = self.policy.variables.get(at)?;
        // A variable references only earlier variables (checked at compilation), so the recursion ends.
        let before = self.memory.get();
        let (result, mut used) = run(program, self.inputs, Some(self), limit);
        // What the evaluation used includes the variables that it evaluated first.
        self.memory.set(before.saturating_add(used.memory));
        let result = result.and_then(|value| nested(value, &mut used)).map_err(|why| match why {
            why if why.is_limit() => why,
            why => EvalError::Other(format!("composited variable \"{name}\" fails to evaluate: {why}")),
        });
        self.generated.borrow_mut().insert(at, result.clone());
        Some((result, used))
    }
}

/// Rejects a value in which lists and maps nest too deeply, and charges for the check. Variables can nest
/// other variables any number of times.
fn nested<'a>(value: Val<'a>, used: &mut Budget) -> EvalResult<'a> {
    if !matches!(value, Val::List(_) | Val::Map(_) | Val::Optional(Some(_))) {
        return Ok(value);
    }
    let extent = value.extent(MEMORY_MAX).ok_or(EvalError::TooLarge)?;
    used.cost = used.cost.saturating_add(extent.nodes / 10);
    if value.depth() > DEPTH_MAX {
        return Err(EvalError::Other(format!("the value has more than {DEPTH_MAX} levels")));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(spec: Value) -> CompiledPolicy {
        CompiledPolicy::compile(&json!({"spec": spec})).unwrap()
    }

    fn rejected(spec: Value) -> Vec<String> {
        CompiledPolicy::compile(&json!({"spec": spec})).unwrap_err().iter().map(ToString::to_string).collect()
    }

    fn denials(policy: &CompiledPolicy, object: Value) -> Vec<(String, u16)> {
        let request = json!({"operation": "CREATE", "userInfo": {"username": "jo", "groups": ["dev"]}, "namespace": "n"});
        let namespace = json!({"metadata": {"labels": {"env": "prod"}}});
        let params = json!({"max": 2});
        let inputs = PolicyInputs {
            object: &object,
            old_object: &Value::Null,
            request: &request,
            params: &params,
            namespace_object: &namespace,
        };
        policy.evaluate(&inputs).denials.iter().map(|d| (d.message.clone(), d.code())).collect()
    }

    #[test]
    fn validations_deny_with_their_message_and_reason() {
        let policy = policy(
            json!({"variables": [{"name": "n", "expression": "object.data.size()"}, {"name": "twice", "expression": "variables.n * 2"}], "validations": [
            {"expression": "variables.twice < 4", "message": "too many"},
            {"expression": "!('bad' in object.data)", "reason": "Forbidden", "messageExpression": "'bad in ' + object.metadata.name"},
            {"expression": "!has(object.data.k1) || object.data.k1.size() < 3"}]}),
        );
        assert!(denials(&policy, json!({"metadata": {"name": "x"}, "data": {"a": "1"}})).is_empty());
        assert_eq!(
            denials(&policy, json!({"metadata": {"name": "x"}, "data": {"a": "1", "b": "2"}})),
            [("too many".to_owned(), 422)]
        );
        assert_eq!(
            denials(&policy, json!({"metadata": {"name": "x"}, "data": {"bad": "1"}})),
            [("bad in x".to_owned(), 403)]
        );
        assert_eq!(
            denials(&policy, json!({"metadata": {"name": "x"}, "data": {"k1": "abcd"}})),
            [("failed expression: !has(object.data.k1) || object.data.k1.size() < 3".to_owned(), 422)]
        );
    }

    #[test]
    fn a_policy_reads_the_request_its_parameters_and_the_namespace() {
        let policy = policy(json!({"paramKind": {"kind": "K"}, "validations": [
            {"expression": "request.userInfo.username == 'jo' && 'dev' in request.userInfo.groups && request.operation == 'CREATE'"},
            {"expression": "object.size <= params.max"},
            {"expression": "namespaceObject.metadata.labels['env'] == 'prod'"},
            {"expression": "oldObject == null"}]}));
        assert!(denials(&policy, json!({"size": 2})).is_empty());
        assert_eq!(
            denials(&policy, json!({"size": 3})),
            [("failed expression: object.size <= params.max".to_owned(), 422)]
        );
    }

    #[test]
    fn an_expression_that_fails_denies_or_is_ignored() {
        let spec = |failure: &str| json!({"failurePolicy": failure, "validations": [{"expression": "object.none == 1"}]});
        assert_eq!(
            denials(&policy(spec("Fail")), json!({})),
            [("expression 'object.none == 1' resulted in error: no such key: none".to_owned(), 422)]
        );
        assert!(denials(&policy(spec("Ignore")), json!({})).is_empty());
        let lazy = json!({"variables": [{"name": "bad", "expression": "object.none.x"}], "validations": [{"expression": "true || variables.bad == 1"}]});
        assert!(denials(&policy(lazy), json!({})).is_empty(), "an unused variable is not evaluated");
    }

    #[test]
    fn hostile_variables_fail_within_the_limits() {
        // Each variable holds the one before twice: 2^40 values as a tree, 40 in memory.
        let mut doubled = vec![json!({"name": "v0", "expression": "['a', 'b']"})];
        // Each variable nests the one before 40 times.
        let mut nested = doubled.clone();
        for i in 1..=40 {
            let before = i - 1;
            let (open, close) = ("[".repeat(40), "]".repeat(40));
            doubled.push(json!({"name": format!("v{i}"), "expression": format!("[variables.v{before}, variables.v{before}]")}));
            nested.push(
                json!({"name": format!("v{i}"), "expression": format!("{open}variables.v{before}{close}")}),
            );
        }
        // Each variable keeps 2 MB.
        let large: Vec<Value> = (0..20)
            .map(|i| json!({"name": format!("v{i}"), "expression": "object.text + object.text"}))
            .collect();
        let each: Vec<String> = (0..20).map(|i| format!("variables.v{i}.size() > 0")).collect();
        let one = |expression: &str| vec![expression.to_owned()];
        for (variables, expressions, words) in [
            (doubled.clone(), one("variables.v40 == variables.v40"), "take more than 16 MiB of memory"),
            (doubled, one("'%s'.format([variables.v40]) != ''"), "take more than 16 MiB of memory"),
            (nested, one("variables.v40.size() == 1"), "the value has more than 100 levels"),
            (large, each, "take more than 16 MiB of memory"),
        ] {
            let validations: Vec<Value> = expressions.iter().map(|e| json!({"expression": e})).collect();
            let spec = json!({"variables": variables, "validations": validations});
            let started = std::time::Instant::now();
            let denied = denials(&policy(spec), json!({"text": "a".repeat(1_000_000)}));
            assert!(denied.last().is_some_and(|denial| denial.0.contains(words)), "{words}: {denied:?}");
            assert!(started.elapsed().as_secs() < 2, "{:?}", started.elapsed());
        }
    }

    #[test]
    fn match_conditions_decide_whether_a_policy_applies() {
        let spec = |condition: &str| json!({"matchConditions": [{"name": "c", "expression": condition}], "validations": [{"expression": "false", "message": "no"}]});
        assert!(denials(&policy(spec("object.kind == 'Other'")), json!({"kind": "A"})).is_empty());
        assert_eq!(
            denials(&policy(spec("object.kind == 'A'")), json!({"kind": "A"})),
            [("no".to_owned(), 422)]
        );
        assert_eq!(
            denials(&policy(spec("object.none == 'A'")), json!({}))[0].0,
            "expression 'object.none == 'A'' resulted in error: no such key: none"
        );
    }

    #[test]
    fn audit_annotations_carry_text() {
        let policy = policy(
            json!({"validations": [{"expression": "true"}], "auditAnnotations": [{"key": "size", "valueExpression": "'size ' + string(object.size)"}]}),
        );
        let object = json!({"size": 3});
        let inputs = PolicyInputs {
            object: &object,
            old_object: &Value::Null,
            request: &Value::Null,
            params: &Value::Null,
            namespace_object: &Value::Null,
        };
        assert_eq!(policy.evaluate(&inputs).annotations, [("size".to_owned(), "size 3".to_owned())]);
    }

    #[test]
    fn a_policy_with_invalid_expressions_is_rejected() {
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
            assert_eq!(rejected(json!({"validations": [validation]})), [words]);
        }
    }

    #[test]
    fn match_conditions_of_webhooks_are_evaluated() {
        let conditions = compile_match_conditions(
            &json!([{"name": "c", "expression": "request.namespace != 'kube-system'"}]),
            "webhooks[0].matchConditions",
        )
        .unwrap();
        let request = json!({"namespace": "kube-system"});
        let inputs = PolicyInputs {
            object: &Value::Null,
            old_object: &Value::Null,
            request: &request,
            params: &Value::Null,
            namespace_object: &Value::Null,
        };
        assert_eq!(conditions.matches(&inputs), MatchResult::No);
        let errors = compile_match_conditions(
            &json!([{"name": "c", "expression": "1"}]),
            "webhooks[0].matchConditions",
        )
        .unwrap_err();
        assert_eq!(
            errors[0].to_string(),
            "webhooks[0].matchConditions[0].expression: Invalid value: \"1\": must evaluate to bool but got int"
        );
    }
}
