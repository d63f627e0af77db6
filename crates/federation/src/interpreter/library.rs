//! The library of scripts: safe replacements for parts of Lua's standard library, and the `kube` module.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use mlua::{Function, Lua, LuaString, MultiValue, Table, Value as LuaValue};
use polis_apimachinery::quantity::Quantity;

use super::host::{Budget, ScriptClock, interrupted};
use super::pattern::{self, Capture, Match, PatternError};
use super::{convert, pods};

/// Maximum length of a format of `os.date`: two bytes of it become up to 24, or 255 with a width.
const MAX_DATE_FORMAT: usize = 256;

/// Maximum length of a namespace, which every dependency repeats.
const MAX_NAMESPACE: usize = 253;
/// Maximum length of a quantity.
const MAX_QUANTITY: usize = 64;

/// The generator of `math.random`; reset for every call, so that scripts are deterministic.
#[derive(Clone)]
pub(super) struct Random(Arc<AtomicU64>);

const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

impl Random {
    pub(super) fn reset(&self) {
        self.0.store(SEED, Ordering::Relaxed);
    }

    /// A number in [0, 1), from a xorshift generator.
    fn next(&self) -> f64 {
        let mut state = self.0.load(Ordering::Relaxed);
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        self.0.store(state, Ordering::Relaxed);
        (state >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Replaces functions of Lua's standard library.
pub(super) fn install(
    lua: &Lua,
    array_metatable: &Table,
    budget: &Arc<Budget>,
    clock: ScriptClock,
) -> mlua::Result<Random> {
    let globals = lua.globals();
    install_patterns(lua, &globals.get("string")?, budget)?;
    let random = Random(Arc::new(AtomicU64::new(SEED)));
    install_random(lua, &globals.get("math")?, &random)?;
    globals.set("os", time_library(lua, clock)?)?;
    let kube = kube_module(lua, array_metatable, budget)?;
    globals.set(
        "require",
        lua.create_function(move |lua, name: LuaString| {
            if name.as_bytes() != *b"kube" {
                return Err(mlua::Error::runtime(
                    "this module does not exist; scripts may require only \"kube\"",
                ));
            }
            let copy = lua.create_table()?;
            for pair in kube.pairs::<String, Function>() {
                let (name, function) = pair?;
                copy.raw_set(name, function)?;
            }
            Ok(copy)
        })?,
    )?;
    Ok(random)
}

fn install_patterns(lua: &Lua, string: &Table, budget: &Arc<Budget>) -> mlua::Result<()> {
    let spent = budget.clone();
    string.set(
        "find",
        lua.create_function(
            move |lua, (text, pattern, init, is_plain): (LuaString, LuaString, Option<f64>, LuaValue)| {
                let (bytes, wanted) = (text.as_bytes(), pattern.as_bytes());
                let Some(from) = start(&bytes, init) else { return Ok(nil()) };
                let literal = !matches!(is_plain, LuaValue::Nil | LuaValue::Boolean(false));
                if literal || pattern::is_plain(&wanted) {
                    let found = counted(&spent, |steps| pattern::find_plain(&bytes, &wanted, from, steps))?;
                    return match found {
                        Some(at) => Ok(positions(at, at + wanted.len())),
                        None => Ok(nil()),
                    };
                }
                let Some(found) = search(&spent, &bytes, &wanted, from)? else { return Ok(nil()) };
                let mut values = positions(found.start, found.end);
                for capture in &found.captures {
                    values.push_back(captured(lua, &bytes, *capture)?);
                }
                Ok(values)
            },
        )?,
    )?;
    let spent = budget.clone();
    string.set(
        "match",
        lua.create_function(move |lua, (text, pattern, init): (LuaString, LuaString, Option<f64>)| {
            let bytes = text.as_bytes();
            let Some(from) = start(&bytes, init) else { return Ok(nil()) };
            match search(&spent, &bytes, &pattern.as_bytes(), from)? {
                Some(found) => matched(lua, &bytes, &found),
                None => Ok(nil()),
            }
        })?,
    )?;
    let spent = budget.clone();
    string.set(
        "gmatch",
        lua.create_function(move |lua, (text, pattern): (LuaString, LuaString)| {
            let next = Arc::new(AtomicU64::new(0));
            let spent = spent.clone();
            lua.create_function(move |lua, _: MultiValue| {
                let bytes = text.as_bytes();
                let from = usize::try_from(next.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
                let Some(found) = search(&spent, &bytes, &pattern.as_bytes(), from)? else {
                    return Ok(nil());
                };
                // An empty match advances by one; otherwise the loop would not end.
                let after = if found.end == found.start { found.end + 1 } else { found.end };
                next.store(after as u64, Ordering::Relaxed);
                matched(lua, &bytes, &found)
            })
        })?,
    )
}

fn search(budget: &Budget, text: &[u8], pattern: &[u8], from: usize) -> mlua::Result<Option<Match>> {
    counted(budget, |steps| pattern::find(text, pattern, from, steps))
}

/// Runs a search with the steps that are left in the budget, and takes those that it used.
fn counted<T>(budget: &Budget, search: impl FnOnce(&mut u64) -> Result<T, PatternError>) -> mlua::Result<T> {
    let before = budget.left();
    let mut steps = before;
    let found = search(&mut steps);
    if !budget.spend(before - steps) {
        return Err(interrupted());
    }
    found.map_err(mlua::Error::runtime)
}

fn matched(lua: &Lua, text: &[u8], found: &Match) -> mlua::Result<MultiValue> {
    if found.captures.is_empty() {
        return Ok(MultiValue::from_vec(vec![LuaValue::String(
            lua.create_string(&text[found.start..found.end])?,
        )]));
    }
    found.captures.iter().map(|capture| captured(lua, text, *capture)).collect()
}

fn captured(lua: &Lua, text: &[u8], capture: Capture) -> mlua::Result<LuaValue> {
    Ok(match capture {
        Capture::Text { start, end } => LuaValue::String(lua.create_string(&text[start..end])?),
        Capture::Position(at) => LuaValue::Number(at as f64),
    })
}

/// Converts Lua's one-based, possibly negative start to an offset; `None` beyond the end.
fn start(text: &[u8], init: Option<f64>) -> Option<usize> {
    let init = init.unwrap_or(1.0) as i64;
    let length = i64::try_from(text.len()).unwrap_or(i64::MAX);
    let offset = if init > 0 {
        init - 1
    } else if init < 0 {
        (length + init).max(0)
    } else {
        0
    };
    usize::try_from(offset).ok().filter(|offset| *offset <= text.len())
}

fn nil() -> MultiValue {
    MultiValue::from_vec(vec![LuaValue::Nil])
}

fn positions(start: usize, end: usize) -> MultiValue {
    MultiValue::from_vec(vec![LuaValue::Number((start + 1) as f64), LuaValue::Number(end as f64)])
}

fn install_random(lua: &Lua, math: &Table, random: &Random) -> mlua::Result<()> {
    let source = random.clone();
    math.set(
        "random",
        lua.create_function(move |_, (low, high): (Option<f64>, Option<f64>)| {
            let (low, high) = match (low, high) {
                (None, _) => return Ok(source.next()),
                (Some(high), None) => (1.0, high),
                (Some(low), Some(high)) => (low, high),
            };
            if low > high {
                return Err(mlua::Error::runtime("math.random: interval is empty"));
            }
            Ok((source.next() * (high - low + 1.0)).floor() + low)
        })?,
    )?;
    let source = random.clone();
    math.set(
        "randomseed",
        lua.create_function(move |_, seed: f64| {
            source.0.store(SEED ^ seed.to_bits(), Ordering::Relaxed);
            Ok(())
        })?,
    )
}

/// `os.time` and `os.date`, in UTC; no other functions of `os` exist.
fn time_library(lua: &Lua, clock: ScriptClock) -> mlua::Result<Table> {
    let os = lua.create_table()?;
    let now = clock.clone();
    os.set(
        "time",
        lua.create_function(move |_, parts: Option<Table>| {
            let Some(parts) = parts else { return Ok(now().as_second() as f64) };
            let field = |name: &str, default: i64| -> mlua::Result<i64> {
                Ok(parts.raw_get::<Option<f64>>(name)?.map_or(default, |value| value as i64))
            };
            let (year, month, day) = (field("year", 1970)?, field("month", 1)?, field("day", 1)?);
            let (hour, minute, second) = (field("hour", 12)?, field("min", 0)?, field("sec", 0)?);
            let seconds = hour.saturating_mul(3600).saturating_add(minute.saturating_mul(60));
            let seconds = seconds.saturating_add(second);
            let date = i16::try_from(year)
                .ok()
                .zip(i8::try_from(month).ok())
                .zip(i8::try_from(day).ok())
                .and_then(|((year, month), day)| jiff::civil::Date::new(year, month, day).ok())
                .and_then(|date| date.to_zoned(TimeZone::UTC).ok())
                .ok_or_else(|| {
                    mlua::Error::runtime(format!("os.time: {year}-{month}-{day} is not a date"))
                })?;
            Ok(date.timestamp().as_second().saturating_add(seconds) as f64)
        })?,
    )?;
    os.set(
        "date",
        lua.create_function(move |lua, (format, at): (Option<String>, Option<f64>)| {
            let at = match at {
                Some(seconds) => Timestamp::from_second(seconds as i64).map_err(mlua::Error::runtime)?,
                None => clock(),
            };
            let at = at.to_zoned(TimeZone::UTC);
            let format = format.unwrap_or_else(|| "%c".to_owned());
            if format.len() > MAX_DATE_FORMAT {
                return Err(mlua::Error::runtime(format!(
                    "os.date: the format is longer than {MAX_DATE_FORMAT} bytes"
                )));
            }
            let format = format.trim_start_matches('!');
            if format.starts_with("*t") {
                return Ok(LuaValue::Table(date_table(lua, &at)?));
            }
            let text = jiff::fmt::strtime::format(format, &at)
                .map_err(|error| mlua::Error::runtime(format!("os.date: {error}")))?;
            Ok(LuaValue::String(lua.create_string(text)?))
        })?,
    )?;
    Ok(os)
}

fn date_table(lua: &Lua, at: &Zoned) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    table.set("year", at.year())?;
    table.set("month", at.month())?;
    table.set("day", at.day())?;
    table.set("hour", at.hour())?;
    table.set("min", at.minute())?;
    table.set("sec", at.second())?;
    table.set("wday", at.weekday().to_sunday_one_offset())?;
    table.set("yday", at.day_of_year())?;
    table.set("isdst", false)?;
    Ok(table)
}

/// The module `kube` for scripts.
fn kube_module(lua: &Lua, array_metatable: &Table, budget: &Arc<Budget>) -> mlua::Result<Table> {
    let kube = lua.create_table()?;
    let template = {
        let (lists, budget) = (array_metatable.clone(), budget.clone());
        move |template: Table| {
            convert::from_lua(&lists, &budget, &LuaValue::Table(template), &[])
                .map(Option::unwrap_or_default)
                .map_err(mlua::Error::runtime)
        }
    };
    kube.set(
        "resourceAdd",
        lua.create_function(|_, values: MultiValue| {
            let mut total = Quantity::ZERO;
            for value in &values {
                total = total
                    .plus(quantity(value)?)
                    .ok_or_else(|| mlua::Error::runtime("resourceAdd: the sum is too large"))?;
            }
            Ok(total.to_string())
        })?,
    )?;
    kube.set(
        "getResourceQuantity",
        lua.create_function(|_, value: LuaValue| {
            let amount = quantity(&value)?.as_f64();
            if amount < 0.0 {
                return Err(mlua::Error::runtime(format!("getResourceQuantity: {amount} is negative")));
            }
            Ok(amount)
        })?,
    )?;
    let (lists, read) = (array_metatable.clone(), template.clone());
    kube.set(
        "accuratePodRequirements",
        lua.create_function(move |lua, template: Table| {
            match pods::requirements(&read(template)?).map_err(mlua::Error::runtime)? {
                Some(requirements) => convert::to_lua(lua, &lists, &requirements),
                None => Ok(LuaValue::Nil),
            }
        })?,
    )?;
    let lists = array_metatable.clone();
    kube.set(
        "getPodDependencies",
        lua.create_function(move |lua, (pod, namespace): (Table, Option<String>)| {
            let namespace = namespace.unwrap_or_else(|| "default".to_owned());
            if namespace.len() > MAX_NAMESPACE {
                return Err(mlua::Error::runtime(format!(
                    "getPodDependencies: the namespace is longer than {MAX_NAMESPACE} bytes"
                )));
            }
            convert::to_lua(lua, &lists, &pods::dependencies(&template(pod)?, &namespace))
        })?,
    )?;
    Ok(kube)
}

fn quantity(value: &LuaValue) -> mlua::Result<Quantity> {
    match value {
        LuaValue::Nil => Ok(Quantity::ZERO),
        LuaValue::String(text) if text.as_bytes().len() > MAX_QUANTITY => {
            Err(mlua::Error::runtime(format!("a quantity is longer than {MAX_QUANTITY} bytes")))
        }
        LuaValue::String(text) => Quantity::parse(&text.to_string_lossy()).map_err(mlua::Error::runtime),
        other => Err(mlua::Error::runtime(format!(
            "expected a quantity such as \"100m\", got {}",
            other.type_name()
        ))),
    }
}
