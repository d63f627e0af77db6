//! Renders tables: a header in capitals, columns two spaces apart, no borders.
//!
//! On a terminal a table fits the width: long cells are wrapped in their column, and sentences that do not
//! fit beside the other columns are printed below their row. In a pipe nothing is wrapped.

use comfy_table::{Cell, CellAlignment, ColumnConstraint, ContentArrangement, Row, Width};

/// Columns that may be printed below their row.
const SENTENCES: [&str; 2] = ["REASON", "MESSAGE"];
/// Minimum width of a sentence column.
const SENTENCE: u16 = 24;

/// A table with a header and rows.
#[derive(Clone, Debug)]
pub struct Table {
    heads: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    empty_message: String,
}

impl Table {
    /// A table with a header. `empty_message` is printed if it has no rows.
    pub fn new(heads: &[&'static str], empty_message: impl Into<String>) -> Self {
        Table { heads: heads.to_vec(), rows: Vec::new(), empty_message: empty_message.into() }
    }

    /// Adds a row. Empty cells are printed as a dash, so that scripts can count columns.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter().map(|cell| if cell.is_empty() { "-".to_owned() } else { cell });
        self.rows.push(cells.collect());
    }

    /// Width of each column.
    fn widths(&self) -> Vec<u16> {
        let wide = |text: &str| u16::try_from(text.chars().count()).unwrap_or(u16::MAX / 32);
        let cells = |index: usize| self.rows.iter().filter_map(move |row| row.get(index));
        let heads = self.heads.iter().enumerate();
        heads.map(|(index, head)| cells(index).map(|cell| wide(cell)).fold(wide(head), u16::max)).collect()
    }

    /// Whether the table has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The message to print if the table is empty.
    pub fn empty_message(&self) -> &str {
        &self.empty_message
    }

    /// Renders the table. `width` is that of the terminal; `None` in a pipe.
    pub fn draw(&self, width: Option<u16>) -> String {
        match width.map_or(0, |width| self.below(width)) {
            0 => self.columns(self.heads.len(), width),
            below => self.with_sentences_below(self.heads.len() - below, width),
        }
    }

    /// Number of last columns that are printed below their row, because a sentence does not fit beside the
    /// others.
    fn below(&self, width: u16) -> usize {
        let widths = self.widths();
        let needed = |columns: usize| widths[..columns].iter().sum::<u16>() + columns as u16 - 1;
        let sentences = self.heads.iter().rev().take_while(|head| SENTENCES.contains(head)).count();
        let whole = self.heads.len();
        let fits = needed(whole) <= width || (sentences > 0 && needed(whole - 1) + 1 + SENTENCE <= width);
        if fits { 0 } else { (1..=sentences).find(|below| needed(whole - below) <= width).unwrap_or(0) }
    }

    fn with_sentences_below(&self, columns: usize, width: Option<u16>) -> String {
        let text = self.columns(columns, width);
        let mut lines = text.lines();
        let mut drawn: Vec<String> = lines.next().map(str::to_owned).into_iter().collect();
        for (line, row) in lines.zip(&self.rows) {
            drawn.push(line.to_owned());
            let texts: Vec<&str> =
                row[columns..].iter().map(String::as_str).filter(|cell| *cell != "-").collect();
            if !texts.is_empty() {
                drawn.push(format!("    {}", texts.join(": ").replace('\n', " ")));
            }
        }
        drawn.join("\n")
    }

    /// Renders the first `count` columns.
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
        // The gaps shrink before a cell is wrapped. The last column is wrapped first, if that is enough, and
        // the first column, which has the names, last. An address that is broken in two cannot be copied.
        let widths = &self.widths()[..count];
        let natural: u16 = widths.iter().sum::<u16>() + 2 * (count as u16 - 1);
        let gap = if width.is_some_and(|width| natural > width) { 1 } else { 2 };
        let last = count.saturating_sub(1);
        let others: u16 = widths[..last].iter().map(|width| width + gap).sum();
        let last_fits = width.is_some_and(|width| others + SENTENCE.min(widths[last]) <= width);
        for (index, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, if index == last { 0 } else { gap }));
            column.set_cell_alignment(CellAlignment::Left);
            let whole = widths[index] + gap;
            let first = index == 0 && width.is_some_and(|width| whole <= width / 2);
            if first || (index != last && last_fits) {
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
            "a-rather-long-name-of-a-workload-for-the-client".into(),
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
        a-rather-long-name-of-a-workload-for-the-client  0/1    NoAvailablePlacements
        ");
    }

    #[test]
    fn no_line_is_longer_than_the_terminal() {
        for width in [40, 60, 80] {
            let text = mk_table().draw(Some(width));
            assert!(text.lines().all(|line| line.chars().count() <= usize::from(width)), "{width}:\n{text}");
        }
    }

    #[test]
    fn a_sentence_that_does_not_fit_is_printed_below_its_row_and_no_address_is_broken() {
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
    fn a_sentence_is_wrapped_in_its_column_before_other_columns() {
        let mut table = Table::new(&["NAME", "ADDRESS", "MESSAGE"], "");
        let long = "image nginx needs a container engine, and this city runs instances as processes";
        table.row(["web-dfw-7d295117f4-0", "127.16.1.238:8080", long].map(str::to_owned));
        let text = table.draw(Some(80));
        assert!(text.contains("web-dfw-7d295117f4-0 127.16.1.238:8080 image nginx needs"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}
