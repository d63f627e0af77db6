//! Interpreter scripts: all operations, the sandbox limits, and isolation between calls.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use polis_api::karmada::{LuaRule, ResourceInterpreterCustomization, ResourceInterpreterCustomizationSpec};
use polis_federation::interpreter::{
    Health, Interpreter, InterpreterOperation, LuaHost, RuleSet, ScriptConflict, ScriptError, ScriptLimits,
    TypeMeta,
};
use serde_json::{Value, json};

const NOON: i64 = 1_763_208_000;

fn mk_host(limits: ScriptLimits) -> Arc<LuaHost> {
    Arc::new(LuaHost::new(limits, Arc::new(|| Timestamp::from_second(NOON).expect("a time"))))
}

type Rule = fn(&mut ResourceInterpreterCustomizationSpec, LuaRule);

fn mk_customization(name: &str, rules: &[(Rule, &str)]) -> ResourceInterpreterCustomization {
    let mut spec = ResourceInterpreterCustomizationSpec::default();
    spec.target.api_version = "example.io/v1".to_owned();
    spec.target.kind = "Thing".to_owned();
    for (set, script) in rules {
        set(&mut spec, LuaRule { lua_script: (*script).to_owned(), ..LuaRule::default() });
    }
    ResourceInterpreterCustomization::new(name, spec)
}

const RETAIN: Rule = |spec, rule| spec.customizations.retention = Some(rule);
const REPLICAS: Rule = |spec, rule| spec.customizations.replica_resource = Some(rule);
const COMPONENTS: Rule = |spec, rule| spec.customizations.component_resource = Some(rule);
const REVISE: Rule = |spec, rule| spec.customizations.replica_revision = Some(rule);
const REFLECT: Rule = |spec, rule| spec.customizations.status_reflection = Some(rule);
const AGGREGATE: Rule = |spec, rule| spec.customizations.status_aggregation = Some(rule);
const HEALTH: Rule = |spec, rule| spec.customizations.health_interpretation = Some(rule);
const DEPENDENCIES: Rule = |spec, rule| spec.customizations.dependency_interpretation = Some(rule);

fn mk_interpreter(rules: &[(Rule, &str)]) -> Interpreter {
    let (rules, conflicts) = RuleSet::collect([&mk_customization("a", rules)]);
    assert_eq!(conflicts, []);
    Interpreter::new(mk_host(ScriptLimits::default())).with_rules(rules)
}

fn mk_thing(extra: Value) -> Value {
    let mut thing = json!({"apiVersion": "example.io/v1", "kind": "Thing", "metadata": {"name": "a", "namespace": "shop"}});
    for (key, value) in extra.as_object().into_iter().flatten() {
        thing[key] = value.clone();
    }
    thing
}

/// The result of `ReflectStatus` with this body, for tests of the Lua environment.
fn reflected(body: &str) -> Result<Option<Value>, ScriptError> {
    mk_interpreter(&[(REFLECT, &format!("function ReflectStatus(obj)\n{body}\nend"))])
        .reflect_status(&mk_thing(json!({})))
}

fn raised(body: &str) -> String {
    match reflected(body) {
        Err(ScriptError::Raised { message, .. }) => message,
        other => panic!("{body} gave {other:?}"),
    }
}

#[test]
fn a_script_retains_fields_of_the_member() {
    let interpreter = mk_interpreter(&[(
        RETAIN,
        "function Retain(desired, observed)
           desired.spec.paused = observed.spec.paused
           return desired
         end",
    )]);
    let desired = mk_thing(json!({"spec": {"paused": false, "empty": [], "map": {}, "list": [{"a": []}]}}));
    let kept = interpreter.retain(desired, &mk_thing(json!({"spec": {"paused": true}}))).expect("a result");
    assert_eq!(
        kept,
        mk_thing(json!({"spec": {"paused": true, "empty": [], "map": {}, "list": [{"a": []}]}}))
    );
}

#[test]
fn a_script_returns_replicas_and_requirements() {
    let interpreter = mk_interpreter(&[(
        REPLICAS,
        "local kube = require('kube')
         function GetReplicas(obj)
           return obj.spec.size + 1, kube.accuratePodRequirements(obj.spec.template)
         end",
    )]);
    let template = json!({"spec": {"containers": [{"resources": {"requests": {"cpu": "500m"}}}, {"resources": {"limits": {"cpu": "1"}}}]}});
    let replicas = interpreter
        .replicas(&mk_thing(json!({"spec": {"size": 2, "template": template}})))
        .expect("a result")
        .expect("replicas");
    assert_eq!(replicas.count, 3);
    assert_eq!(replicas.requirements, Some(json!({"resourceRequest": {"cpu": "1500m"}})));
}

