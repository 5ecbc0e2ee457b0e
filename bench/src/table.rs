//! One look for the tables of all commands.

use comfy_table::{Cell, CellAlignment, LineStyle, Table, TableStyle};

/// A table with a line below its header and none between its rows.
pub fn new_table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(TableStyle::new().header_separator(LineStyle::new('─', '─', '─', '─')));
    table.set_header(header);
    table
}

/// A number for a table, flush right.
pub fn number_cell(number: impl Into<Cell>) -> Cell {
    number.into().set_alignment(CellAlignment::Right)
}

/// A count as `--sizes` has it: 10k, 8M.
pub fn short_count(count: u64) -> String {
    match count {
        1.. if count.is_multiple_of(1_000_000) => format!("{}M", count / 1_000_000),
        1.. if count.is_multiple_of(1000) => format!("{}k", count / 1000),
        _ => count.to_string(),
    }
}
