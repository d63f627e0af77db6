//! Tables: a head in capitals, columns two spaces apart, no lines.
//!
//! On a terminal a table fits its width: what is too long is wrapped inside its column, and sentences that have no room beside
//! the other columns stand below their row. In a pipe nothing is wrapped.

use comfy_table::{Cell, CellAlignment, ColumnConstraint, ContentArrangement, Row, Width};

/// Columns that may be told below their row.
const SENTENCES: [&str; 2] = ["REASON", "MESSAGE"];
/// The least room that a sentence is readable in.
const SENTENCE: u16 = 24;

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
        match width.map_or(0, |width| self.below(width)) {
            0 => self.columns(self.heads.len(), width),
            below => self.with_sentences_below(self.heads.len() - below, width),
        }
    }

    /// How many of the last columns are told below their row, because there is no room for a sentence beside the others.
    fn below(&self, width: u16) -> usize {
        let widths = self.widths();
        let needed = |columns: usize| widths[..columns].iter().sum::<u16>() + columns as u16 - 1;
        let talk = self.heads.iter().rev().take_while(|head| SENTENCES.contains(head)).count();
        let whole = self.heads.len();
        let fits = needed(whole) <= width || (talk > 0 && needed(whole - 1) + 1 + SENTENCE <= width);
        if fits { 0 } else { (1..=talk).find(|below| needed(whole - below) <= width).unwrap_or(0) }
    }

    fn with_sentences_below(&self, columns: usize, width: Option<u16>) -> String {
        let text = self.columns(columns, width);
        let mut lines = text.lines();
        let mut drawn: Vec<String> = lines.next().map(str::to_owned).into_iter().collect();
        for (line, row) in lines.zip(&self.rows) {
            drawn.push(line.to_owned());
            let said: Vec<&str> =
                row[columns..].iter().map(String::as_str).filter(|cell| *cell != "-").collect();
            if !said.is_empty() {
                drawn.push(format!("    {}", said.join(": ").replace('\n', " ")));
            }
        }
        drawn.join("\n")
    }

    /// The first so many columns.
    fn columns(&self, count: usize, width: Option<u16>) -> String {
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
        let heads = &self.heads[..count];
        table.set_header(Row::from(heads.iter().map(|head| Cell::new(*head)).collect::<Vec<_>>()));
        for row in &self.rows {
            table.add_row(Row::from(row.iter().take(count).map(Cell::new).collect::<Vec<_>>()));
        }
        // Columns move together before anything is wrapped. The last is wrapped first, where that is enough, and the
        // first, which names things, last: an address that is broken in two cannot be copied.
        let widths = &self.widths()[..count];
        let natural: u16 = widths.iter().sum::<u16>() + 2 * (count as u16 - 1);
        let gap = if width.is_some_and(|width| natural > width) { 1 } else { 2 };
        let last = count.saturating_sub(1);
        let others: u16 = widths[..last].iter().map(|width| width + gap).sum();
        let last_has_room = width.is_some_and(|width| others + SENTENCE.min(widths[last]) <= width);
        for (index, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, if index == last { 0 } else { gap }));
            column.set_cell_alignment(CellAlignment::Left);
            let whole = widths[index] + gap;
            let first = index == 0 && width.is_some_and(|width| whole <= width / 2);
            if first || (index != last && last_has_room) {
                column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(whole)));
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

    #[test]
    fn a_sentence_without_room_stands_below_its_row_and_no_address_is_broken() {
        let mut table = Table::new(&["NAME", "ADDRESS", "IMAGE", "REASON", "MESSAGE"], "");
        let cells = [
            "web-dfw-7d295117f4-0",
            "127.16.1.238:8080",
            "polis.local/hello",
            "Running",
            "the instance runs",
        ];
        table.row(cells.map(str::to_owned));
        table.row(["api-0", "", "nginx", "", ""].map(str::to_owned));
        assert!(table.draw(Some(100)).contains("Running  the instance runs"));
        insta::assert_snapshot!(table.draw(Some(80)), @"
        NAME                  ADDRESS            IMAGE              REASON
        web-dfw-7d295117f4-0  127.16.1.238:8080  polis.local/hello  Running
            the instance runs
        api-0                 -                  nginx              -
        ");
        insta::assert_snapshot!(table.draw(Some(60)), @"
        NAME                  ADDRESS            IMAGE
        web-dfw-7d295117f4-0  127.16.1.238:8080  polis.local/hello
            Running: the instance runs
        api-0                 -                  nginx
        ");
    }

    #[test]
    fn a_sentence_with_room_is_wrapped_in_its_column_before_anything_else_is() {
        let mut table = Table::new(&["NAME", "ADDRESS", "MESSAGE"], "");
        let long = "image nginx needs a container engine, and this city runs instances as processes";
        table.row(["web-dfw-7d295117f4-0", "127.16.1.238:8080", long].map(str::to_owned));
        let text = table.draw(Some(80));
        assert!(text.contains("web-dfw-7d295117f4-0 127.16.1.238:8080 image nginx needs"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}
