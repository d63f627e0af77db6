//! Conversion between JSON and Lua tables.
//!
//! A Lua table does not distinguish an empty list from an empty map. Lists from JSON have a metatable that
//! scripts cannot reach, so values that a script passes through are unchanged. An empty table that the script
//! created gets the type of the value at the same path in the reference objects; without one the field is
//! dropped, because the API server would reject a wrong guess. Integers beyond 2^53 lose precision, as in
//! every Lua 5.1.

use std::cell::Cell;
use std::collections::BTreeMap;

use mlua::{Lua, LuaString, Table, Value as LuaValue};
use serde_json::{Map, Number, Value};

use super::host::Budget;

/// Maximum nesting; beyond it the table is a cycle or an attack. Kubernetes rejects far less.
const MAX_DEPTH: usize = 100;
/// Maximum memory of a converted value, in bytes. Kubernetes accepts objects of 3 MiB. A table may contain
/// the same table or string many times, so the limit of Lua's memory does not bound its JSON.
const MAX_BYTES: usize = 16 << 20;
/// Memory of one JSON value.
const NODE_BYTES: usize = 64;
/// 2^53: beyond it a double does not represent every integer.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// Why a Lua value cannot be converted to JSON.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum ConvertError {
    #[error("{path} is a {what}, which JSON cannot represent")]
    Foreign { path: String, what: &'static str },
    #[error("{path} is a list with holes or a mixture of list and map")]
    Mixed { path: String },
    #[error("{path} is nested more than {MAX_DEPTH} levels deep, or refers to itself")]
    Deep { path: String },
    #[error("{path} is not a finite number")]
    NotFinite { path: String },
    #[error("{path} is text that is not UTF-8")]
    NotText { path: String },
    #[error("the result takes more than {} MiB", MAX_BYTES >> 20)]
    TooLarge,
    #[error("interrupted: the script exceeded its budget in a conversion to JSON")]
    OutOfBudget,
    #[error("failed to read {path}: {message}")]
    Unreadable { path: String, message: String },
}

/// Converts JSON to Lua; lists get `array_metatable`.
pub(crate) fn to_lua(lua: &Lua, array_metatable: &Table, value: &Value) -> mlua::Result<LuaValue> {
    Ok(match value {
        Value::Null => LuaValue::Nil,
        Value::Bool(flag) => LuaValue::Boolean(*flag),
        Value::Number(number) => LuaValue::Number(number.as_f64().unwrap_or(f64::NAN)),
        Value::String(text) => LuaValue::String(lua.create_string(text)?),
        Value::Array(items) => {
            let table = lua.create_table_with_capacity(items.len(), 0)?;
            for (at, item) in items.iter().enumerate() {
                table.raw_set(at + 1, to_lua(lua, array_metatable, item)?)?;
            }
            table.set_metatable(Some(array_metatable.clone()))?;
            LuaValue::Table(table)
        }
        Value::Object(fields) => {
            let table = lua.create_table_with_capacity(0, fields.len())?;
            for (key, field) in fields {
                table.raw_set(key.as_str(), to_lua(lua, array_metatable, field)?)?;
            }
            LuaValue::Table(table)
        }
    })
}

/// Converts Lua to JSON within the budget; `references` decide the type of empty tables without the
/// metatable. `None` for nil and for an empty table without a reference.
pub(crate) fn from_lua(
    array_metatable: &Table,
    budget: &Budget,
    value: &LuaValue,
    references: &[&Value],
) -> Result<Option<Value>, ConvertError> {
    let reader = Reader { array_metatable, budget, bytes: Cell::new(0) };
    reader.read(value, references, "the result", 0)
}

struct Reader<'a> {
    array_metatable: &'a Table,
    budget: &'a Budget,
    bytes: Cell<usize>,
}

