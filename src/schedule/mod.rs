//! FSDP semantics: builds a Program from a model. Knows no time.
