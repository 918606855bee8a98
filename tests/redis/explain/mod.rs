//! What operators ask of a limiter: how a request would be decided, and why.

mod blocks;
mod reasons;
