//! What the user writes: the TOML spec. Nothing is computed here.
