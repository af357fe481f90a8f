//! Arguments, validated settings and the subcommands' entry points.