#[test]
fn requirements_are_optional_and_invalid_results_are_errors() {
    let bare = mk_interpreter(&[(REPLICAS, "function GetReplicas(obj) return 2 end")]);
    assert_eq!(bare.replicas(&mk_thing(json!({}))).expect("a result").expect("replicas").requirements, None);
    for invalid in ["return 'two'", "return {}", "return 1, 2", "return 1e12", "return nil"] {
        let interpreter = mk_interpreter(&[(REPLICAS, &format!("function GetReplicas(obj) {invalid} end"))]);
        let result = interpreter.replicas(&mk_thing(json!({})));
        assert!(matches!(result, Err(ScriptError::Unusable { .. })), "{invalid} gave {result:?}");
    }
}

#[test]
fn a_script_returns_components() {
    let interpreter = mk_interpreter(&[(
        COMPONENTS,
        "function GetComponents(obj) return {{name = 'jobmanager', replicas = 1}} end",
    )]);
    let parts = interpreter.components(&mk_thing(json!({}))).expect("a result");
    assert_eq!(parts, Some(vec![json!({"name": "jobmanager", "replicas": 1})]));
}

#[test]
fn a_script_revises_the_number_of_replicas() {
    let interpreter =
        mk_interpreter(&[(REVISE, "function ReviseReplica(obj, n) obj.spec.size = n return obj end")]);
    let revised =
        interpreter.revise_replicas(mk_thing(json!({"spec": {"size": 9, "tags": []}})), 4).expect("a result");
    assert_eq!(revised["spec"], json!({"size": 4, "tags": []}));
}

#[test]
fn a_script_selects_the_reflected_status() {
    let interpreter = mk_interpreter(&[(
        REFLECT,
        "function ReflectStatus(obj)
           if obj.status == nil then return {} end
           return {ready = obj.status.ready, conditions = obj.status.conditions, made = {}}
         end",
    )]);
    let observed =
        mk_thing(json!({"status": {"ready": 2, "conditions": [], "made": {"x": 1}, "secret": "no"}}));
    assert_eq!(
        interpreter.reflect_status(&observed),
        Ok(Some(json!({"ready": 2, "conditions": [], "made": {}})))
    );
    assert_eq!(interpreter.reflect_status(&mk_thing(json!({}))), Ok(Some(json!({}))));
}

#[test]
fn a_nil_status_is_an_error_of_the_script() {
    assert!(matches!(reflected("return nil"), Err(ScriptError::Unusable { .. })));
}

#[test]
fn a_script_aggregates_the_status_of_members() {
    let interpreter = mk_interpreter(&[(
        AGGREGATE,
        "function AggregateStatus(desired, items)
           local total = 0
           for i = 1, #items do total = total + items[i].status.ready end
           desired.status = {ready = total, from = items[1].clusterName}
           return desired
         end",
    )]);
    let items = [
        json!({"clusterName": "dfw", "status": {"ready": 2}, "applied": true}),
        json!({"clusterName": "ord", "status": {"ready": 3}, "applied": true}),
    ];
    let status = interpreter.aggregate_status(&mk_thing(json!({})), &items);
    assert_eq!(status, Ok(Some(json!({"ready": 5, "from": "dfw"}))));
}

#[test]
fn empty_lists_and_maps_survive_aggregation() {
    let pass = mk_interpreter(&[(
        AGGREGATE,
        "function AggregateStatus(desired, items) desired.status = items[1].status return desired end",
    )]);
    let status = json!({"conditions": [], "nested": {"list": [], "map": {}}, "n": 1});
    let items = [json!({"clusterName": "dfw", "status": status})];
    assert_eq!(pass.aggregate_status(&mk_thing(json!({})), &items), Ok(Some(status.clone())));

    // An empty table that the script created gets its type from the members' statuses.
    let made = mk_interpreter(&[(
        AGGREGATE,
        "function AggregateStatus(desired, items) desired.status = {conditions = {}, nested = {map = {}}, unknown = {}} return desired end",
    )]);
    let wanted = json!({"conditions": [], "nested": {"map": {}}});
    assert_eq!(made.aggregate_status(&mk_thing(json!({})), &items), Ok(Some(wanted)));
}

