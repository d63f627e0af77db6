//! Conversion between JSON and Lua tables.
//!
//! A Lua table does not distinguish an empty list from an empty map. Lists from JSON have a metatable that
//! scripts cannot reach, so values that a script passes through are unchanged. An empty table that the script
//! created gets the type of the value at the same path in the reference objects; without one the field is
//! dropped, because the API server would reject a wrong guess. Integers beyond 2^53 lose precision, as in
//! every Lua 5.1.

use mlua::{Lua, Table, Value as LuaValue};
use serde_json::{Map, Number, Value};

/// Maximum nesting; beyond it the table is a cycle or an attack. Kubernetes rejects far less.
const MAX_DEPTH: usize = 100;
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

/// Converts Lua to JSON; `references` decide the type of empty tables without the metatable. `None` for nil
/// and for an empty table without a reference.
pub(crate) fn from_lua(
    array_metatable: &Table,
    value: &LuaValue,
    references: &[&Value],
) -> Result<Option<Value>, ConvertError> {
    Reader { array_metatable }.read(value, references, "the result", 0)
}

struct Reader<'a> {
    array_metatable: &'a Table,
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
        let foreign = |what| Err(ConvertError::Foreign { path: path.to_owned(), what });
        match value {
            LuaValue::Nil => Ok(None),
            LuaValue::Boolean(flag) => Ok(Some(Value::Bool(*flag))),
            LuaValue::Integer(number) => Ok(Some(Value::from(*number))),
            LuaValue::Number(number) => read_number(*number, path).map(Some),
            LuaValue::String(text) => match text.to_str() {
                Ok(text) => Ok(Some(Value::String(text.to_owned()))),
                Err(_) => Err(ConvertError::NotText { path: path.to_owned() }),
            },
            LuaValue::Table(table) => self.read_table(table, references, path, depth),
            LuaValue::Function(_) => foreign("function"),
            LuaValue::Thread(_) => foreign("coroutine"),
            _ => foreign("host value"),
        }
    }

    fn read_table(
        &self,
        table: &Table,
        references: &[&Value],
        path: &str,
        depth: usize,
    ) -> Result<Option<Value>, ConvertError> {
        let mixed = || ConvertError::Mixed { path: path.to_owned() };
        let mut items: Vec<(i64, LuaValue)> = Vec::new();
        let mut fields: Vec<(String, LuaValue)> = Vec::new();
        for pair in table.pairs::<LuaValue, LuaValue>() {
            let (key, value) = pair.map_err(|_| mixed())?;
            match key {
                LuaValue::String(key) => match key.to_str() {
                    Ok(key) => fields.push((key.to_owned(), value)),
                    Err(_) => return Err(ConvertError::NotText { path: path.to_owned() }),
                },
                LuaValue::Integer(at) => items.push((at, value)),
                LuaValue::Number(at) if at.fract() == 0.0 && at.abs() < EXACT => {
                    items.push((at as i64, value))
                }
                _ => return Err(mixed()),
            }
        }
        if items.is_empty() && fields.is_empty() {
            return Ok(self.empty(table, references));
        }
        if fields.is_empty() {
            return self.read_list(items, references, path, depth).map(Some);
        }
        if !items.is_empty() {
            return Err(mixed());
        }
        let mut object = Map::with_capacity(fields.len());
        // Sorted, because the iteration order of a Lua table is not defined.
        fields.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (key, value) in fields {
            let beneath: Vec<&Value> =
                references.iter().filter_map(|reference| reference.get(&key)).collect();
            if let Some(value) = self.read(&value, &beneath, &format!("{path}.{key}"), depth + 1)? {
                object.insert(key, value);
            }
        }
        Ok(Some(Value::Object(object)))
    }

    fn read_list(
        &self,
        mut items: Vec<(i64, LuaValue)>,
        references: &[&Value],
        path: &str,
        depth: usize,
    ) -> Result<Value, ConvertError> {
        items.sort_by_key(|(at, _)| *at);
        let whole = items.iter().enumerate().all(|(index, (at, _))| i64::try_from(index + 1) == Ok(*at));
        if !whole {
            return Err(ConvertError::Mixed { path: path.to_owned() });
        }
        // A script may reorder a list, so every item of the reference lists is a reference for each item.
        let beneath: Vec<&Value> =
            references.iter().filter_map(|reference| reference.as_array()).flatten().collect();
        let mut list = Vec::with_capacity(items.len());
        for (at, value) in items {
            let item = self.read(&value, &beneath, &format!("{path}[{at}]"), depth + 1)?;
            list.push(item.unwrap_or_else(|| Value::Object(Map::new())));
        }
        Ok(Value::Array(list))
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
