//! Arguments, validated settings and the subcommands' entry points.

pub mod args;

use crate::headless::{self, Exit};
use args::{Cli, Cmd};
use clap::Parser;

/// Runs the program: parses the command line, dispatches, and prints an error with its causes on standard error.
pub fn main() -> Exit {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            let _ = e.print();
            return if e.use_stderr() { Exit::Usage } else { Exit::Done };
        }
    };
    match dispatch(cli) {
        Ok(exit) => exit,
        Err(e) => {
            eprintln!("paring: {e:#}");
            Exit::Failed
        }
    }
}

fn dispatch(cli: Cli) -> anyhow::Result<Exit> {
    match cli.command {
        Some(Cmd::Eval(args)) => headless::eval::run(&args),
        _ => anyhow::bail!("not wired yet"),
    }
}
