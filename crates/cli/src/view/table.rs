//! Tables: a head in capitals, columns two spaces apart, no lines.
//!
//! On a terminal a table fits its width: what is too long is wrapped inside its column. In a pipe nothing is wrapped.

use comfy_table::{Cell, CellAlignment, ColumnConstraint, ContentArrangement, Row, Width};

/// A table in the making.
#[derive(Clone, Debug)]
pub struct Table {
    heads: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    nothing: String,
}

impl Table {
    /// A table with these heads; `nothing` is said in its place when it has no row.
    pub fn new(heads: &[&'static str], nothing: impl Into<String>) -> Self {
        Table { heads: heads.to_vec(), rows: Vec::new(), nothing: nothing.into() }
    }

    /// Adds a row. What is empty is shown as a dash, so that columns can be counted in a pipe.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter().map(|cell| if cell.is_empty() { "-".to_owned() } else { cell });
        self.rows.push(cells.collect());
    }

    /// The widest cell of each column.
    fn widths(&self) -> Vec<u16> {
        let wide = |text: &str| u16::try_from(text.chars().count()).unwrap_or(u16::MAX / 32);
        let cells = |index: usize| self.rows.iter().filter_map(move |row| row.get(index));
        let heads = self.heads.iter().enumerate();
        heads.map(|(index, head)| cells(index).map(|cell| wide(cell)).fold(wide(head), u16::max)).collect()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// What is said in place of an empty table.
    pub fn nothing(&self) -> &str {
        &self.nothing
    }

    /// The text; `width` is that of the terminal, none in a pipe.
    pub fn draw(&self, width: Option<u16>) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::NOTHING);
        match width {
            Some(width) => {
                table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
            }
            None => {
                table.set_content_arrangement(ContentArrangement::Disabled);
            }
        }
        table.set_header(Row::from(self.heads.iter().map(|head| Cell::new(*head)).collect::<Vec<_>>()));
        for row in &self.rows {
            table.add_row(Row::from(row.iter().map(Cell::new).collect::<Vec<_>>()));
        }
        // Columns move together before anything is wrapped, and the first, which names things, is wrapped last.
        let natural: u16 = self.widths().iter().sum::<u16>() + 2 * (self.heads.len() as u16 - 1);
        let gap = if width.is_some_and(|width| natural > width) { 1 } else { 2 };
        let first = self.widths()[0] + gap;
        let last = self.heads.len().saturating_sub(1);
        for (index, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, if index == last { 0 } else { gap }));
            column.set_cell_alignment(CellAlignment::Left);
            if index == 0 && width.is_some_and(|width| first <= width / 2) {
                column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(first)));
            }
        }
        table.trim_fmt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_table() -> Table {
        let mut table = Table::new(&["NAME", "READY", "REASON"], "no workloads");
        table.row(["web".into(), "2/2".into(), String::new()]);
        table.row([
            "a-rather-long-name-of-a-workload-somebody-typed".into(),
            "0/1".into(),
            "NoAvailablePlacements".into(),
        ]);
        table
    }

    #[test]
    fn a_pipe_gets_whole_lines() {
        insta::assert_snapshot!(mk_table().draw(None), @"
        NAME                                             READY  REASON
        web                                              2/2    -
        a-rather-long-name-of-a-workload-somebody-typed  0/1    NoAvailablePlacements
        ");
    }

    #[test]
    fn a_terminal_is_never_overrun() {
        for width in [40, 60, 80] {
            let text = mk_table().draw(Some(width));
            assert!(text.lines().all(|line| line.chars().count() <= usize::from(width)), "{width}:\n{text}");
        }
    }
}
