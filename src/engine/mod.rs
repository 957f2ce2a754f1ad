//! Runs a priced Program: an event queue over integer nanoseconds. Knows no FSDP.
