//! The command line: one file per subcommand. The only place that prints or exits.
