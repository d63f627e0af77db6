//! How every function that a script can reach is bounded, and scripts that try to exceed the limits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use mlua::{Function, Table, Value as LuaValue};
use serde_json::json;

use super::{LuaHost, ScriptError, ScriptLimits, Vm};

/// Why a function cannot run longer than its budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bound {
    /// Written in Lua: its instructions are counted, and it spends the bytes of strings that it passes to C.
    Counted,
    /// A function of the host that spends its work, or that rejects long arguments.
    Host,
    /// Written in C, without loops over data.
    Constant,
    /// Written in C, linear in the number of arguments or results: Lua allows 8,000.
    Arguments,
    /// Always raises an error.
    Refused,
}

use Bound::{Arguments, Constant, Counted, Host, Refused};

const BOUNDS: &[(&str, Bound)] = &[
    ("assert", Arguments),
    ("collectgarbage", Refused),
    ("dofile", Refused),
    ("error", Constant),
    ("getfenv", Refused),
    ("getmetatable", Refused),
    ("ipairs", Constant),
    ("ipairs iterator", Constant),
    ("load", Refused),
    ("loadfile", Refused),
    ("loadstring", Refused),
    ("module", Refused),
    ("newproxy", Refused),
    // Skips the removed entries of a table: at most the 64 MiB of the memory limit, in about 2 ms.
    ("next", Constant),
    ("pairs", Constant),
    ("pairs iterator", Constant),
    ("pcall", Counted),
    ("print", Counted),
    ("rawequal", Refused),
    ("rawget", Refused),
    ("rawset", Refused),
    ("require", Host),
    ("select", Arguments),
    ("setfenv", Refused),
    ("setmetatable", Refused),
    ("tonumber", Counted),
    ("tostring", Constant),
    ("type", Constant),
    ("unpack", Counted),
    ("xpcall", Counted),
    ("math.abs", Constant),
    ("math.acos", Constant),
    ("math.asin", Constant),
    ("math.atan", Constant),
    ("math.atan2", Constant),
    ("math.ceil", Constant),
    ("math.cos", Constant),
    ("math.cosh", Constant),
    ("math.deg", Constant),
    ("math.exp", Constant),
    ("math.floor", Constant),
    ("math.fmod", Constant),
    ("math.frexp", Constant),
    ("math.ldexp", Constant),
    ("math.log", Constant),
    ("math.log10", Constant),
    ("math.max", Arguments),
    ("math.min", Arguments),
    ("math.mod", Constant),
    ("math.modf", Constant),
    ("math.pow", Constant),
    ("math.rad", Constant),
    ("math.random", Host),
    ("math.randomseed", Host),
    ("math.sin", Constant),
    ("math.sinh", Constant),
    ("math.sqrt", Constant),
    ("math.tan", Constant),
    ("math.tanh", Constant),
    ("os.date", Host),
    ("os.time", Host),
    ("string.byte", Arguments),
    ("string.char", Arguments),
    ("string.dump", Refused),
    ("string.find", Host),
    ("string.format", Counted),
    ("string.gmatch", Host),
    ("string.gmatch iterator", Host),
    ("string.gsub", Refused),
    ("string.len", Constant),
    ("string.lower", Counted),
    ("string.match", Host),
    ("string.rep", Refused),
    ("string.reverse", Counted),
    ("string.sub", Counted),
    ("string.upper", Counted),
    ("table.concat", Counted),
    ("table.foreach", Counted),
    ("table.foreachi", Counted),
    ("table.getn", Counted),
    ("table.insert", Counted),
    ("table.maxn", Counted),
    ("table.remove", Counted),
    ("table.setn", Refused),
    ("table.sort", Counted),
    ("kube.accuratePodRequirements", Host),
    ("kube.getPodDependencies", Host),
    ("kube.getResourceQuantity", Host),
    ("kube.resourceAdd", Host),
];

fn collect(table: &Table, path: &str, found: &mut BTreeMap<String, Function>, seen: &mut BTreeSet<usize>) {
    if !seen.insert(table.to_pointer() as usize) {
        return;
    }
    for pair in table.pairs::<String, LuaValue>() {
        let (name, value) = pair.expect("a pair");
        let path = format!("{path}{name}");
        match value {
            LuaValue::Function(function) => drop(found.insert(path, function)),
            LuaValue::Table(inner) => collect(&inner, &format!("{path}."), found, seen),
            _ => {}
        }
    }
    if let Some(metatable) = table.metatable() {
        collect(&metatable, &format!("{path}metatable."), found, seen);
    }
}

