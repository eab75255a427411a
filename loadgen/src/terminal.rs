//! The live line: on a terminal it stays in its place, elsewhere there is one stable line an interval. No colours, so
//! that `NO_COLOR` has nothing to switch off.

use std::io::{IsTerminal, Write};

/// Columns of a line; no limit where lines are read by programs.
#[must_use]
pub fn width() -> usize {
    if !is_terminal() {
        return usize::MAX;
    }
    // The last column is left free: some terminals wrap when it is written.
    rustix::termios::tcgetwinsize(std::io::stderr()).map_or(79, |size| usize::from(size.ws_col.max(2)) - 1)
}

/// Prints a page; when nobody can read it any more the files still tell.
pub fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}

/// Shows a line in place of the one before.
pub fn show(line: &str) {
    let mut out = std::io::stderr().lock();
    // Progress that can't be shown is no reason to stop a load.
    let _ = if is_terminal() { write!(out, "\r{line}\u{1b}[K") } else { writeln!(out, "{line}") };
    let _ = out.flush();
}

/// Takes the live line away before results are printed.
pub fn end() {
    if is_terminal() {
        let _ = write!(std::io::stderr().lock(), "\r\u{1b}[K");
    }
}

fn is_terminal() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}