#[test]
fn a_script_interprets_health() {
    let interpreter = mk_interpreter(&[(
        HEALTH,
        "function InterpretHealth(obj) return obj.status.ready == obj.spec.size end",
    )]);
    assert_eq!(
        interpreter.health(&mk_thing(json!({"spec": {"size": 2}, "status": {"ready": 2}}))).0,
        Health::Healthy
    );
    assert_eq!(
        interpreter.health(&mk_thing(json!({"spec": {"size": 2}, "status": {"ready": 1}}))).0,
        Health::Unhealthy
    );
    let (health, error) = interpreter.health(&mk_thing(json!({})));
    assert_eq!(health, Health::Unknown);
    assert!(matches!(error, Some(ScriptError::Raised { .. })));
}

#[test]
fn dependencies_of_all_scripts_of_a_kind_are_merged() {
    let first = mk_customization(
        "a",
        &[(
            DEPENDENCIES,
            "function GetDependencies(obj) return {{apiVersion='v1', kind='ConfigMap', namespace='shop', name='a'}} end",
        )],
    );
    let second = mk_customization(
        "b",
        &[(
            DEPENDENCIES,
            "local kube = require('kube') function GetDependencies(obj) return kube.getPodDependencies(obj.spec.template, obj.metadata.namespace) end",
        )],
    );
    let (rules, _) = RuleSet::collect([&second, &first]);
    let interpreter = Interpreter::new(mk_host(ScriptLimits::default())).with_rules(rules);
    let thing = mk_thing(
        json!({"spec": {"template": {"spec": {"volumes": [{"secret": {"secretName": "s"}}, {"configMap": {"name": "a"}}]}}}}),
    );
    let names: Vec<_> =
        interpreter.dependencies(&thing).expect("a result").iter().map(|d| d["name"].clone()).collect();
    assert_eq!(names, [json!("a"), json!("s")]);
}

#[test]
fn a_kind_without_scripts_has_the_defaults() {
    let interpreter = Interpreter::new(mk_host(ScriptLimits::default()));
    let observed = mk_thing(json!({"spec": {"replicas": 3}, "status": {"a": [], "b": 1}}));
    assert_eq!(
        interpreter.retain(mk_thing(json!({"spec": {}})), &observed),
        Ok(mk_thing(json!({"spec": {}})))
    );
    assert_eq!(interpreter.replicas(&observed), Ok(None));
    assert_eq!(interpreter.reflect_status(&observed), Ok(Some(json!({"a": [], "b": 1}))));
    assert_eq!(interpreter.aggregate_status(&observed, &[]), Ok(None));
    assert_eq!(interpreter.health(&observed), (Health::Healthy, None));
    assert_eq!(interpreter.dependencies(&observed), Ok(Vec::new()));
}

#[test]
fn deployments_have_a_built_in_interpreter() {
    let interpreter = Interpreter::new(mk_host(ScriptLimits::default()));
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"generation": 2}, "spec": {"replicas": 5}});
    assert_eq!(interpreter.replicas(&deployment).expect("a result").map(|r| r.count), Some(5));
    assert_eq!(
        interpreter.revise_replicas(deployment.clone(), 2).expect("a result")["spec"]["replicas"],
        json!(2)
    );
    let items = [json!({"status": {"readyReplicas": 2}}), json!({"status": {"readyReplicas": 1}})];
    let status = interpreter.aggregate_status(&deployment, &items).expect("a result").expect("a status");
    assert_eq!(status, json!({"readyReplicas": 3, "observedGeneration": 2}));
}

#[test]
fn the_first_customization_by_name_has_precedence() {
    let first = mk_customization("a", &[(HEALTH, "function InterpretHealth() return true end")]);
    let second = mk_customization("b", &[(HEALTH, "function InterpretHealth() return false end")]);
    let (rules, conflicts) = RuleSet::collect([&second, &first]);
    assert_eq!(
        conflicts,
        [ScriptConflict {
            name: "b".to_owned(),
            winner: "a".to_owned(),
            operation: InterpreterOperation::Health
        }]
    );
    let type_meta = TypeMeta { api_version: "example.io/v1".to_owned(), kind: "Thing".to_owned() };
    assert!(rules.script(&type_meta, InterpreterOperation::Health).expect("a script").contains("true"));
    assert_eq!(rules.differing(&RuleSet::default()), [type_meta]);
    assert_eq!(rules.differing(&rules.clone()), []);
}

