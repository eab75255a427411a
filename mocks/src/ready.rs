//! The ready line: the one line on standard output that says where a mock listens (design section 4).

use std::collections::BTreeMap;
use std::io::Write as _;

use scenario::build::BUILD_ID;
use scenario::ready::ReadyLine;

use crate::process::MockError;

/// Prints the ready line of `program` with its bound addresses by name.
///
/// # Errors
/// [`MockError::Io`] when standard output is closed: nobody would learn the addresses, so the program should end.
pub fn print_ready(program: &str, ready: &BTreeMap<String, String>) -> Result<(), MockError> {
    let line = ReadyLine { ready: ready.clone(), program: program.to_owned(), build: BUILD_ID.to_owned() };
    let io = |source| MockError::Io { what: "printing the ready line".to_owned(), source };
    let text = serde_json::to_string(&line).map_err(|error| io(error.into()))?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(io)
}
