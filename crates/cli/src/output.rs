//! `-o`: prints the result of a command as a table, a wide table, JSON, YAML or names.
//!
//! JSON and YAML print the objects as the server returned them, without `managedFields`: a single object, or
//! a `List` as kubectl prints it, so that a `jq` expression works for both programs.

use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::{Value, json};

use crate::exit::{CliError, Exit};
use crate::terminal;
use crate::view::table::Table;

/// The `-o` flag of commands that print objects.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct OutputFlag {
    /// Output format [default: a table]
    #[arg(short = 'o', long = "output", value_name = "FORMAT")]
    pub output: Option<Format>,
}

/// Output formats of `-o`.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Print the objects as JSON
    Json,
    /// Print the objects as YAML
    Yaml,
    /// Print a table with more columns
    Wide,
    /// Print one kind/name per line
    Name,
}

impl OutputFlag {
    /// Prints a list of objects.
    pub fn list<T: Serialize>(
        &self,
        kind: &str,
        items: &[T],
        table: impl FnOnce(bool) -> Table,
    ) -> Result<(), CliError> {
        match self.output {
            None => show(table(false)),
            Some(Format::Wide) => show(table(true)),
            Some(Format::Name) => {
                items.iter().for_each(|item| terminal::print_document(&shown_name(kind, item)))
            }
            Some(form) => {
                let items: Vec<Value> = items.iter().map(plain).collect();
                document(form, &json!({"apiVersion": "v1", "kind": "List", "items": items}))?;
            }
        }
        Ok(())
    }

    /// Prints one object; `text` renders it for the table formats.
    pub fn one<T: Serialize>(
        &self,
        kind: &str,
        item: &T,
        text: impl FnOnce(bool) -> String,
    ) -> Result<(), CliError> {
        self.one_styled(kind, item, |wide| terminal::shown(&text(wide)).into_owned())
    }

    /// As [`OutputFlag::one`], for a text with colours.
    pub fn one_styled<T: Serialize>(
        &self,
        kind: &str,
        item: &T,
        text: impl FnOnce(bool) -> String,
    ) -> Result<(), CliError> {
        match self.output {
            None => terminal::print_styled(text(false)),
            Some(Format::Wide) => terminal::print_styled(text(true)),
            Some(Format::Name) => terminal::print_document(&shown_name(kind, item)),
            Some(form) => document(form, &plain(item))?,
        }
        Ok(())
    }

    /// Keeps stdout for the document of a command that prints its progress too.
    pub fn reserve_stdout(&self) {
        if self.is_machine_readable() {
            terminal::reserve_stdout();
        }
    }

    /// Prints what a command has created or changed, for the formats that scripts read.
    pub fn changed(&self, kind: &str, objects: &[Value]) -> Result<(), CliError> {
        match objects {
            _ if !self.is_machine_readable() => Ok(()),
            [object] => self.one(kind, object, |_| String::new()),
            objects => self.list(kind, objects, |_| Table::new(&[], "")),
        }
    }

    /// Whether the format is meant for scripts.
    pub fn is_machine_readable(&self) -> bool {
        matches!(self.output, Some(Format::Json | Format::Yaml | Format::Name))
    }
}

fn show(table: Table) {
    match table.is_empty() {
        // On stderr: scripts count the lines of stdout.
        true => terminal::note(table.empty_message()),
        false => terminal::print(table.draw(terminal::width())),
    }
}

fn document(form: Format, value: &Value) -> Result<(), CliError> {
    let text = match form {
        Format::Yaml => yaml(value),
        _ => serde_json::to_string_pretty(value).map_err(|error| error.to_string()),
    };
    let text = text.map_err(|why| CliError::new(Exit::Failed, "failed to serialise the output", why, ""))?;
    terminal::print_document(&terminal::shown(&text));
    Ok(())
}

fn shown_name<T: Serialize>(kind: &str, item: &T) -> String {
    terminal::shown(&name_of(kind, &plain(item))).into_owned()
}

/// Serialises a value as YAML.
pub fn yaml(value: &Value) -> Result<String, String> {
    serde_saphyr::to_string(value).map_err(|error| error.to_string())
}

/// The object without `managedFields`, which is longer than the rest of the object.
fn plain<T: Serialize>(item: &T) -> Value {
    let mut value = serde_json::to_value(item).unwrap_or(Value::Null);
    if let Some(meta) = value.pointer_mut("/metadata").and_then(Value::as_object_mut) {
        meta.remove("managedFields");
    }
    value
}

fn name_of(kind: &str, value: &Value) -> String {
    let name = ["/metadata/name", "/name", "/id"].iter().find_map(|path| value.pointer(path)?.as_str());
    // A revision has a number instead of a name, in the field `revision`.
    let number = || value.get(kind).and_then(Value::as_u64).map(|number| number.to_string());
    format!("{kind}/{}", name.map(str::to_owned).or_else(number).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_format_is_kind_and_name_as_in_kubectl() {
        assert_eq!(name_of("workload", &json!({"metadata": {"name": "web"}})), "workload/web");
        assert_eq!(name_of("city", &json!({"name": "dfw"})), "city/dfw");
        assert_eq!(name_of("credential", &json!({"id": "1f"})), "credential/1f");
        assert_eq!(name_of("revision", &json!({"revision": 3, "cause": "deploy"})), "revision/3");
    }

    #[test]
    fn managed_fields_are_left_out() {
        let object = json!({"metadata": {"name": "web", "managedFields": [{"manager": "x"}]}});
        assert_eq!(plain(&object), json!({"metadata": {"name": "web"}}));
    }
}
