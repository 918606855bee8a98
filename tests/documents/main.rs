//! Configuration documents: what they say, their mistakes, and the limiters that are built of them.

mod any_text;
mod inputs;
mod parsing;