impl Reader<'_> {
    fn read(
        &self,
        value: &LuaValue,
        references: &[&Value],
        path: &str,
        depth: usize,
    ) -> Result<Option<Value>, ConvertError> {
        if depth > MAX_DEPTH {
            return Err(ConvertError::Deep { path: path.to_owned() });
        }
        self.spend(0, references.len())?;
        let foreign = |what| Err(ConvertError::Foreign { path: path.to_owned(), what });
        match value {
            LuaValue::Nil => Ok(None),
            LuaValue::Boolean(flag) => Ok(Some(Value::Bool(*flag))),
            LuaValue::Integer(number) => Ok(Some(Value::from(*number))),
            LuaValue::Number(number) => read_number(*number, path).map(Some),
            LuaValue::String(text) => self.read_text(text, path).map(|text| Some(Value::String(text))),
            LuaValue::Table(table) => self.read_table(table, references, path, depth),
            LuaValue::Function(_) => foreign("function"),
            LuaValue::Thread(_) => foreign("coroutine"),
            _ => foreign("host value"),
        }
    }

    /// Takes a value with this number of bytes and references from the budget.
    fn spend(&self, bytes: usize, references: usize) -> Result<(), ConvertError> {
        let total = self.bytes.get().saturating_add(bytes).saturating_add(NODE_BYTES);
        self.bytes.set(total);
        if total > MAX_BYTES {
            return Err(ConvertError::TooLarge);
        }
        match self.budget.spend_bytes(bytes.saturating_add(references)) {
            true => Ok(()),
            false => Err(ConvertError::OutOfBudget),
        }
    }

    fn read_text(&self, text: &LuaString, path: &str) -> Result<String, ConvertError> {
        self.spend(text.as_bytes().len(), 0)?;
        match text.to_str() {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(ConvertError::NotText { path: path.to_owned() }),
        }
    }

    /// Converts a table. Each value is converted where it is read: mlua can refer to at most 8,000 Lua values
    /// at a time.
    fn read_table(
        &self,
        table: &Table,
        references: &[&Value],
        path: &str,
        depth: usize,
    ) -> Result<Option<Value>, ConvertError> {
        let mixed = || ConvertError::Mixed { path: path.to_owned() };
        let unreadable = |error: mlua::Error| ConvertError::Unreadable {
            path: path.to_owned(),
            message: error.to_string(),
        };
        let mut items: Vec<(i64, Value)> = Vec::new();
        // Sorted, because the iteration order of a Lua table is not defined.
        let mut fields: BTreeMap<String, Value> = BTreeMap::new();
        let mut is_empty = true;
        // A script may reorder a list, so every item of the reference lists is a reference for each item.
        let mut of_items: Option<Vec<&Value>> = None;
        for pair in table.pairs::<LuaValue, LuaValue>() {
            let (key, value) = pair.map_err(unreadable)?;
            is_empty = false;
            let at = match key {
                LuaValue::String(key) => {
                    let key = self.read_text(&key, path)?;
                    let beneath: Vec<&Value> =
                        references.iter().filter_map(|reference| reference.get(&key)).collect();
                    if let Some(value) = self.read(&value, &beneath, &format!("{path}.{key}"), depth + 1)? {
                        fields.insert(key, value);
                    }
                    continue;
                }
                LuaValue::Integer(at) => at,
                LuaValue::Number(at) if at.fract() == 0.0 && at.abs() < EXACT => at as i64,
                _ => return Err(mixed()),
            };
            let beneath = of_items.get_or_insert_with(|| {
                references.iter().filter_map(|reference| reference.as_array()).flatten().collect()
            });
            let item = self.read(&value, beneath, &format!("{path}[{at}]"), depth + 1)?;
            items.push((at, item.unwrap_or_else(|| Value::Object(Map::new()))));
        }
        if is_empty {
            return Ok(self.empty(table, references));
        }
        if items.is_empty() {
            return Ok(Some(Value::Object(fields.into_iter().collect())));
        }
        items.sort_by_key(|(at, _)| *at);
        let whole = items.iter().enumerate().all(|(index, (at, _))| i64::try_from(index + 1) == Ok(*at));
        if !whole || !fields.is_empty() {
            return Err(mixed());
        }
        Ok(Some(Value::Array(items.into_iter().map(|(_, item)| item).collect())))
    }

    fn empty(&self, table: &Table, references: &[&Value]) -> Option<Value> {
        if table.metatable().is_some_and(|metatable| metatable == *self.array_metatable) {
            return Some(Value::Array(Vec::new()));
        }
        references.iter().find_map(|reference| match reference {
            Value::Array(_) => Some(Value::Array(Vec::new())),
            Value::Object(_) => Some(Value::Object(Map::new())),
            _ => None,
        })
    }
}

fn read_number(number: f64, path: &str) -> Result<Value, ConvertError> {
    if number.fract() == 0.0 && number.abs() <= EXACT {
        return Ok(Value::from(number as i64));
    }
    Number::from_f64(number)
        .map(Value::Number)
        .ok_or_else(|| ConvertError::NotFinite { path: path.to_owned() })
}