#[test]
fn a_compile_error_names_the_line() {
    let host = mk_host(ScriptLimits::default());
    assert_eq!(host.check("function Retain(a, b) return a end"), Ok(()));
    let Err(ScriptError::Compile { message }) = host.check("function Retain(a, b)\n return a b end") else {
        panic!("an invalid script compiled")
    };
    assert!(message.contains(":2:"), "{message}");
}

#[test]
fn bytecode_is_rejected() {
    let result = mk_host(ScriptLimits::default()).check("\u{1b}Lua");
    assert!(matches!(result, Err(ScriptError::Compile { .. })), "{result:?}");
}

#[test]
fn a_script_without_the_function_is_an_error() {
    let interpreter = mk_interpreter(&[(REFLECT, "function Reflect() return {} end")]);
    assert_eq!(
        interpreter.reflect_status(&mk_thing(json!({}))),
        Err(ScriptError::Missing { function: "ReflectStatus" })
    );
}

#[test]
fn unsafe_functions_are_not_available() {
    for call in [
        "loadstring('return 1')()",
        "load(function() end)",
        "dofile('x')",
        "loadfile('x')",
        "collectgarbage()",
        "getmetatable('')",
        "setmetatable({}, {})",
        "rawget({}, 1)",
        "rawset({}, 1, 1)",
        "rawequal(1, 1)",
        "getfenv()",
        "setfenv(1, {})",
        "newproxy()",
        "module('x')",
        "string.rep('x', 9)",
        "string.gsub('x', 'x', 'y')",
        "string.dump(print)",
        "('x'):rep(9)",
    ] {
        assert!(raised(&format!("{call} return {{}}")).contains("not available"), "{call}");
    }
    for missing in [
        "io",
        "debug",
        "package",
        "coroutine",
        "os.execute",
        "os.getenv",
        "os.exit",
        "string.gfind",
        "gcinfo",
    ] {
        assert_eq!(
            reflected(&format!("return {{missing = ({missing} == nil)}}")),
            Ok(Some(json!({"missing": true}))),
            "{missing}"
        );
    }
    assert!(raised("require('socket')").contains("kube"));
}

#[test]
fn the_lua_standard_library_works() {
    let body = "local parts = {}
        for word in string.gmatch('a=1, b=2', '(%w+)=%w+') do table.insert(parts, word) end
        local at, to, digits = string.find('cell-042', '(%d+)')
        local ok, message = pcall(function() error('oops', 0) end)
        local ok2, object = pcall(error, {code = 7})
        return {
          joined = table.concat(parts, '+'), at = at, to = to, digits = digits, plain = string.find('a.b', '.', 1, true),
          matched = string.match('v1.2', '^v(%d+)'), upper = ('x'):upper(), ok = ok, message = message, code = object.code,
          n = tonumber('12'), text = tostring(1.5), random = math.random() < 1, third = select(3, 1, 2, 3), year = os.date('*t').year,
          day = os.date('!%Y-%m-%d'), time = os.time(), made = os.time({year = 2025, month = 1, day = 1, hour = 0}), big = 2 ^ 40,
        }";
    assert_eq!(
        reflected(body),
        Ok(Some(json!({
            "joined": "a+b", "at": 6, "to": 8, "digits": "042", "plain": 2, "matched": "1", "upper": "X", "ok": false, "message": "oops",
            "code": 7, "n": 12, "text": "1.5", "random": true, "third": 3, "year": 2025, "day": "2025-11-15", "time": NOON,
            "made": 1_735_689_600, "big": 1_099_511_627_776_i64,
        })))
    );
}

#[test]
fn the_kube_module_adds_quantities() {
    let body = "local kube = require('kube')
        return {sum = kube.resourceAdd('100m', nil, '1'), number = kube.getResourceQuantity('1Ki')}";
    assert_eq!(reflected(body), Ok(Some(json!({"sum": "1100m", "number": 1024}))));
    assert!(raised("require('kube').resourceAdd('lots')").contains("lots"));
    assert!(raised("require('kube').getResourceQuantity('-1')").contains("negative"));
    assert!(raised("require('kube').getResourceQuantity({})").contains("table"));
}

#[test]
fn a_result_that_json_cannot_represent_is_rejected_with_its_path() {
    for (body, path) in [
        ("return {a = {b = print}}", "result.a.b"),
        ("local t = {} t.t = t return t", "refers to itself"),
        ("return {a = {1, nil, 3}}", "result.a"),
        ("return {a = {1, x = 2}}", "result.a"),
        ("return {a = 0/0}", "result.a"),
        ("return {a = '\\255'}", "result.a"),
    ] {
        match reflected(body) {
            Err(ScriptError::Unusable { message, .. }) => {
                assert!(message.contains(path), "{body}: {message}")
            }
            other => panic!("{body} gave {other:?}"),
        }
    }
}

