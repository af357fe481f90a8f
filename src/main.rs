//! Arguments → subcommand → exit code. Nothing else belongs here.

use std::process::ExitCode;

fn main() -> ExitCode {
    paring::cli::main().into()
}
