//! Configuration documents: what they say, their mistakes, and the limiters that are built of them.

mod any_text;
mod bounds;
mod building;
mod fields;
mod guide;
mod inputs;
mod lists;
mod parsing;
mod reconfiguring;
mod redaction;
mod schema;
mod secrets;
mod support;
