//! Program `runner`: the command line around the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    runner::cli::main()
}
