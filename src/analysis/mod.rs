//! Critical path, breakdown, comparison and what-if on timelines of any Program.