/// Every function that a script can reach, by path.
fn reachable(vm: &Vm) -> BTreeMap<String, Function> {
    let globals: Table = vm.fresh.call(()).expect("globals");
    let (mut found, mut seen) = (BTreeMap::new(), BTreeSet::new());
    collect(&globals, "", &mut found, &mut seen);
    // Methods of strings are those of the table that the copies are made of.
    let strings: Table = vm.lua.globals().get("string").expect("a library");
    collect(&strings, "string.", &mut found, &mut seen);
    let metatable: Table = vm.lua.type_metatable::<mlua::LuaString>().expect("a metatable");
    assert_eq!(metatable.get::<Table>("__index").expect("methods"), strings);
    assert_eq!(metatable.pairs::<String, LuaValue>().count(), 1, "strings have only methods");
    collect(&vm.array_metatable, "list metatable.", &mut found, &mut seen);
    let kube: Table = found["require"].call("kube").expect("the module");
    collect(&kube, "kube.", &mut found, &mut seen);
    // Functions that other functions return.
    for (name, arguments) in [("ipairs", "{}"), ("pairs", "{}"), ("string.gmatch", "'a', 'a'")] {
        let returned: Function = vm.lua.load(format!("return {name}({arguments})")).eval().expect(name);
        found.insert(format!("{name} iterator"), returned);
    }
    found
}

#[test]
fn every_function_that_a_script_can_reach_is_bounded() {
    let vm = Vm::new(ScriptLimits::default(), Arc::new(Timestamp::now)).expect("a VM");
    let (found, bounds) = (reachable(&vm), BTreeMap::from_iter(BOUNDS.iter().copied()));
    let names = |names: Vec<&str>| names.join(", ");
    let unlisted = found.keys().map(String::as_str).filter(|name| !bounds.contains_key(name)).collect();
    assert_eq!(names(unlisted), "", "functions without a bound");
    let missing = bounds.keys().copied().filter(|name| !found.contains_key(*name)).collect();
    assert_eq!(names(missing), "", "bounds of functions that do not exist");
    for (name, function) in &found {
        let is_lua = function.info().what == "Lua";
        assert_eq!(is_lua, matches!(bounds[name.as_str()], Counted | Refused), "{name} is written in Lua");
    }
}

fn run(body: &str) -> Result<serde_json::Value, ScriptError> {
    let host = LuaHost::new(ScriptLimits::default(), Arc::new(Timestamp::now));
    let script = format!("function Test(obj)\n{body}\nend");
    host.call(&script, "Test", &[&json!({"list": ["b", "a"]})], |output| output.table(0, &[]))
}

#[test]
fn hostile_scripts_end_with_an_error() {
    let double = "local s = 'aaaaaaaaaaaaaaaa' for i = 1, 20 do s = s .. s end";
    let many = "local t = {} for i = 1, 1000000 do t[i] = 1000000 - i end";
    for body in [
        // Sorting: many elements, an order function that is slow, inconsistent, or always true.
        &format!("{many} while true do table.sort(t) end"),
        &format!("{many} table.sort(t, function(a, b) for i = 1, 1000 do end return a < b end)"),
        &format!(
            "{many} table.sort(t, function() return true end) table.sort(t, function() return math.random() < 0.5 end)"
        ),
        &format!("{many} table.sort(t, function() return false end) while true do table.sort(t, type) end"),
        // Functions over lists.
        &format!("{many} while true do table.insert(t, 1, 1) table.remove(t, 1) end"),
        &format!("{many} while true do table.concat(t) end"),
        &format!("{many} while true do table.maxn(t) end"),
        &format!("{many} while true do table.foreach(t, type) table.foreachi(t, type) end"),
        "table.insert({1}, -100000000000, 1)",
        "table.concat({}, '', -1, 100000000000) while true do end",
        &format!(
            "{many} while true do for i = 1, 1000000 do t[i] = nil end for i = 1, 1e7 do next(t) end end"
        ),
        "unpack({}, 1, 100000000)",
        // In C the number of results overflows to 0, which passes the check of the stack.
        "unpack({}, -2147483648, 2147483647)",
        "unpack({}, -1e300, 1e300)",
        "unpack({}, 0 / 0, 0 / 0)",
        "while true do pcall(unpack, {}, 1, 4000) end",
        // Strings.
        "string.rep('x', 1000000000)",
        "('x'):rep(1000000000)",
        "string.gsub('x', 'x', 'y')",
        "string.format('%99999d', 1)",
        "string.format('%.99999f', 1)",
        &format!("{double} while true do s:upper() end"),
        &format!("{double} while true do s:lower() s:reverse() end"),
        &format!("{double} while true do s:sub(2) end"),
        &format!("{double} while true do tonumber(s) end"),
        &format!("{double} while true do string.format('%s%q', s, 1) end"),
        &format!("{double} local t = {{}} for i = 1, 4000 do t[i] = s end return {{table.concat(t)}}"),
        &format!(
            "{double} local t = {{}} for i = 1, 4000 do t[i] = s end while true do print(unpack(t)) end"
        ),
        &format!("{double} while true do local x = s < s .. 'b' end"),
        &format!("{double} while true do local x = s .. 'b' end"),
        &format!("{double} error(s)"),
        &format!("{double} require(s)"),
        &format!("{double} require('kube').resourceAdd(s)"),
        &format!("{double} require('kube').getPodDependencies({{}}, s)"),
        &format!("{double} os.date(s)"),
        "os.time({year = 2000, month = 1, day = 1, hour = 1e300, min = 1e300, sec = 1e300}) error('x')",
        // Patterns.
        &format!("{double} while true do s:find(s:sub(1, #s / 2) .. 'b', 1, true) end"),
        &format!("{double} s:find(('a*'):sub(1) .. 'a*a*a*a*a*a*b') error('x')"),
        &format!("{double} while true do s:match('.-.-.-.-b') end"),
        &format!("{double} while true do s:find('[' .. s:sub(1, 100000) .. ']*b') end"),
        &format!("{double} while true do s:find('(a*)%1b') end"),
        &format!("{double} for w in s:gmatch('a*b') do end error('x')"),
        // Results that are larger as JSON than as Lua.
        "local t = {} for i = 1, 90 do t = {t, t} end return t",
        "local t = {} for i = 1, 90 do t = {t, t} end require('kube').accuratePodRequirements(t)",
        "local t = {} for i = 1, 90 do t = {t, t} end while true do pcall(require('kube').getPodDependencies, t) end",
        &format!("{double} local t = {{}} for i = 1, 100000 do t[i] = s end return t"),
        &format!("{double} local t = {{}} for i = 1, 100000 do t[i] = {{[s] = {{}}}} end return t"),
    ] {
        let begun = Instant::now();
        let result = run(body);
        assert!(result.is_err(), "{body} gave a result");
        if let Err(ScriptError::Raised { message, .. } | ScriptError::Unusable { message, .. }) = &result {
            assert!(message.len() < 5000, "{body}: the message has {} bytes", message.len());
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "{body} took {:?}: {result:?}", begun.elapsed());
    }
}

