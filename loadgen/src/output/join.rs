//! `join.sql`: a template that lays client records beside server-side rows. One text for SQLite and DuckDB.

use crate::result::RunResult;

/// The template with the names of this run filled in.
#[must_use]
pub fn join(result: &RunResult) -> String {
    // The name stands in comments and in one literal: a quote or a line end in it must not leave them.
    let file: String = result.run.records_file.chars().filter(|c| *c != '\'' && !c.is_control()).collect();
    TEMPLATE.replace("{records}", &file)
}

const TEMPLATE: &str = include_str!("join.sql");
