//! `-o`: one answer as a table, a wide table, JSON, YAML or names.
//!
//! JSON and YAML show the objects as the server gave them (without the bookkeeping of field managers): one object for
//! one thing asked, a List for several, as kubectl does, so that `jq` lines written for one work for the other.

use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::{Value, json};

use crate::exit::{Exit, Fault};
use crate::terminal;
use crate::view::table::Table;

/// The `-o` flag of verbs that show something.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct OutputFlag {
    /// How to show the answer; a table when absent
    #[arg(short = 'o', long = "output", value_name = "FORMAT")]
    pub output: Option<Format>,
}

/// A form of the answer.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The objects, as JSON
    Json,
    /// The objects, as YAML
    Yaml,
    /// A table with more columns
    Wide,
    /// One kind/name per line
    Name,
}

impl OutputFlag {
    /// Shows several things.
    pub fn list<T: Serialize>(
        &self,
        kind: &str,
        items: &[T],
        table: impl FnOnce(bool) -> Table,
    ) -> Result<(), Fault> {
        match self.output {
            None => show(table(false)),
            Some(Format::Wide) => show(table(true)),
            Some(Format::Name) => items.iter().for_each(|item| terminal::say(name_of(kind, &plain(item)))),
            Some(form) => {
                let items: Vec<Value> = items.iter().map(plain).collect();
                document(form, &json!({"apiVersion": "v1", "kind": "List", "items": items}))?;
            }
        }
        Ok(())
    }

    /// Shows one thing; `text` draws it for people.
    pub fn one<T: Serialize>(
        &self,
        kind: &str,
        item: &T,
        text: impl FnOnce(bool) -> String,
    ) -> Result<(), Fault> {
        match self.output {
            None => terminal::say(text(false)),
            Some(Format::Wide) => terminal::say(text(true)),
            Some(Format::Name) => terminal::say(name_of(kind, &plain(item))),
            Some(form) => document(form, &plain(item))?,
        }
        Ok(())
    }

    /// Whether a program reads the answer.
    pub fn is_for_programs(&self) -> bool {
        matches!(self.output, Some(Format::Json | Format::Yaml | Format::Name))
    }
}

fn show(table: Table) {
    match table.is_empty() {
        // On stderr: an empty stdout is what a script counts.
        true => terminal::remark(table.nothing()),
        false => terminal::say(table.draw(terminal::width())),
    }
}

fn document(form: Format, value: &Value) -> Result<(), Fault> {
    let text = match form {
        Format::Yaml => yaml(value),
        _ => serde_json::to_string_pretty(value).map_err(|error| error.to_string()),
    };
    let text = text.map_err(|why| Fault::new(Exit::Failed, "failed to write the answer", why, ""))?;
    terminal::say(text);
    Ok(())
}

/// A value as YAML.
pub fn yaml(value: &Value) -> Result<String, String> {
    serde_saphyr::to_string(value).map_err(|error| error.to_string())
}

/// An object without field managers' bookkeeping, which is longer than the object and says nothing to a person.
fn plain<T: Serialize>(item: &T) -> Value {
    let mut value = serde_json::to_value(item).unwrap_or(Value::Null);
    if let Some(meta) = value.pointer_mut("/metadata").and_then(Value::as_object_mut) {
        meta.remove("managedFields");
    }
    value
}

fn name_of(kind: &str, value: &Value) -> String {
    let name = value.pointer("/metadata/name").or_else(|| value.pointer("/name")).and_then(Value::as_str);
    // What has a number instead of a name is called by its kind: a revision.
    let number = || value.get(kind).and_then(Value::as_u64).map(|number| number.to_string());
    format!("{kind}/{}", name.map(str::to_owned).or_else(number).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_kind_and_name_as_kubectl_takes_it() {
        assert_eq!(name_of("workload", &json!({"metadata": {"name": "web"}})), "workload/web");
        assert_eq!(name_of("city", &json!({"name": "dfw"})), "city/dfw");
        assert_eq!(name_of("revision", &json!({"revision": 3, "cause": "deploy"})), "revision/3");
    }

    #[test]
    fn bookkeeping_of_field_managers_is_left_out() {
        let object = json!({"metadata": {"name": "web", "managedFields": [{"manager": "x"}]}});
        assert_eq!(plain(&object), json!({"metadata": {"name": "web"}}));
    }
}