#[test]
fn calls_share_no_state() {
    let interpreter = mk_interpreter(&[(
        REFLECT,
        "seen = (seen or 0) + 1
         string.upper = string.upper
         function ReflectStatus(obj)
           local before = left
           left, string.format, _G.table = obj.metadata.name, nil, nil
           return {before = before, seen = seen, whole = (string.lower ~= nil)}
         end",
    )]);
    for name in ["a", "b", "c"] {
        let mut thing = mk_thing(json!({}));
        thing["metadata"]["name"] = json!(name);
        assert_eq!(interpreter.reflect_status(&thing), Ok(Some(json!({"seen": 1, "whole": true}))));
    }
}

#[test]
fn endless_scripts_are_stopped_even_if_they_catch_errors() {
    let limits =
        ScriptLimits { instructions: 2_000_000, time: Duration::from_millis(500), ..ScriptLimits::default() };
    for body in [
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "local function f() while true do pcall(f) end end f()",
        "local function f() return xpcall(f, f) end while true do f() end",
        "xpcall(function() while true do end end, function() while true do end end)",
        "local s = 'a' for i = 1, 12 do s = s .. s end while true do string.find(s, 'a*a*a*a*a*a*b') end",
        "pcall(string.find, table.concat({'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 'aaaaaaaaaaaaaaaaaaaaa'}), 'a*a*a*a*a*a*a*a*a*b') while true do end",
        "for _ in pairs({1}) do repeat until false end",
    ] {
        let (rules, _) = RuleSet::collect([&mk_customization(
            "a",
            &[(REFLECT, &format!("function ReflectStatus(obj)\n{body}\nend"))],
        )]);
        let interpreter = Interpreter::new(mk_host(limits)).with_rules(rules);
        let begun = Instant::now();
        let result = interpreter.reflect_status(&mk_thing(json!({})));
        assert_eq!(result, Err(ScriptError::Interrupted { function: "ReflectStatus" }), "{body}");
        assert!(begun.elapsed() < Duration::from_secs(5), "{body} took {:?}", begun.elapsed());
    }
}

#[test]
fn an_endless_loop_outside_the_function_is_stopped_too() {
    let (rules, _) = RuleSet::collect([&mk_customization("a", &[(REFLECT, "while true do end")])]);
    let interpreter =
        Interpreter::new(mk_host(ScriptLimits { instructions: 100_000, ..ScriptLimits::default() }))
            .with_rules(rules);
    assert!(matches!(interpreter.reflect_status(&mk_thing(json!({}))), Err(ScriptError::Interrupted { .. })));
}

#[test]
fn a_script_that_exceeds_the_memory_limit_is_stopped() {
    let limits = ScriptLimits { memory: 16 << 20, ..ScriptLimits::default() };
    for body in
        ["local s = 'x' while true do s = s .. s end", "local t = {} while true do t[#t + 1] = {} end"]
    {
        let (rules, _) = RuleSet::collect([&mk_customization(
            "a",
            &[(REFLECT, &format!("function ReflectStatus(obj)\n{body}\nend"))],
        )]);
        let result = Interpreter::new(mk_host(limits)).with_rules(rules).reflect_status(&mk_thing(json!({})));
        assert_eq!(result, Err(ScriptError::Memory { function: "ReflectStatus" }), "{body}");
    }
}

#[test]
fn deep_recursion_is_an_error_of_the_script() {
    assert!(raised("local function f(n) return 1 + f(n + 1) end return {f(1)}").contains("stack overflow"));
    // Nested protected calls use C frames, which have a lower limit.
    let result = reflected("local function f() return select(2, pcall(f)) end return {v = tostring(f())}");
    assert!(matches!(result, Ok(_) | Err(ScriptError::Raised { .. })), "{result:?}");
}

#[test]
fn a_host_works_after_a_script_was_stopped() {
    let host = mk_host(ScriptLimits { instructions: 100_000, ..ScriptLimits::default() });
    let (bad, _) = RuleSet::collect([&mk_customization(
        "a",
        &[(HEALTH, "function InterpretHealth() while true do end end")],
    )]);
    let (good, _) =
        RuleSet::collect([&mk_customization("a", &[(HEALTH, "function InterpretHealth() return true end")])]);
    let interpreter = Interpreter::new(host);
    for _ in 0..3 {
        assert_eq!(interpreter.with_rules(bad.clone()).health(&mk_thing(json!({}))).0, Health::Unknown);
        assert_eq!(interpreter.with_rules(good.clone()).health(&mk_thing(json!({}))).0, Health::Healthy);
    }
}