#[test]
fn large_lists_are_converted() {
    let result =
        run("local t = {} for i = 1, 20000 do t[i] = {name = 'n' .. i} end return t").expect("a list");
    assert_eq!(result[19_999], json!({"name": "n20000"}));
    let sum = "local t = {} for i = 1, 4000 do t[i] = '1m' end return {sum = require('kube').resourceAdd(unpack(t))}";
    assert_eq!(run(sum).expect("a sum"), json!({"sum": "4"}));
}

#[test]
fn replaced_functions_behave_as_in_lua() {
    let body = "
      local sorted = {5, 2, 8, 1, 9, 3}
      table.sort(sorted)
      local descending = {5, 2, 8, 1, 9, 3}
      table.sort(descending, function(a, b) return a > b end)
      local list = {1, 2, 3}
      table.insert(list, 4)
      table.insert(list, 1, 0)
      table.insert(list, 6, 9)
      local removed, none = table.remove(list, 2), table.remove({})
      local last = table.remove(list)
      local sum = 0
      table.foreach({a = 1, b = 2}, function(_, v) sum = sum + v end)
      return {
        sorted = sorted, descending = descending, list = table.concat(list, ','), removed = removed, none = (none == nil),
        last = last, part = table.concat({1, 2, 3, 4}, '-', 2, 3), sum = sum, stop = table.foreachi({7, 8}, function(i, v) return v end),
        getn = table.getn({1, 2}), maxn = table.maxn({[10] = 1, x = 2}), format = string.format('%5.2f|%-3s|%q|%x', 1.5, 'a', 'b', 255),
        lower = ('AbC'):lower(), reverse = ('abc'):reverse(), sub = ('hello'):sub(-3, -2), hex = tonumber('ff', 16), number = tonumber(' 12 '),
        nothing = (tonumber('x') == nil), error = select(2, pcall(table.sort, 5)):match('bad.*'), wrong = select(2, pcall(table.insert, {})):match('wrong.*'),
        hole = pcall(table.concat, {1, {}, 3}), mixed = pcall(table.sort, {1, 'a', 2}), moved = obj.list[1],
      }";
    assert_eq!(
        run(body).expect("a result"),
        json!({
            "sorted": [1, 2, 3, 5, 8, 9], "descending": [9, 8, 5, 3, 2, 1], "list": "0,2,3,4", "removed": 1, "none": true,
            "last": 9, "part": "2-3", "sum": 3, "stop": 7, "getn": 2, "maxn": 10, "format": " 1.50|a  |\"b\"|ff",
            "lower": "abc", "reverse": "cba", "sub": "ll", "hex": 255, "number": 12, "nothing": true,
            "error": "bad argument #1 to 'sort' (table expected, got number)", "wrong": "wrong number of arguments to 'insert'",
            "hole": false, "mixed": false, "moved": "b",
        })
    );
}
