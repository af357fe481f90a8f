//! Arguments → subcommand → exit code. Nothing else belongs here.

fn main() {}