/// One script for each operation; the health script fails for every other object.
const ALL: &[(Rule, &str)] = &[
    (RETAIN, "function Retain(desired, observed) desired.spec.kept = observed.spec.list return desired end"),
    (
        REPLICAS,
        "local kube = require('kube')
         function GetReplicas(obj) return obj.spec.size, kube.accuratePodRequirements(obj.spec.template) end",
    ),
    (COMPONENTS, "function GetComponents(obj) return {{name = obj.metadata.name, replicas = obj.spec.size}} end"),
    (REVISE, "function ReviseReplica(obj, n) obj.spec.size = n return obj end"),
    (
        REFLECT,
        "function ReflectStatus(obj)
           local t = {}
           for i = 1, 5 do t[i] = {n = i} end
           return {items = t, name = obj.metadata.name}
         end",
    ),
    (
        AGGREGATE,
        "function AggregateStatus(desired, items)
           desired.status = {}
           for i = 1, #items do desired.status[items[i].clusterName] = items[i].status end
           return desired
         end",
    ),
    (
        HEALTH,
        "function InterpretHealth(obj)
           if obj.spec.odd then error('odd ' .. obj.metadata.name) end
           return obj.status.a[1] == 1
         end",
    ),
    (
        DEPENDENCIES,
        "local kube = require('kube')
         function GetDependencies(obj) return kube.getPodDependencies(obj.spec.template, obj.metadata.namespace) end",
    ),
];

/// Runs all eight operations this many times and compares the memory of the idle VMs at the end with that
/// after 125 rounds.
fn assert_no_leak(rounds: usize) {
    let interpreter = mk_interpreter(ALL);
    let pod = json!({"spec": {
        "containers": [{"resources": {"requests": {"cpu": "500m"}}}],
        "volumes": [{"secret": {"secretName": "s"}}],
    }});
    let mk = |odd: bool| {
        let spec = json!({"size": 2, "list": [1, 2, {"a": []}], "template": pod, "odd": odd});
        mk_thing(json!({"spec": spec, "status": {"a": [1, 2, 3]}}))
    };
    let (even, odd) = (mk(false), mk(true));
    let items = ["dfw", "ord"].map(|cluster| json!({"clusterName": cluster, "status": {"a": [1]}}));
    let run = |rounds: usize| {
        for round in 0..rounds {
            let (thing, health) = match round % 2 {
                0 => (&even, Health::Healthy),
                _ => (&odd, Health::Unknown),
            };
            interpreter.retain(thing.clone(), thing).expect("a result");
            interpreter.replicas(thing).expect("a result").expect("replicas");
            interpreter.components(thing).expect("a result").expect("components");
            interpreter.revise_replicas(thing.clone(), 3).expect("a result");
            interpreter.reflect_status(thing).expect("a result").expect("a status");
            interpreter.aggregate_status(thing, &items).expect("a result").expect("a status");
            assert_eq!(interpreter.health(thing).0, health);
            assert_eq!(interpreter.dependencies(thing).expect("a result").len(), 1);
        }
        interpreter.host().memory()
    };
    let early = run(125);
    let late = run(rounds - 125);
    assert!(late <= early + 4096, "{early} bytes after 1,000 calls, {late} after {}", 8 * rounds);
}

#[test]
fn ten_thousand_calls_do_not_leak() {
    assert_no_leak(1_250);
}

#[test]
#[ignore = "takes a minute: cargo test -p polis-federation --test interpreter -- --ignored"]
fn a_hundred_thousand_calls_do_not_leak() {
    assert_no_leak(12_500);
}

#[test]
fn many_threads_share_a_host() {
    let interpreter = mk_interpreter(&[(REPLICAS, "function GetReplicas(obj) return obj.spec.n end")]);
    std::thread::scope(|scope| {
        for n in 0..8 {
            let interpreter = interpreter.clone();
            scope.spawn(move || {
                for _ in 0..200 {
                    let replicas =
                        interpreter.replicas(&mk_thing(json!({"spec": {"n": n}}))).expect("a result");
                    assert_eq!(replicas.map(|r| r.count), Some(n));
                }
            });
        }
    });
}
